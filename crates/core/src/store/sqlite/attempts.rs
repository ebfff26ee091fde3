//! Attempts, errors and incidents.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::find::{DIALECT, written};
use super::{SqliteStore, batches, decode, insert, progress, unique};
use crate::job::{Fence, JobId, NodeId};
use crate::store::attempts::{
    AttemptQuery, AttemptView, AttemptsKept, ErrorGroup, Incident, IncidentFilter, Resolution,
};
use crate::store::batch_outcome::Recorded;
use crate::store::error::StoreError;
use crate::store::find;
use crate::store::statements::Recording;

/// Fences do not repeat. So a row that has the fence of a lock that ends here is forged, and is overwritten.
const RECORD: &str = "
INSERT INTO attempt (fence, job_id, type, process_instance, tenant, node, started_at, ended_at, outcome, message, stack, keep_until)
SELECT value ->> 'fence', value ->> 'job', value ->> 'type', value ->> 'instance', value ->> 'tenant', ?2,
    value ->> 'started_at', ?3, value ->> 'outcome', value ->> 'message', value ->> 'stack', value ->> 'keep_until'
FROM json_each(?1) WHERE true
ON CONFLICT (fence) DO UPDATE SET job_id = excluded.job_id, type = excluded.type, process_instance = excluded.process_instance,
    tenant = excluded.tenant, node = excluded.node, started_at = excluded.started_at, ended_at = excluded.ended_at,
    outcome = excluded.outcome, message = excluded.message, stack = excluded.stack, keep_until = excluded.keep_until";

/// Selects those of these jobs whose leases have a fence of which there is an attempt, or of another of
/// them. Either that row or the lease is forged. So both stay, and the attempt gets a fence of its own.
const TAKEN: &str = "
SELECT job_id FROM (
    SELECT l.job_id, l.fence, row_number() OVER (PARTITION BY l.fence) AS nth
    FROM json_each(?1) AS late CROSS JOIN job_lease l ON l.job_id = late.value) AS l
WHERE nth > 1 OR EXISTS (SELECT 1 FROM attempt a WHERE a.fence = l.fence)";

/// Records attempts whose lease the leader cycle is about to end. `?1` are pairs of their jobs and the fence
/// to record in place of that of the lease, if any. `?3` are pairs of a type and the end of the time for which
/// its rows are kept. If the node lives, `take_strikes_back` corrects the row.
const RECORD_DEATHS: &str = "
WITH kept (type, until) AS MATERIALIZED (SELECT value ->> 0, value ->> 1 FROM json_each(?3))
INSERT INTO attempt (fence, job_id, type, process_instance, tenant, node, started_at, ended_at, outcome, keep_until)
SELECT coalesce(late.value ->> 1, l.fence), j.id, j.type, j.process_instance, j.tenant, l.owner, max(min(l.locked_at, ?2), 0), ?2,
    'node-died', kept.until
FROM json_each(?1) AS late CROSS JOIN job_lease l ON l.job_id = late.value ->> 0 CROSS JOIN job j ON j.id = l.job_id
    CROSS JOIN kept ON kept.type = j.type
WHERE true
ON CONFLICT DO NOTHING";

macro_rules! select {
    () => {
        "
SELECT a.fence, a.job_id, a.type, a.process_instance, a.tenant, a.node, a.started_at, a.ended_at, a.outcome, a.message, a.stack
FROM attempt a"
    };
}

const SELECT: &str = select!();

const ATTEMPTS: &str = concat!(select!(), " WHERE a.job_id = ?1 ORDER BY a.fence LIMIT ?2");

const INCIDENTS: &str = "
SELECT job_id, type, process_instance, process_definition, element, tenant, message, opened_at, resolved_at, resolution
FROM incident
WHERE (?1 IS NULL OR job_id = ?1) AND (?2 IS NULL OR type = ?2) AND (?3 OR resolved_at IS NULL)
ORDER BY opened_at DESC, job_id LIMIT ?4 OFFSET ?5";

const OPEN: &str = "
SELECT DISTINCT job_id FROM incident WHERE job_id IN (SELECT value FROM json_each(?1)) AND resolved_at IS NULL";

const ERRORS: &str = "
SELECT type, message, sum(jobs), sum(attempts), max(last_at) FROM (
    SELECT type, exception_message AS message, count(*) AS jobs, 0 AS attempts, NULL AS last_at FROM (
        SELECT type, exception_message FROM job
        UNION ALL SELECT type, exception_message FROM timer_job
        UNION ALL SELECT type, exception_message FROM suspended_job
        UNION ALL SELECT type, exception_message FROM dead_letter_job) AS j
    WHERE exception_message IS NOT NULL AND (?1 IS NULL OR type = ?1) GROUP BY 1, 2
    UNION ALL
    SELECT type, message, 0, count(*), max(ended_at) FROM attempt
    WHERE message IS NOT NULL AND outcome <> 'cancelled' AND (?1 IS NULL OR type = ?1) GROUP BY 1, 2) AS e
GROUP BY 1, 2 ORDER BY sum(jobs) + sum(attempts) DESC, 1, 2 LIMIT ?2";

const PRUNE: [&str; 2] = [
    "DELETE FROM attempt WHERE fence IN (SELECT fence FROM attempt WHERE keep_until < ?1 ORDER BY keep_until LIMIT ?3)",
    "DELETE FROM incident WHERE (job_id, opened_at) IN (
         SELECT job_id, opened_at FROM incident WHERE resolved_at < ?2 ORDER BY resolved_at LIMIT ?3)",
];

/// An attempt in the form that the statement reads.
#[derive(Serialize)]
struct NewRow<'a> {
    fence: Fence,
    job: JobId,
    r#type: &'a str,
    instance: Option<&'a str>,
    tenant: Option<&'a str>,
    started_at: i64,
    outcome: &'a str,
    message: Option<&'a str>,
    stack: Option<&'a str>,
    keep_until: i64,
}

/// Records attempts in the transaction that commits their outcomes.
pub(super) async fn record(
    connection: &mut SqliteConnection,
    node: NodeId,
    now: i64,
    attempts: &[Recorded<'_>],
) -> Result<(), StoreError> {
    if attempts.is_empty() {
        return Ok(());
    }
    let rows = attempts.iter().map(|of| {
        let (held, attempt) = (of.held, of.attempt);
        let ran = i64::try_from(attempt.ran.as_micros()).unwrap_or(i64::MAX);
        NewRow {
            fence: held.fence,
            job: held.id,
            r#type: &attempt.job_type,
            instance: attempt.process_instance.as_deref(),
            tenant: attempt.tenant.as_deref(),
            started_at: now.saturating_sub(ran).max(0),
            outcome: of.outcome,
            message: of.message,
            stack: of.stack,
            keep_until: decode::later(now, attempt.keep),
        }
    });
    sqlx::query(RECORD)
        .bind(decode::array(rows)?)
        .bind(node.to_string())
        .bind(now)
        .execute(connection)
        .await?;
    Ok(())
}

/// Returns those of the jobs that have an open incident.
pub(super) async fn open<'e>(
    executor: impl sqlx::SqliteExecutor<'e>,
    jobs: &[JobId],
) -> Result<Vec<JobId>, StoreError> {
    let rows = sqlx::query(OPEN)
        .bind(decode::array(jobs)?)
        .fetch_all(executor)
        .await?;
    decode::job_ids(&rows)
}

/// Records the attempts of these jobs whose types record them, in the transaction that ends their
/// leases.
pub(super) async fn record_deaths(
    connection: &mut SqliteConnection,
    now: i64,
    jobs: &[JobId],
    kept: &AttemptsKept,
) -> Result<(), StoreError> {
    if jobs.is_empty() || kept.is_empty() {
        return Ok(());
    }
    let taken = sqlx::query(TAKEN).bind(decode::array(jobs)?);
    let taken = decode::job_ids(&taken.fetch_all(&mut *connection).await?)?;
    let mut instead: HashMap<JobId, i64> = HashMap::new();
    if !taken.is_empty() {
        let first = insert::draw(&mut *connection, "fence_seq", taken.len()).await?;
        instead.extend(taken.into_iter().zip(first..));
    }
    let jobs = jobs.iter().map(|job| (job, instead.get(job)));
    let kept = kept
        .iter()
        .map(|(of, keep)| (of, decode::later(now, *keep)));
    sqlx::query(RECORD_DEATHS)
        .bind(decode::array(jobs)?)
        .bind(now)
        .bind(decode::array(kept)?)
        .execute(connection)
        .await?;
    Ok(())
}

/// Reads a row of [`SELECT`]. One that another program has written stops no other one.
fn view(row: &SqliteRow) -> Result<AttemptView, StoreError> {
    Ok(AttemptView {
        fence: Fence(row.try_get("fence")?),
        job: JobId(decode::shown_id(row, "job_id")?),
        job_type: decode::text(row, "type")?,
        process_instance: decode::maybe_text(row, "process_instance")?,
        tenant: decode::maybe_text(row, "tenant")?,
        node: NodeId(decode::shown_id(row, "node")?),
        started_at: decode::shown(row.try_get("started_at")?),
        ended_at: decode::shown(row.try_get("ended_at")?),
        outcome: decode::text(row, "outcome")?,
        message: decode::maybe_text(row, "message")?,
        stack: decode::maybe_text(row, "stack")?,
    })
}

impl Recording for SqliteStore {
    async fn read_attempts(&self, job: JobId, limit: i64) -> Result<Vec<AttemptView>, StoreError> {
        let rows = sqlx::query(ATTEMPTS)
            .bind(job.to_string())
            .bind(limit.max(0))
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(view).collect()
    }

    async fn read_attempts_by(&self, query: &AttemptQuery) -> Result<Vec<AttemptView>, StoreError> {
        let Some(parts) = find::attempts::page(&DIALECT, query, SELECT) else {
            return Ok(Vec::new());
        };
        let rows = written(parts)?
            .build()
            .persistent(false)
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(view).collect()
    }

    async fn read_incidents(&self, filter: &IncidentFilter) -> Result<Vec<Incident>, StoreError> {
        let rows = sqlx::query(INCIDENTS)
            .bind(filter.job.map(|job| job.to_string()))
            .bind(&filter.job_type)
            .bind(filter.resolved)
            .bind(filter.limit.max(0))
            .bind(filter.offset.max(0))
            .fetch_all(&self.readers)
            .await?;
        rows.iter()
            .map(|row| {
                let resolution = decode::maybe_text(row, 9)?;
                Ok(Incident {
                    job: JobId(decode::shown_id(row, 0)?),
                    job_type: decode::text(row, 1)?,
                    process_instance: decode::maybe_text(row, 2)?,
                    process_definition: decode::maybe_text(row, 3)?,
                    element: decode::maybe_text(row, 4)?,
                    tenant: decode::maybe_text(row, 5)?,
                    message: decode::maybe_text(row, 6)?,
                    opened_at: decode::moment(row.try_get(7)?)?,
                    resolved_at: decode::maybe_moment(row.try_get(8)?)?,
                    resolution: resolution.as_deref().and_then(Resolution::parse),
                })
            })
            .collect()
    }

    async fn read_open(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        open(&self.readers, jobs).await
    }

    async fn group_errors(
        &self,
        job_type: Option<&str>,
        limit: i64,
    ) -> Result<Vec<ErrorGroup>, StoreError> {
        let rows = sqlx::query(ERRORS)
            .bind(job_type)
            .bind(limit.max(0))
            .fetch_all(&self.readers)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(ErrorGroup {
                    job_type: decode::text(row, 0)?,
                    message: decode::text(row, 1)?,
                    jobs: row.try_get(2)?,
                    attempts: row.try_get(3)?,
                    last_at: decode::maybe_moment(row.try_get(4)?)?,
                })
            })
            .collect()
    }

    async fn prune(&self, incidents: Duration, at_most: i64) -> Result<u64, StoreError> {
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let kept = i64::try_from(incidents.as_micros()).unwrap_or(i64::MAX);
        let mut most = 0;
        for statement in PRUNE {
            let gone = sqlx::query(statement)
                .bind(now)
                .bind(now.saturating_sub(kept))
                .bind(at_most)
                .execute(&mut *tx)
                .await?;
            most = gone.rows_affected().max(most);
        }
        most = unique::prune(&mut tx, now, at_most).await?.max(most);
        most = batches::prune(&mut tx, incidents, at_most).await?.max(most);
        // It reads all rows of its table, so it is last.
        if most < at_most.unsigned_abs() {
            most = progress::prune(&mut tx, at_most).await?.max(most);
        }
        tx.commit().await?;
        Ok(most)
    }
}
