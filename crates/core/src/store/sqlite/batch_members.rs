//! Adding members to batches.

use sqlx::SqliteConnection;

use super::decode;
use crate::job::new_job::NewJob;
use crate::job::{BatchId, JobId};
use crate::store::Result;
use crate::store::batches::{all_open, members};

/// Returns those of the batches that are open. A write, so that the transaction is the writer from
/// now on.
const KEEP_OPEN: &str = "
UPDATE batch SET departed = departed
WHERE id IN (SELECT value FROM json_each(?1)) AND ended_at IS NULL RETURNING id";

const JOIN: &str = "
INSERT OR IGNORE INTO batch_member (batch_id, job_id)
SELECT value ->> 0, value ->> 1 FROM json_each(?1)";

/// Adds those of the jobs that name a batch to it. Sends no statement if none does.
pub(super) async fn join(connection: &mut SqliteConnection, jobs: &[NewJob]) -> Result<()> {
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
    connection: &mut SqliteConnection,
    batches: &[BatchId],
    members: &[(BatchId, JobId)],
) -> Result<()> {
    let open = sqlx::query(KEEP_OPEN)
        .bind(decode::array(batches)?)
        .fetch_all(&mut *connection)
        .await?;
    let open = decode::texts(&open)?;
    let open: Vec<BatchId> = open.iter().filter_map(|id| id.parse().ok()).collect();
    all_open(batches, &open)?;
    sqlx::query(JOIN)
        .bind(decode::array(members)?)
        .execute(connection)
        .await?;
    Ok(())
}
