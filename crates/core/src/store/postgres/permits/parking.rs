//! Parking: an asking job that gets no permit waits, without a lease. If it has strikes, its lease stays
//! without an owner.

use std::collections::HashSet;

use sqlx::PgConnection;
use uuid::Uuid;

use super::names;
use crate::job::{JobId, LockToken, NodeId};
use crate::store::error::StoreError;
use crate::store::permits::{Asking, PermitAnswer, PermitKey};
use crate::store::postgres::complete;

const PARK: &str = "
INSERT INTO jobwire.waiting_job AS w (job_id, limit_name, key, type, seq)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[])
ON CONFLICT (job_id) DO UPDATE SET limit_name = excluded.limit_name, key = excluded.key, type = excluded.type,
    seq = excluded.seq, woken_at = NULL";

/// Selects the strikes of jobs that are parked, and locks their leases.
const STRIKES: &str = "
SELECT job_id, fence, strikes, struck FROM jobwire.job_lease
WHERE job_id = ANY($1) AND owner = $2 AND strikes > 0 ORDER BY job_id FOR UPDATE";

/// Writes leases without an owner. The next lock takes them, with their strikes.
const KEEP_STRIKES: &str = "
INSERT INTO jobwire.job_lease (job_id, fence, locked_at, expires_at, strikes, struck)
SELECT u.id, u.fence, clock_timestamp(), clock_timestamp(), u.strikes, u.struck
FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::bigint[]) AS u (id, fence, strikes, struck)
ON CONFLICT (job_id) DO NOTHING";

/// Parks the asking jobs that got no permit.
pub(super) async fn park(
    connection: &mut PgConnection,
    node: NodeId,
    refused: &[(&PermitKey, &Asking)],
    holders: &complete::Holders,
    answer: &mut PermitAnswer,
) -> Result<(), StoreError> {
    if refused.is_empty() {
        return Ok(());
    }
    let held: Vec<LockToken> = refused.iter().map(|(_, job)| job.held.clone()).collect();
    let struck: Vec<(Uuid, i64, i32, Option<i64>)> = sqlx::query_as(STRIKES)
        .bind(held.iter().map(|of| of.id.0).collect::<Vec<_>>())
        .bind(node.0)
        .fetch_all(&mut *connection)
        .await?;
    let released = complete::release_in(connection, node, &held, holders).await?;
    let parked: HashSet<JobId> = released.applied.iter().copied().collect();
    let waits =
        |job: &Asking| parked.contains(&job.held.id) && !released.cancelled.contains(&job.held.id);
    let rows = || refused.iter().filter(|(_, job)| waits(job));
    let (limits, keys) = names(rows().map(|(key, _)| *key));
    sqlx::query(PARK)
        .bind(rows().map(|(_, job)| job.held.id.0).collect::<Vec<_>>())
        .bind(limits)
        .bind(keys)
        .bind(
            rows()
                .map(|(_, job)| job.job_type.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(rows().map(|(_, job)| job.seq).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await?;
    if !struck.is_empty() {
        let waiting: HashSet<Uuid> = rows().map(|(_, job)| job.held.id.0).collect();
        let kept = || struck.iter().filter(|row| waiting.contains(&row.0));
        sqlx::query(KEEP_STRIKES)
            .bind(kept().map(|row| row.0).collect::<Vec<_>>())
            .bind(kept().map(|row| row.1).collect::<Vec<_>>())
            .bind(kept().map(|row| row.2).collect::<Vec<_>>())
            .bind(kept().map(|row| row.3).collect::<Vec<_>>())
            .execute(connection)
            .await?;
    }
    let ready = released.ready.into_iter();
    answer
        .ready
        .extend(ready.filter(|ready| !parked.contains(&ready.hint.id)));
    answer.parked = released.applied;
    answer.cancelled = released.cancelled;
    Ok(())
}
