//! Renewing leases: one statement for all that a node holds.

use std::time::Duration;

use super::{SqliteStore, complete, row};
use crate::error::StoreError;
use crate::job::{Held, JobId, NodeId};

/// A lease that ran out and was not taken is revived: owner and fence are still ours; and for an exclusive
/// job, so is its instance.
const RENEW: &str = "
UPDATE job_lease AS l SET expires_at = ?4
WHERE (job_id, fence) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND owner = ?2
  AND (expires_at > ?3
    OR NOT EXISTS (SELECT 1 FROM job j WHERE j.id = l.job_id AND j.exclusive AND j.process_instance IS NOT NULL)
    OR EXISTS (SELECT 1 FROM instance_lock i WHERE i.job_id = l.job_id AND i.fence = l.fence))
RETURNING job_id";

const ALONE: &str = "
UPDATE job_lease SET alone_since = ?4 WHERE job_id = ?1 AND fence = ?2 AND owner = ?3 AND expires_at > ?4";

const ABSOLVE: &str = "
UPDATE job_lease SET strikes = strikes - 1
WHERE job_id IN (SELECT value FROM json_each(?1)) AND strikes > 0";

impl SqliteStore {
    pub(super) async fn take_strikes_back(&self, jobs: &[JobId]) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        sqlx::query(ABSOLVE)
            .bind(row::array(jobs)?)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }

    pub(super) async fn renew_batch(
        &self,
        owner: NodeId,
        lease: Duration,
        held: &[Held],
    ) -> Result<Vec<JobId>, StoreError> {
        let mut tx = self.write().await?;
        let now = row::now_micros();
        let rows = sqlx::query(RENEW)
            .bind(complete::guards(held.iter())?)
            .bind(owner.to_string())
            .bind(now)
            .bind(row::later(now, lease))
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        row::job_ids(&rows)
    }

    pub(super) async fn note_alone(&self, owner: NodeId, held: &Held) -> Result<bool, StoreError> {
        let mut tx = self.write().await?;
        let noted = sqlx::query(ALONE)
            .bind(held.id.to_string())
            .bind(held.fence.0)
            .bind(owner.to_string())
            .bind(row::now_micros())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(noted.rows_affected() == 1)
    }
}
