//! Progress and checkpoints of running jobs.
//!
//! Their rows exist only for jobs that use them. A row is written under the lock of the job: the
//! statements lock its lease in share mode, so the leader cycle can't end the lease, and no other
//! node can lock the job, before the write has committed.

use sqlx::PgPool;
use uuid::Uuid;

use super::PgStore;
use super::guards::guards;
use crate::job::progress::Progress;
use crate::job::{JobId, LockToken, NodeId};
use crate::store::error::StoreError;
use crate::store::statements::Progressing;

/// Writes the progress of jobs that this owner holds by these fences. A lease or a
/// progress whose row is locked is passed over, so that a foreign lock on one row does not keep the
/// leases of the others from renewal: the caller tries it again.
const REPORT: &str = "
WITH held AS MATERIALIZED (
    SELECT l.job_id, l.fence FROM jobwire.job_lease l
    WHERE l.job_id = ANY($1) AND l.owner = $3
      AND CASE WHEN (l.job_id, l.fence) IN (SELECT * FROM unnest($1::uuid[], $2::bigint[])) THEN true END
    ORDER BY l.job_id
    FOR SHARE SKIP LOCKED
), known AS MATERIALIZED (
    SELECT p.job_id FROM jobwire.job_progress p WHERE p.job_id = ANY($1)
), free AS MATERIALIZED (
    SELECT p.job_id FROM jobwire.job_progress p WHERE p.job_id IN (SELECT job_id FROM held) FOR UPDATE SKIP LOCKED
)
INSERT INTO jobwire.job_progress AS p (job_id, fence, done, total, message, reported_at)
SELECT held.job_id, held.fence, g.done, g.total, g.message, clock_timestamp()
FROM held JOIN unnest($1::uuid[], $4::bigint[], $5::bigint[], $6::text[]) AS g (job_id, done, total, message)
     ON g.job_id = held.job_id
WHERE held.job_id IN (SELECT job_id FROM free) OR held.job_id NOT IN (SELECT job_id FROM known)
ORDER BY held.job_id
ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, done = excluded.done, total = excluded.total,
    message = excluded.message, reported_at = excluded.reported_at
RETURNING p.job_id";

/// Saves a checkpoint of a job that this owner holds by this fence.
const SAVE: &str = "
WITH held AS MATERIALIZED (
    SELECT l.job_id, l.fence FROM jobwire.job_lease l
    WHERE l.job_id = $1 AND l.fence = $2 AND l.owner = $3
    FOR SHARE
)
INSERT INTO jobwire.job_progress AS p (job_id, fence, checkpoint, checkpoint_at)
SELECT held.job_id, held.fence, $4::text::json, clock_timestamp() FROM held
ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, checkpoint = excluded.checkpoint,
    checkpoint_at = excluded.checkpoint_at";

const READ: &str = "SELECT checkpoint::text FROM jobwire.job_progress WHERE job_id = $1";

/// Deletes rows whose jobs are gone. A node does not know of the rows that an earlier holder of a job
/// wrote, unless its handler reads them.
const PRUNE: &str = "
DELETE FROM jobwire.job_progress WHERE job_id IN (
    SELECT p.job_id FROM jobwire.job_progress p
    WHERE NOT EXISTS (SELECT FROM jobwire.job j WHERE j.id = p.job_id)
      AND NOT EXISTS (SELECT FROM jobwire.timer_job j WHERE j.id = p.job_id)
      AND NOT EXISTS (SELECT FROM jobwire.suspended_job j WHERE j.id = p.job_id)
      AND NOT EXISTS (SELECT FROM jobwire.dead_letter_job j WHERE j.id = p.job_id)
    ORDER BY p.job_id LIMIT $1 FOR UPDATE SKIP LOCKED)";

/// Deletes rows whose jobs are gone, at most this many. Returns their number.
pub(super) async fn prune(pool: &PgPool, at_most: i64) -> Result<u64, StoreError> {
    let pruned = sqlx::query(PRUNE).bind(at_most);
    Ok(pruned.execute(pool).await?.rows_affected())
}

impl Progressing for PgStore {
    async fn write_reports(
        &self,
        owner: NodeId,
        reports: &[(LockToken, Progress)],
    ) -> Result<Vec<JobId>, StoreError> {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let (ids, fences) = guards(reports.iter().map(|(held, _)| held));
        let each = || reports.iter().map(|(_, progress)| progress);
        let done: Vec<i64> = each().map(|progress| whole(progress.done)).collect();
        let total: Vec<Option<i64>> = each().map(|progress| progress.total.map(whole)).collect();
        let text: Vec<Option<&str>> = each().map(|progress| progress.text.as_deref()).collect();
        let written: Vec<Uuid> = sqlx::query_scalar(REPORT)
            .bind(ids)
            .bind(fences)
            .bind(owner.0)
            .bind(done)
            .bind(total)
            .bind(text)
            .fetch_all(&self.pool.inner)
            .await?;
        Ok(written.into_iter().map(JobId).collect())
    }

    async fn write_checkpoint(
        &self,
        owner: NodeId,
        held: &LockToken,
        checkpoint: &str,
    ) -> Result<bool, StoreError> {
        let saved = sqlx::query(SAVE)
            .bind(held.id.0)
            .bind(held.fence.0)
            .bind(owner.0)
            .bind(checkpoint)
            .execute(&self.pool.inner)
            .await?;
        Ok(saved.rows_affected() == 1)
    }

    async fn read_checkpoint(&self, id: JobId) -> Result<Option<String>, StoreError> {
        let read = sqlx::query_scalar::<_, Option<String>>(READ).bind(id.0);
        Ok(read.fetch_optional(&self.pool.inner).await?.flatten())
    }
}
