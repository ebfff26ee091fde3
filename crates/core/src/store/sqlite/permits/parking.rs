//! Parking: an asking job that gets no permit waits, without a lease. If it has strikes, its lease stays
//! without an owner.

use std::collections::HashSet;

use serde::Serialize;
use sqlx::{Row, SqliteConnection};

use crate::job::{JobId, LockToken};
use crate::store::error::StoreError;
use crate::store::permits::{Asking, PermitAnswer, PermitKey, PermitRequest};
use crate::store::sqlite::sql::strikes;
use crate::store::sqlite::{complete, decode};

const PARK: &str = "
INSERT INTO waiting_job (job_id, limit_name, key, type, seq)
SELECT value ->> 'job', value ->> 'limit', value ->> 'key', value ->> 'job_type', value ->> 'seq' FROM json_each(?1)
WHERE true
ON CONFLICT (job_id) DO UPDATE SET limit_name = excluded.limit_name, key = excluded.key, type = excluded.type,
    seq = excluded.seq, woken_at = NULL";

/// Selects the strikes of jobs that are parked.
const STRIKES: &str = concat!(
    "
SELECT job_id, fence, ",
    strikes!("job_lease"),
    ", struck FROM job_lease
WHERE job_id IN (SELECT value FROM json_each(?1)) AND owner = ?2 AND strikes > 0"
);

/// Writes leases without an owner. The next lock takes them, with their strikes.
const KEEP_STRIKES: &str = "
INSERT INTO job_lease (job_id, fence, locked_at, expires_at, strikes, struck)
SELECT value ->> 0, value ->> 1, ?2, ?2, value ->> 2, value ->> 3 FROM json_each(?1) WHERE true
ON CONFLICT (job_id) DO NOTHING";

/// A waiting job in the form that the statement reads.
#[derive(Serialize)]
struct WaitingRow<'a> {
    job: JobId,
    limit: &'a str,
    key: &'a str,
    job_type: &'a str,
    seq: i64,
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
    let ids = held.iter().map(|of| of.id);
    let struck = sqlx::query(STRIKES)
        .bind(decode::array(ids)?)
        .bind(request.node.to_string())
        .fetch_all(&mut *connection)
        .await?;
    let struck_ids = decode::job_ids(&struck)?;
    let released = complete::release_in(connection, request.node, now, &held).await?;
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
    });
    let park = sqlx::query(PARK).bind(decode::array(rows)?);
    park.execute(&mut *connection).await?;
    let mut kept: Vec<(JobId, i64, i32, Option<i64>)> = Vec::new();
    for (row, id) in struck.iter().zip(struck_ids) {
        if parked.contains(&id) && !released.cancelled.contains(&id) {
            kept.push((id, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
        }
    }
    if !kept.is_empty() {
        let keep = sqlx::query(KEEP_STRIKES).bind(decode::array(kept)?);
        keep.bind(now).execute(connection).await?;
    }
    let ready = released.ready.into_iter();
    answer
        .ready
        .extend(ready.filter(|ready| !parked.contains(&ready.hint.id)));
    answer.parked = released.applied;
    answer.cancelled = released.cancelled;
    Ok(())
}
