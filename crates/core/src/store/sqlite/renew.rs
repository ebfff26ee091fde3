//! Renewing leases: one statement for all that a node holds.

use std::time::Duration;

use super::{SqliteStore, complete, row};
use crate::error::StoreError;
use crate::job::{Held, JobId, NodeId};

/// A lease that ran out is not revived: somebody may have counted its holder as dead.
const RENEW: &str = "
UPDATE job_lease SET expires_at = ?4, started_at = coalesce(started_at, locked_at)
WHERE (job_id, fence) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND owner = ?2 AND expires_at > ?3
RETURNING job_id";

impl SqliteStore {
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
}
