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

/// The place of a job in the queue of its key is its creation order or, if the limit is fair, its turn
/// ([`permits`](crate::store::permits)). While any job without a turn waits for the key, a turn is at
/// least the creation order, so those without turns are overtaken by no later job. A job that was woken and came too late keeps
/// its turn.
const PARK: &str = "
INSERT INTO jobwire.waiting_job AS w (job_id, limit_name, key, type, seq, fair_key)
SELECT u.job_id, u.limit_name, u.key, u.type,
    CASE WHEN u.fair_key IS NULL THEN u.seq ELSE greatest(coalesce(
        (SELECT least(q.seq, 4611686018427387904) + 2 FROM jobwire.waiting_job q
         WHERE q.limit_name = u.limit_name AND q.key = u.key AND q.fair_key = u.fair_key AND q.woken_at IS NULL
         ORDER BY q.seq DESC LIMIT 1),
        (SELECT least(q.seq, 4611686018427387904) + 1 FROM jobwire.waiting_job q
         WHERE q.limit_name = u.limit_name AND q.key = u.key AND q.woken_at IS NULL
         ORDER BY q.seq LIMIT 1),
        min(u.seq) OVER (PARTITION BY u.limit_name, u.key)),
        (SELECT u.seq FROM jobwire.waiting_job q
         WHERE q.limit_name = u.limit_name AND q.key = u.key AND q.fair_key IS NULL AND q.woken_at IS NULL
         ORDER BY q.seq LIMIT 1)) + 2 * (row_number() OVER (PARTITION BY u.limit_name, u.key, u.fair_key ORDER BY u.seq) - 1)
    END, u.fair_key
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[])
    AS u (job_id, limit_name, key, type, seq, fair_key)
ON CONFLICT (job_id) DO UPDATE SET limit_name = excluded.limit_name, key = excluded.key, type = excluded.type,
    seq = CASE WHEN (w.limit_name, w.key, w.fair_key) IS NOT DISTINCT FROM (excluded.limit_name, excluded.key, excluded.fair_key)
        THEN least(w.seq, excluded.seq) ELSE excluded.seq END,
    fair_key = excluded.fair_key, woken_at = NULL";

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
    let ids: Vec<Uuid> = held.iter().map(|of| of.id.0).collect();
    let released = complete::release_keeping(&mut *connection, node, &held, &ids, holders).await?;
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
        .bind(
            rows()
                .map(|(_, job)| job.fair_key.as_deref())
                .collect::<Vec<_>>(),
        )
        .execute(connection)
        .await?;
    let ready = released.ready.into_iter();
    answer
        .ready
        .extend(ready.filter(|ready| !parked.contains(&ready.hint.id)));
    answer.parked = released.applied;
    answer.cancelled = released.cancelled;
    Ok(())
}
