//! Renewing leases: one statement for all that a node holds.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::{PgPool, Row};
use uuid::Uuid;

use super::begin::begin;
use super::complete;
use super::line::Line;
use crate::error::StoreError;
use crate::job::{Held, JobId, NodeId};
use crate::store::instances;

/// A lease that ran out and was not taken is revived: owner and fence are still ours. That of an exclusive
/// job is not, since a sibling may hold the instance by now; [`REVIVE`] looks.
const RENEW: &str = "
UPDATE jobwire.job_lease l SET expires_at = clock_timestamp() + $5
FROM unnest($1::uuid[], $2::bigint[], $3::boolean[]) AS d(id, fence, exclusive)
WHERE l.job_id = d.id AND l.fence = d.fence AND l.owner = $4
  AND (NOT d.exclusive OR l.expires_at > clock_timestamp())
RETURNING l.job_id";

/// The instances' rows must be locked: whoever takes an instance goes through that door.
const REVIVE: &str = "
UPDATE jobwire.job_lease l SET expires_at = clock_timestamp() + $4
FROM unnest($1::uuid[], $2::bigint[]) AS d(id, fence), jobwire.instance_lock i
WHERE l.job_id = d.id AND l.fence = d.fence AND l.owner = $3 AND i.job_id = l.job_id AND i.fence = l.fence
RETURNING l.job_id";

const ALONE: &str = "
UPDATE jobwire.job_lease SET alone_since = clock_timestamp()
WHERE job_id = $1 AND fence = $2 AND owner = $3 AND expires_at > clock_timestamp()";

async fn renew(
    line: &Line,
    owner: NodeId,
    lease: Duration,
    held: &[Held],
) -> Result<Vec<JobId>, StoreError> {
    let (ids, fences) = complete::guards(held.iter());
    let exclusive: Vec<bool> = held.iter().map(|h| h.instance.is_some()).collect();
    let mut renewed: Vec<Uuid> = sqlx::query_scalar(RENEW)
        .bind(ids)
        .bind(fences)
        .bind(exclusive)
        .bind(owner.0)
        .bind(lease)
        .fetch_all(&line.pool)
        .await?;
    if renewed.len() < held.len() {
        let known: HashSet<Uuid> = renewed.iter().copied().collect();
        let missing = held
            .iter()
            .filter(|h| h.instance.is_some() && !known.contains(&h.id.0));
        renewed.extend(revive(line, owner, lease, missing.cloned().collect()).await?);
    }
    Ok(renewed.into_iter().map(JobId).collect())
}

async fn revive(
    line: &Line,
    owner: NodeId,
    lease: Duration,
    missing: Vec<Held>,
) -> Result<Vec<Uuid>, StoreError> {
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let mut tx = begin(line).await?;
    complete::enter_held(&mut tx, &instances(missing.iter())).await?;
    let (ids, fences) = complete::guards(missing.iter());
    let revived = sqlx::query(REVIVE)
        .bind(ids)
        .bind(fences)
        .bind(owner.0)
        .bind(lease)
        .fetch_all(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(revived
        .iter()
        .map(|r| r.try_get(0))
        .collect::<Result<_, _>>()?)
}

/// The connection may have been silent for long, and a firewall may have forgotten it. Without an answer in
/// a third of the lease another one is tried while there is time; whichever answers first counts.
pub(super) async fn on_a_living_line(
    line: &Line,
    owner: NodeId,
    lease: Duration,
    held: &[Held],
) -> Result<Vec<JobId>, StoreError> {
    let first = renew(line, owner, lease, held);
    tokio::pin!(first);
    if let Ok(renewed) = tokio::time::timeout(lease / 3, &mut first).await {
        return renewed;
    }
    line.suspect();
    tracing::debug!("a renewal has no answer yet; another connection is tried");
    let second = renew(line, owner, lease, held);
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

/// Sorted, like whatever changes several leases.
const ABSOLVE: &str = "
WITH struck AS (
    SELECT job_id FROM jobwire.job_lease WHERE job_id = ANY($1) AND strikes > 0 ORDER BY job_id FOR UPDATE
)
UPDATE jobwire.job_lease l SET strikes = l.strikes - 1 FROM struck WHERE l.job_id = struck.job_id";

pub(super) async fn absolve(pool: &PgPool, jobs: &[JobId]) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
    sqlx::query(ABSOLVE).bind(ids).execute(pool).await?;
    Ok(())
}

pub(super) async fn run_alone(
    pool: &PgPool,
    owner: NodeId,
    held: &Held,
) -> Result<bool, StoreError> {
    let noted = sqlx::query(ALONE)
        .bind(held.id.0)
        .bind(held.fence.0)
        .bind(owner.0)
        .execute(pool)
        .await?;
    Ok(noted.rows_affected() == 1)
}
