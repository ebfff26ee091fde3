//! Leases of a holder: renewing them, finding lost ones, and clearing strikes.

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::sql::{has_id, job_columns, strikes};
use super::{SqliteStore, complete, decode};
use crate::job::{Fence, LockToken, LockedJob, NodeId};
use crate::store::Renewed;
use crate::store::error::StoreError;
use crate::store::statements::Leases;

/// Extends leases. The guard compares owner and fence and no time: only the leader cycle ends a
/// lease, by clearing its owner.
const RENEW: &str = "
UPDATE job_lease SET expires_at = ?3
WHERE (job_id, fence) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND owner = ?2
RETURNING job_id, cancelled_at IS NOT NULL";

/// Selects the leases of this owner whose fences are not in `?1`.
const UNKNOWN: &str = concat!(
    "
SELECT l.fence, ",
    strikes!("l"),
    ", ",
    job_columns!("j"),
    "
FROM job_lease l CROSS JOIN job j ON j.id = l.job_id
WHERE l.owner = ?2 AND l.fence NOT IN (SELECT value FROM json_each(?1)) AND ",
    has_id!("j.id"),
    "
ORDER BY j.seq"
);

const ALONE: &str = "
UPDATE job_lease SET alone_since = ?4 WHERE job_id = ?1 AND fence = ?2 AND owner = ?3";

/// Clears strikes. A strike names the fence for which it was counted, so repeating this statement
/// clears it only once.
const ABSOLVE: &str = "
UPDATE job_lease SET strikes = strikes - 1, struck = NULL
WHERE (job_id, struck) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND strikes > 0";

/// Returns whether one of these leases still has its owner, so that it may get its strike later.
const HELD: &str = "
SELECT EXISTS (SELECT 1 FROM job_lease
WHERE (job_id, fence) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND owner IS NOT NULL)";

/// Corrects recorded attempts that did not end with the death of their node.
const LIVED: &str = "
UPDATE attempt SET outcome = 'lost-lock'
WHERE fence IN (SELECT value ->> 1 FROM json_each(?1)) AND outcome = 'node-died'";

impl Leases for SqliteStore {
    async fn take_strikes_back(&self, lost: &[LockToken]) -> Result<bool, StoreError> {
        let lost = complete::guards(lost.iter())?;
        let mut tx = self.write().await?;
        for statement in [ABSOLVE, LIVED] {
            sqlx::query(statement).bind(&lost).execute(&mut *tx).await?;
        }
        let held: bool = sqlx::query_scalar(HELD)
            .bind(&lost)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(!held)
    }

    async fn renew_batch(
        &self,
        owner: NodeId,
        lease: Duration,
        held: &[LockToken],
    ) -> Result<Renewed, StoreError> {
        let mut tx = self.write().await?;
        let rows = extend(&mut tx, owner, lease, held).await?;
        tx.commit().await?;
        let (renewed, cancelled) = decode::job_ids_and_marked(&rows)?;
        Ok(Renewed {
            renewed,
            cancelled,
            busy: Vec::new(),
        })
    }

    /// Finds and renews the leases of this owner that have none of these fences.
    async fn find_unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>, StoreError> {
        let mut tx = self.write().await?;
        let rows = sqlx::query(UNKNOWN)
            .bind(decode::array(known)?)
            .bind(owner.to_string())
            .fetch_all(&mut *tx)
            .await?;
        let locked_at = decode::moment(decode::now_micros())?;
        let locked = |row: &SqliteRow| -> Result<LockedJob, StoreError> {
            Ok(LockedJob {
                fence: Fence(row.try_get(0)?),
                strikes: row.try_get(1)?,
                locked_at,
                job: Arc::new(decode::job(row, 2)?),
            })
        };
        let unknown = rows.iter().map(locked).collect::<Result<Vec<_>, _>>()?;
        let held: Vec<LockToken> = unknown.iter().map(LockedJob::held).collect();
        extend(&mut tx, owner, lease, &held).await?;
        tx.commit().await?;
        Ok(unknown)
    }

    async fn note_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool, StoreError> {
        let mut tx = self.write().await?;
        let noted = sqlx::query(ALONE)
            .bind(held.id.to_string())
            .bind(held.fence.0)
            .bind(owner.to_string())
            .bind(decode::now_micros())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(noted.rows_affected() == 1)
    }
}

/// Extends these leases to `lease` from now. Returns their jobs, and whether each was cancelled.
async fn extend(
    connection: &mut SqliteConnection,
    owner: NodeId,
    lease: Duration,
    held: &[LockToken],
) -> Result<Vec<SqliteRow>, StoreError> {
    let renew = sqlx::query(RENEW)
        .bind(complete::guards(held.iter())?)
        .bind(owner.to_string())
        .bind(decode::later(decode::now_micros(), lease));
    Ok(renew.fetch_all(connection).await?)
}
