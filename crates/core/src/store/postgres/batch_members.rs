//! Adding members to batches.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::job::new_job::NewJob;
use crate::job::{BatchId, JobId};
use crate::store::Result;
use crate::store::batches::{all_open, members};

/// Keeps batches open until the end of the transaction.
const KEEP_OPEN: &str = "
SELECT id FROM jobwire.batch WHERE id = ANY($1) AND ended_at IS NULL ORDER BY id FOR SHARE";

const JOIN: &str = "
INSERT INTO jobwire.batch_member (batch_id, job_id)
SELECT * FROM unnest($1::uuid[], $2::uuid[]) ON CONFLICT DO NOTHING";

/// Adds those of the jobs that name a batch to it. Sends no statement if none does.
pub(super) async fn join(connection: &mut PgConnection, jobs: &[NewJob]) -> Result<()> {
    if jobs.iter().all(|job| job.batch.is_none()) {
        return Ok(());
    }
    let (batches, members) = members(jobs);
    join_these(connection, &batches, &members).await
}

/// Adds these members to these batches.
///
/// # Errors
/// One of the batches is not open.
pub(super) async fn join_these(
    connection: &mut PgConnection,
    batches: &[BatchId],
    members: &[(BatchId, JobId)],
) -> Result<()> {
    let open: Vec<Uuid> = sqlx::query_scalar(KEEP_OPEN)
        .bind(batches.iter().map(|id| id.0).collect::<Vec<_>>())
        .fetch_all(&mut *connection)
        .await?;
    let open: Vec<BatchId> = open.into_iter().map(BatchId).collect();
    all_open(batches, &open)?;
    sqlx::query(JOIN)
        .bind(members.iter().map(|(batch, _)| batch.0).collect::<Vec<_>>())
        .bind(members.iter().map(|(_, job)| job.0).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}
