//! Progress and checkpoints of running jobs. Their rows exist only for jobs that use them, and are
//! written under the lock of the job.

use serde::Serialize;
use sqlx::SqliteConnection;

use super::{SqliteStore, decode};
use crate::job::progress::Progress;
use crate::job::{Fence, JobId, LockToken, NodeId};
use crate::store::error::StoreError;
use crate::store::statements::Progressing;

/// Writes the progress of jobs that this owner holds by these fences.
const REPORT: &str = "
INSERT INTO job_progress (job_id, fence, done, total, message, reported_at)
SELECT l.job_id, l.fence, g.value ->> 'done', g.value ->> 'total', g.value ->> 'text', ?3
FROM json_each(?1) g CROSS JOIN job_lease l ON l.job_id = g.value ->> 'job' AND l.fence = g.value ->> 'fence'
WHERE l.owner = ?2
ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, done = excluded.done, total = excluded.total,
    message = excluded.message, reported_at = excluded.reported_at
RETURNING job_id";

/// Saves a checkpoint of a job that this owner holds by this fence.
const SAVE: &str = "
INSERT INTO job_progress (job_id, fence, checkpoint, checkpoint_at)
SELECT l.job_id, l.fence, ?4, ?5 FROM job_lease l WHERE l.job_id = ?1 AND l.fence = ?2 AND l.owner = ?3
ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, checkpoint = excluded.checkpoint,
    checkpoint_at = excluded.checkpoint_at";

const READ: &str = "SELECT checkpoint FROM job_progress WHERE job_id = ?1";

/// Deletes rows whose jobs are gone. A node does not know of the rows that an earlier holder of a job
/// wrote, unless its handler reads them.
const PRUNE: &str = "
DELETE FROM job_progress WHERE job_id IN (
    SELECT p.job_id FROM job_progress p
    WHERE NOT EXISTS (SELECT 1 FROM job j WHERE j.id = p.job_id)
      AND NOT EXISTS (SELECT 1 FROM timer_job j WHERE j.id = p.job_id)
      AND NOT EXISTS (SELECT 1 FROM suspended_job j WHERE j.id = p.job_id)
      AND NOT EXISTS (SELECT 1 FROM dead_letter_job j WHERE j.id = p.job_id)
    LIMIT ?1)";

/// Deletes rows whose jobs are gone, at most this many. Returns their number.
pub(super) async fn prune(
    connection: &mut SqliteConnection,
    at_most: i64,
) -> Result<u64, StoreError> {
    let pruned = sqlx::query(PRUNE).bind(at_most);
    Ok(pruned.execute(connection).await?.rows_affected())
}

/// A progress in the form that the statement reads.
#[derive(Serialize)]
struct Report<'a> {
    job: JobId,
    fence: Fence,
    done: i64,
    total: Option<i64>,
    text: Option<&'a str>,
}

impl Progressing for SqliteStore {
    async fn write_reports(
        &self,
        owner: NodeId,
        reports: &[(LockToken, Progress)],
    ) -> Result<Vec<JobId>, StoreError> {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let reports = reports.iter().map(|(held, progress)| Report {
            job: held.id,
            fence: held.fence,
            done: whole(progress.done),
            total: progress.total.map(whole),
            text: progress.text.as_deref(),
        });
        let mut tx = self.write().await?;
        let written = sqlx::query(REPORT)
            .bind(decode::array(reports)?)
            .bind(owner.to_string())
            .bind(decode::now_micros())
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        decode::job_ids(&written)
    }

    async fn write_checkpoint(
        &self,
        owner: NodeId,
        held: &LockToken,
        checkpoint: &str,
    ) -> Result<bool, StoreError> {
        let mut tx = self.write().await?;
        let saved = sqlx::query(SAVE)
            .bind(held.id.to_string())
            .bind(held.fence.0)
            .bind(owner.to_string())
            .bind(checkpoint)
            .bind(decode::now_micros())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(saved.rows_affected() == 1)
    }

    async fn read_checkpoint(&self, id: JobId) -> Result<Option<String>, StoreError> {
        let read = sqlx::query(READ).bind(id.to_string());
        match read.fetch_optional(&self.readers).await? {
            Some(row) => decode::maybe_text(&row, 0),
            None => Ok(None),
        }
    }
}
