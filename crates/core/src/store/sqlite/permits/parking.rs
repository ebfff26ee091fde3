//! Parking: an asking job that gets no permit waits, without a lease. If it has strikes, its lease stays
//! without an owner.

use std::collections::HashSet;

use serde::Serialize;
use sqlx::SqliteConnection;

use crate::job::{JobId, LockToken};
use crate::store::error::StoreError;
use crate::store::permits::{Asking, PermitAnswer, PermitKey, PermitRequest};
use crate::store::sqlite::{complete, decode};

/// The place of a job in the queue of its key is its creation order or, if the limit is fair, its turn
/// ([`permits`](crate::store::permits)). While any job without a turn waits for the key, a turn is at
/// least the creation order, so those without turns are overtaken by no later job. A job that was woken and came too late keeps
/// its turn.
const PARK: &str = "
WITH u AS MATERIALIZED (
    SELECT value ->> 'job' AS job_id, value ->> 'limit' AS limit_name, value ->> 'key' AS key, value ->> 'job_type' AS type,
        value ->> 'seq' AS seq, value ->> 'fair_key' AS fair_key FROM json_each(?1))
INSERT INTO waiting_job (job_id, limit_name, key, type, seq, fair_key)
SELECT u.job_id, u.limit_name, u.key, u.type,
    CASE WHEN u.fair_key IS NULL THEN u.seq ELSE max(coalesce(
        (SELECT min(q.seq, 4611686018427387904) + 2 FROM waiting_job q
         WHERE q.limit_name = u.limit_name AND q.key = u.key AND q.fair_key = u.fair_key AND q.woken_at IS NULL
         ORDER BY q.seq DESC LIMIT 1),
        (SELECT min(q.seq, 4611686018427387904) + 1 FROM waiting_job q
         WHERE q.limit_name = u.limit_name AND q.key = u.key AND q.woken_at IS NULL
         ORDER BY q.seq LIMIT 1),
        min(u.seq) OVER (PARTITION BY u.limit_name, u.key)),
        coalesce((SELECT u.seq FROM waiting_job q
         WHERE q.limit_name = u.limit_name AND q.key = u.key AND q.fair_key IS NULL AND q.woken_at IS NULL
         ORDER BY q.seq LIMIT 1), 0)) + 2 * (row_number() OVER (PARTITION BY u.limit_name, u.key, u.fair_key ORDER BY u.seq) - 1)
    END, u.fair_key
FROM u
WHERE true
ON CONFLICT (job_id) DO UPDATE SET limit_name = excluded.limit_name, key = excluded.key, type = excluded.type,
    seq = CASE WHEN limit_name = excluded.limit_name AND key = excluded.key AND fair_key IS excluded.fair_key
        THEN min(seq, excluded.seq) ELSE excluded.seq END,
    fair_key = excluded.fair_key, woken_at = NULL";

/// A waiting job in the form that the statement reads.
#[derive(Serialize)]
struct WaitingRow<'a> {
    job: JobId,
    limit: &'a str,
    key: &'a str,
    job_type: &'a str,
    seq: i64,
    fair_key: Option<&'a str>,
}

/// Parks the asking jobs that got no permit.
pub(super) async fn park(
    connection: &mut SqliteConnection,
    request: &PermitRequest,
    refused: &[(&PermitKey, &Asking)],
    now: i64,
    answer: &mut PermitAnswer,
) -> Result<(), StoreError> {
    if refused.is_empty() {
        return Ok(());
    }
    let held: Vec<LockToken> = refused.iter().map(|(_, job)| job.held.clone()).collect();
    let ids: Vec<JobId> = held.iter().map(|of| of.id).collect();
    let released =
        complete::release_keeping(&mut *connection, request.node, now, &held, &ids).await?;
    let parked: HashSet<JobId> = released.applied.iter().copied().collect();
    let rows = refused.iter().filter(|(_, job)| {
        parked.contains(&job.held.id) && !released.cancelled.contains(&job.held.id)
    });
    let rows = rows.map(|(key, job)| WaitingRow {
        job: job.held.id,
        limit: &key.limit,
        key: &key.key,
        job_type: &job.job_type,
        seq: job.seq,
        fair_key: job.fair_key.as_deref(),
    });
    let park = sqlx::query(PARK).bind(decode::array(rows)?);
    park.execute(connection).await?;
    let ready = released.ready.into_iter();
    answer
        .ready
        .extend(ready.filter(|ready| !parked.contains(&ready.hint.id)));
    answer.parked = released.applied;
    answer.cancelled = released.cancelled;
    Ok(())
}
