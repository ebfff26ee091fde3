//! Leases of a holder: renewing them, finding lost ones, and clearing strikes.
//!
//! No statement here waits for a row: a lease whose row is locked by another transaction is skipped
//! and counts as busy (protocol rule 9). So a transaction that hangs delays only the renewals of
//! the leases that it has locked.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::{PgPool, Row};

use super::connection_pool::ConnectionPool;
use super::guards::guards;
use super::sql::{has_job, job_columns};
use super::{PgStore, decode};
use crate::job::{Fence, JobId, LockToken, LockedJob, NodeId};
use crate::store::Renewed;
use crate::store::error::StoreError;
use crate::store::statements::Leases;

/// Extends leases. The guard names owner and fence and no time: only the leader cycle ends a lease,
/// by clearing its owner. A row in `held` that is missing in `free` is locked by another
/// transaction.
const RENEW: &str = "
WITH held AS MATERIALIZED (
    SELECT l.job_id, l.cancelled_at IS NOT NULL AS cancelled FROM jobwire.job_lease l
    WHERE l.job_id = ANY($1) AND l.owner = $3
      AND CASE WHEN (l.job_id, l.fence) IN (SELECT * FROM unnest($1::uuid[], $2::bigint[])) THEN true END
), free AS MATERIALIZED (
    SELECT l.job_id FROM jobwire.job_lease l
    WHERE l.job_id = ANY(ARRAY(SELECT job_id FROM held)) AND l.owner = $3
      AND CASE WHEN (l.job_id, l.fence) IN (SELECT * FROM unnest($1::uuid[], $2::bigint[])) THEN true END
    ORDER BY l.job_id
    FOR UPDATE SKIP LOCKED
), renewed AS (
    UPDATE jobwire.job_lease l SET expires_at = clock_timestamp() + $4
    WHERE l.job_id = ANY(ARRAY(SELECT job_id FROM free))
    RETURNING l.job_id
)
SELECT held.job_id, held.job_id IN (SELECT job_id FROM renewed), held.cancelled FROM held";

/// Selects lost leases: those that name this owner and have none of the given fences. Renews them,
/// since the owner decides about them now. The leader cycle deletes a lease whose job is gone.
const UNKNOWN: &str = concat!(
    "
WITH unknown AS MATERIALIZED (
    SELECT l.job_id FROM jobwire.job_lease l
    WHERE l.owner = $1 AND l.fence NOT IN (SELECT unnest($2::bigint[]))
      AND ",
    has_job!("l"),
    "
    ORDER BY l.job_id
    FOR UPDATE OF l SKIP LOCKED
), renewed AS (
    UPDATE jobwire.job_lease l SET expires_at = clock_timestamp() + $3
    WHERE l.job_id = ANY(ARRAY(SELECT job_id FROM unknown))
    RETURNING l.job_id, l.fence, l.strikes
)
SELECT r.fence, r.strikes, clock_timestamp(), ",
    job_columns!("j"),
    "
FROM renewed r CROSS JOIN LATERAL (SELECT * FROM jobwire.job j WHERE j.id = r.job_id OFFSET 0) j
ORDER BY j.seq"
);

const ALONE: &str = "
UPDATE jobwire.job_lease SET alone_since = clock_timestamp()
WHERE job_id = $1 AND fence = $2 AND owner = $3";

async fn renew(
    pool: &ConnectionPool,
    owner: NodeId,
    lease: Duration,
    held: &[LockToken],
) -> Result<Renewed, StoreError> {
    let (ids, fences) = guards(held.iter());
    let rows = sqlx::query(RENEW)
        .bind(ids)
        .bind(fences)
        .bind(owner.0)
        .bind(lease)
        .fetch_all(&pool.inner)
        .await?;
    let mut answer = Renewed::default();
    for row in &rows {
        let id = JobId(row.try_get(0)?);
        if row.try_get(1)? {
            answer.renewed.push(id);
        } else {
            answer.busy.push(id);
        }
        if row.try_get(2)? {
            answer.cancelled.push(id);
        }
    }
    Ok(answer)
}

/// Renews leases over a connection that works. A firewall may have dropped a connection that was
/// silent for long. So after a third of the lease without an answer, another connection is tried.
/// The first answer counts.
async fn on_a_living_line(
    pool: &ConnectionPool,
    owner: NodeId,
    lease: Duration,
    held: &[LockToken],
) -> Result<Renewed, StoreError> {
    let first = renew(pool, owner, lease, held);
    tokio::pin!(first);
    if let Ok(renewed) = tokio::time::timeout(lease / 3, &mut first).await {
        return renewed;
    }
    pool.suspect();
    tracing::debug!("a renewal has no answer yet; trying another connection");
    let second = renew(pool, owner, lease, held);
    tokio::pin!(second);
    tokio::select! {
        first = &mut first => match first {
            Ok(renewed) => Ok(renewed),
            Err(_) => second.await,
        },
        second = &mut second => match second {
            Ok(renewed) => Ok(renewed),
            Err(_) => first.await,
        },
    }
}

/// Finds and renews the leases that name this owner and have none of these fences.
async fn unknown(
    pool: &PgPool,
    owner: NodeId,
    lease: Duration,
    known: &[Fence],
) -> Result<Vec<LockedJob>, StoreError> {
    let known: HashSet<i64> = known.iter().map(|fence| fence.0).collect();
    let rows = sqlx::query(UNKNOWN)
        .bind(owner.0)
        .bind(known.into_iter().collect::<Vec<_>>())
        .bind(lease)
        .fetch_all(pool)
        .await?;
    rows.iter().map(|row| decode::locked(row, 0)).collect()
}

/// Clears strikes. A strike names the fence for which it was counted, so repeating this statement
/// clears it only once. The outcome of a recorded attempt becomes `lost-lock`: its node did not die.
///
/// A lease that still has its owner under such a fence may get the strike later: a leader cycle that
/// has not committed yet may be counting it.
const ABSOLVE: &str = "
WITH struck AS MATERIALIZED (
    SELECT l.job_id FROM jobwire.job_lease l JOIN unnest($1::uuid[], $2::bigint[]) AS d(id, fence) ON l.job_id = d.id
    WHERE l.struck = d.fence AND l.strikes > 0
), free AS MATERIALIZED (
    SELECT l.job_id FROM jobwire.job_lease l JOIN unnest($1::uuid[], $2::bigint[]) AS d(id, fence) ON l.job_id = d.id
    WHERE l.struck = d.fence AND l.strikes > 0
    ORDER BY l.job_id
    FOR UPDATE OF l SKIP LOCKED
), cleared AS (
    UPDATE jobwire.job_lease l SET strikes = l.strikes - 1, struck = NULL FROM free WHERE l.job_id = free.job_id
), lived AS (
    UPDATE jobwire.attempt SET outcome = 'lost-lock' WHERE fence = ANY(ARRAY(
        SELECT a.fence FROM jobwire.attempt a WHERE a.fence = ANY($2) AND a.outcome = 'node-died' FOR UPDATE SKIP LOCKED))
)
SELECT NOT EXISTS (SELECT FROM struck WHERE job_id NOT IN (SELECT job_id FROM free))
    AND NOT EXISTS (
        SELECT FROM jobwire.job_lease l JOIN unnest($1::uuid[], $2::bigint[]) AS d(id, fence) ON l.job_id = d.id
        WHERE l.fence = d.fence AND l.owner IS NOT NULL)";

/// Returns false if a row was locked, or if a lease may still get its strike; the caller then tries
/// again.
async fn clear_strike(pool: &PgPool, lost: &[LockToken]) -> Result<bool, StoreError> {
    let (ids, fences) = guards(lost.iter());
    let all = sqlx::query_scalar(ABSOLVE).bind(ids).bind(fences);
    Ok(all.fetch_one(pool).await?)
}

async fn run_alone(pool: &PgPool, owner: NodeId, held: &LockToken) -> Result<bool, StoreError> {
    let noted = sqlx::query(ALONE)
        .bind(held.id.0)
        .bind(held.fence.0)
        .bind(owner.0)
        .execute(pool)
        .await?;
    Ok(noted.rows_affected() == 1)
}

impl Leases for PgStore {
    async fn renew_batch(
        &self,
        owner: NodeId,
        lease: Duration,
        held: &[LockToken],
    ) -> Result<Renewed, StoreError> {
        on_a_living_line(&self.renewals, owner, lease, held).await
    }

    async fn find_unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>, StoreError> {
        unknown(&self.renewals.inner, owner, lease, known).await
    }

    async fn note_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool, StoreError> {
        run_alone(&self.pool.inner, owner, held).await
    }

    async fn take_strikes_back(&self, lost: &[LockToken]) -> Result<bool, StoreError> {
        clear_strike(&self.renewals.inner, lost).await
    }
}
