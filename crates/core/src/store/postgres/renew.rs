//! Renewing leases: one statement for all that a node holds.

use std::time::Duration;

use sqlx::PgPool;
use uuid::Uuid;

use super::complete;
use crate::error::StoreError;
use crate::job::{Held, JobId, NodeId};

/// A lease that ran out is not revived: somebody may have counted its holder as dead.
const RENEW: &str = "
UPDATE jobwire.job_lease l
SET expires_at = clock_timestamp() + $4, started_at = coalesce(l.started_at, l.locked_at)
FROM unnest($1::uuid[], $2::bigint[]) AS d(id, fence)
WHERE l.job_id = d.id AND l.fence = d.fence AND l.owner = $3 AND l.expires_at > clock_timestamp()
RETURNING l.job_id";

pub(super) async fn renew(
    pool: &PgPool,
    owner: NodeId,
    lease: Duration,
    held: &[Held],
) -> Result<Vec<JobId>, StoreError> {
    let (ids, fences) = complete::guards(held.iter());
    let renewed: Vec<Uuid> = sqlx::query_scalar(RENEW)
        .bind(ids)
        .bind(fences)
        .bind(owner.0)
        .bind(lease)
        .fetch_all(pool)
        .await?;
    Ok(renewed.into_iter().map(JobId).collect())
}
