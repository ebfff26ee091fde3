//! Writing the leases of jobs that were found free.

use std::sync::Arc;

use sqlx::SqliteConnection;

use super::{decode, insert};
use crate::job::{Fence, Job, LockedJob};
use crate::store::LockTerms;
use crate::store::error::StoreError;

/// Writes a new lease, or an owner for a lease that lost its owner. `?1` is an array of
/// `[id, fence, strikes]`.
const LEASE: &str = "
INSERT INTO job_lease (job_id, owner, fence, locked_at, expires_at, strikes)
SELECT value ->> 0, ?2, value ->> 1, ?3, ?4, value ->> 2 FROM json_each(?1) WHERE true
ON CONFLICT (job_id) DO UPDATE
    SET owner = excluded.owner, fence = excluded.fence, locked_at = excluded.locked_at,
        expires_at = excluded.expires_at, alone_since = NULL, strikes = excluded.strikes";

/// Writes the leases of jobs that were found free, each with its own fence.
pub(super) async fn lease(
    connection: &mut SqliteConnection,
    terms: &LockTerms,
    now: i64,
    free: Vec<(Job, i32)>,
) -> Result<Vec<LockedJob>, StoreError> {
    if free.is_empty() {
        return Ok(Vec::new());
    }
    let first = insert::draw(connection, "fence_seq", free.len()).await?;
    let locked_at = decode::moment(now)?;
    let locked: Vec<LockedJob> = (first..)
        .zip(free)
        .map(|(fence, (job, strikes))| LockedJob {
            job: Arc::new(job),
            fence: Fence(fence),
            strikes,
            locked_at,
        })
        .collect();
    sqlx::query(LEASE)
        .bind(decode::array(
            locked.iter().map(|l| (l.job.id, l.fence, l.strikes)),
        )?)
        .bind(terms.owner.to_string())
        .bind(now)
        .bind(decode::later(now, terms.lease))
        .execute(connection)
        .await?;
    Ok(locked)
}
