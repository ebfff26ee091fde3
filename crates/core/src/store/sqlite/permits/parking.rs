//! Parking: an asking job that gets no permit waits, without a lease. If it has strikes, its lease stays
//! without an owner.

use std::collections::HashSet;

use serde::Serialize;
use sqlx::SqliteConnection;

use crate::job::{JobId, LockToken};
use crate::store::error::StoreError;
use crate::store::permits::{Asking, PermitAnswer, PermitKey, PermitRequest};
use crate::store::sqlite::{complete, decode};

const PARK: &str = "
INSERT INTO waiting_job (job_id, limit_name, key, type, seq)
SELECT value ->> 'job', value ->> 'limit', value ->> 'key', value ->> 'job_type', value ->> 'seq' FROM json_each(?1)
WHERE true
ON CONFLICT (job_id) DO UPDATE SET limit_name = excluded.limit_name, key = excluded.key, type = excluded.type,
    seq = excluded.seq, woken_at = NULL";

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
