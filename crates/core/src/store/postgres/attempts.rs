//! Attempts, errors and incidents.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::decode::LONGEST;
use super::find::{DIALECT, written};
use super::{PgStore, batches, progress, unique};
use crate::job::{Fence, JobId, NodeId};
use crate::store::attempts::{
    Attempt, AttemptQuery, AttemptView, ErrorGroup, Incident, IncidentFilter, Resolution,
};
use crate::store::batch_outcome::Recorded;
use crate::store::error::StoreError;
use crate::store::find;
use crate::store::statements::Recording;

/// Both times come from one reading of the clock.
///
/// Fences do not repeat. So a row that has the fence of a lock that ends here is forged, and is overwritten.
macro_rules! record {
    ($clock:literal) => {
        concat!(
            "
INSERT INTO jobwire.attempt (fence, job_id, type, process_instance, tenant, node, started_at, ended_at, outcome, message, stack,
    keep_until)
SELECT DISTINCT ON (g.fence) g.fence, g.job_id, g.type, g.process_instance, g.tenant, $1, now.t - g.ran_us * interval '1 microsecond', now.t, g.outcome,
    g.message, g.stack, now.t + g.keep_ms * interval '1 millisecond'
FROM unnest($2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::text[], $10::text[],
        $11::bigint[])
    AS g(fence, job_id, type, process_instance, tenant, ran_us, outcome, message, stack, keep_ms),
    (SELECT ",
            $clock,
            " AS t) AS now
ON CONFLICT (fence) DO UPDATE SET job_id = excluded.job_id, type = excluded.type, process_instance = excluded.process_instance,
    tenant = excluded.tenant, node = excluded.node, started_at = excluded.started_at, ended_at = excluded.ended_at,
    outcome = excluded.outcome, message = excluded.message, stack = excluded.stack, keep_until = excluded.keep_until"
        )
    };
}

const RECORD: &str = record!("clock_timestamp()");

/// The transaction of a failure begins after the handler has ended. Its beginning is the end of the
/// attempt, so that no attempt begins after the incident that the transaction has opened.
const RECORD_FAILED: &str = record!("transaction_timestamp()");

/// A part of the leader cycle: records the attempts of these types whose lease the cycle ends. `$kept`
/// has the milliseconds for each type. If the node lives, `take_strikes_back` corrects the row.
///
/// If the fence has a row, either that row or the lease is forged. So both stay, and the attempt gets a fence of
/// its own.
macro_rules! record_deaths {
    ($types:literal, $kept:literal) => {
        concat!(
            ", died AS (
    INSERT INTO jobwire.attempt (fence, job_id, type, process_instance, tenant, node, started_at, ended_at, outcome, keep_until)
    SELECT CASE WHEN d.nth = 1 AND (SELECT a.fence FROM jobwire.attempt a WHERE a.fence = d.fence) IS NULL
            THEN d.fence ELSE nextval('jobwire.fence_seq') END,
        d.job_id, d.type, d.process_instance, d.tenant, d.owner, least(d.locked_at, now.t), now.t, 'node-died',
        now.t + k.keep_ms * interval '1 millisecond'
    FROM (SELECT *, row_number() OVER (PARTITION BY fence) AS nth FROM (
          SELECT fence, job_id, type, process_instance, tenant, owner, locked_at FROM reset
          UNION ALL
          SELECT fence, job_id, type, process_instance, tenant, owner, locked_at FROM late
          WHERE cancelled AND CASE WHEN job_id IN (SELECT id FROM cancelled) THEN true END) AS ended) AS d,
        unnest(",
            $types,
            "::text[], ",
            $kept,
            "::bigint[]) AS k(type, keep_ms), (SELECT clock_timestamp() AS t) AS now
    WHERE k.type = d.type
    ON CONFLICT DO NOTHING
)"
        )
    };
}

pub(super) use record_deaths;

macro_rules! select {
    () => {
        "
SELECT a.fence, a.job_id, a.type, a.process_instance, a.tenant, a.node, a.started_at, a.ended_at, a.outcome,
    left(a.message, 65536) AS message, left(a.stack, 1048576) AS stack
FROM jobwire.attempt a"
    };
}

const SELECT: &str = select!();

const ATTEMPTS: &str = concat!(select!(), " WHERE a.job_id = $1 ORDER BY a.fence LIMIT $2");

const INCIDENTS: &str = "
SELECT job_id, type, process_instance, process_definition, element, tenant, message, opened_at, resolved_at, resolution
FROM jobwire.incident
WHERE ($1::uuid IS NULL OR job_id = $1) AND ($2::text IS NULL OR type = $2) AND ($3 OR resolved_at IS NULL)
ORDER BY opened_at DESC, job_id LIMIT $4 OFFSET $5";

const OPEN: &str = "
SELECT DISTINCT job_id FROM jobwire.incident WHERE job_id = ANY($1) AND resolved_at IS NULL";

const ERRORS: &str = "
SELECT type, message, sum(jobs)::bigint, sum(attempts)::bigint, max(last_at) FROM (
    SELECT type, exception_message AS message, count(*) AS jobs, 0 AS attempts, NULL::timestamptz AS last_at FROM (
        SELECT type, exception_message FROM jobwire.job
        UNION ALL SELECT type, exception_message FROM jobwire.timer_job
        UNION ALL SELECT type, exception_message FROM jobwire.suspended_job
        UNION ALL SELECT type, exception_message FROM jobwire.dead_letter_job) AS j
    WHERE exception_message IS NOT NULL AND ($1::text IS NULL OR type = $1) GROUP BY 1, 2
    UNION ALL
    SELECT type, message, 0, count(*), max(ended_at) FROM jobwire.attempt
    WHERE message IS NOT NULL AND outcome <> 'cancelled' AND ($1::text IS NULL OR type = $1) GROUP BY 1, 2) AS e
GROUP BY 1, 2 ORDER BY sum(jobs) + sum(attempts) DESC, 1, 2 LIMIT $2";

const PRUNE_ATTEMPTS: &str = "
DELETE FROM jobwire.attempt WHERE fence IN (
    SELECT fence FROM jobwire.attempt WHERE keep_until < clock_timestamp() ORDER BY keep_until LIMIT $1 FOR UPDATE SKIP LOCKED)";

const PRUNE_INCIDENTS: &str = "
DELETE FROM jobwire.incident WHERE (job_id, opened_at) IN (
    SELECT job_id, opened_at FROM jobwire.incident WHERE resolved_at < clock_timestamp() - $2
    ORDER BY resolved_at LIMIT $1 FOR UPDATE SKIP LOCKED)";

/// Records attempts in the transaction that commits their outcomes.
pub(super) async fn record(
    connection: &mut PgConnection,
    node: NodeId,
    attempts: &[Recorded<'_>],
) -> Result<(), StoreError> {
    write(RECORD, connection, node, attempts).await
}

/// Like [`record`], in the transaction of a failure.
pub(super) async fn record_failed(
    connection: &mut PgConnection,
    node: NodeId,
    attempts: &[Recorded<'_>],
) -> Result<(), StoreError> {
    write(RECORD_FAILED, connection, node, attempts).await
}

async fn write(
    statement: &'static str,
    connection: &mut PgConnection,
    node: NodeId,
    attempts: &[Recorded<'_>],
) -> Result<(), StoreError> {
    if attempts.is_empty() {
        return Ok(());
    }
    let each = || attempts.iter().map(|of| of.attempt);
    let whole = |n: u128| i64::try_from(n).unwrap_or(i64::MAX).min(LONGEST);
    let column = |of: fn(&Attempt) -> Option<&str>| each().map(|a| of(a)).collect::<Vec<_>>();
    let held = || attempts.iter().map(|of| of.held);
    sqlx::query(statement)
        .bind(node.0)
        .bind(held().map(|held| held.fence.0).collect::<Vec<_>>())
        .bind(held().map(|held| held.id.0).collect::<Vec<_>>())
        .bind(column(|a| Some(&a.job_type)))
        .bind(column(|a| a.process_instance.as_deref()))
        .bind(column(|a| a.tenant.as_deref()))
        .bind(each().map(|a| whole(a.ran.as_micros())).collect::<Vec<_>>())
        .bind(attempts.iter().map(|of| of.outcome).collect::<Vec<_>>())
        .bind(attempts.iter().map(|of| of.message).collect::<Vec<_>>())
        .bind(attempts.iter().map(|of| of.stack).collect::<Vec<_>>())
        .bind(
            each()
                .map(|a| whole(a.keep.as_millis()))
                .collect::<Vec<_>>(),
        )
        .execute(connection)
        .await?;
    Ok(())
}

/// Returns those of the jobs that have an open incident.
pub(super) async fn open<'e>(
    executor: impl sqlx::PgExecutor<'e>,
    jobs: &[JobId],
) -> Result<Vec<JobId>, StoreError> {
    let jobs: Vec<Uuid> = jobs.iter().map(|job| job.0).collect();
    let open = sqlx::query_scalar(OPEN).bind(jobs).fetch_all(executor);
    Ok(open.await?.into_iter().map(JobId).collect())
}

/// Reads a row of [`SELECT`].
fn view(row: &PgRow) -> Result<AttemptView, StoreError> {
    Ok(AttemptView {
        fence: Fence(row.try_get("fence")?),
        job: JobId(row.try_get("job_id")?),
        job_type: row.try_get("type")?,
        process_instance: row.try_get("process_instance")?,
        tenant: row.try_get("tenant")?,
        node: NodeId(row.try_get("node")?),
        started_at: row.try_get("started_at")?,
        ended_at: row.try_get("ended_at")?,
        outcome: row.try_get("outcome")?,
        message: row.try_get("message")?,
        stack: row.try_get("stack")?,
    })
}

impl Recording for PgStore {
    async fn read_attempts(&self, job: JobId, limit: i64) -> Result<Vec<AttemptView>, StoreError> {
        let rows = sqlx::query(ATTEMPTS)
            .bind(job.0)
            .bind(limit.max(0))
            .fetch_all(&self.pool.inner)
            .await?;
        rows.iter().map(view).collect()
    }

    async fn read_attempts_by(&self, query: &AttemptQuery) -> Result<Vec<AttemptView>, StoreError> {
        let Some(parts) = find::attempts::page(&DIALECT, query, SELECT) else {
            return Ok(Vec::new());
        };
        // There are more forms of a query than a connection should keep plans of.
        let rows = written(parts)
            .build()
            .persistent(false)
            .fetch_all(&self.pool.inner)
            .await?;
        rows.iter().map(view).collect()
    }

    async fn read_incidents(&self, filter: &IncidentFilter) -> Result<Vec<Incident>, StoreError> {
        let rows = sqlx::query(INCIDENTS)
            .bind(filter.job.map(|job| job.0))
            .bind(&filter.job_type)
            .bind(filter.resolved)
            .bind(filter.limit.max(0))
            .bind(filter.offset.max(0))
            .fetch_all(&self.pool.inner)
            .await?;
        rows.iter()
            .map(|row| {
                let resolution: Option<&str> = row.try_get(9)?;
                Ok(Incident {
                    job: JobId(row.try_get(0)?),
                    job_type: row.try_get(1)?,
                    process_instance: row.try_get(2)?,
                    process_definition: row.try_get(3)?,
                    element: row.try_get(4)?,
                    tenant: row.try_get(5)?,
                    message: row.try_get(6)?,
                    opened_at: row.try_get(7)?,
                    resolved_at: row.try_get(8)?,
                    resolution: resolution.and_then(Resolution::parse),
                })
            })
            .collect()
    }

    async fn read_open(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        open(&self.pool.inner, jobs).await
    }

    async fn group_errors(
        &self,
        job_type: Option<&str>,
        limit: i64,
    ) -> Result<Vec<ErrorGroup>, StoreError> {
        type Group = (String, String, i64, i64, Option<DateTime<Utc>>);
        let groups: Vec<Group> = sqlx::query_as(ERRORS)
            .bind(job_type)
            .bind(limit.max(0))
            .fetch_all(&self.pool.inner)
            .await?;
        let group = |(job_type, message, jobs, attempts, last_at)| ErrorGroup {
            job_type,
            message,
            jobs,
            attempts,
            last_at,
        };
        Ok(groups.into_iter().map(group).collect())
    }

    async fn prune(&self, incidents: Duration, at_most: i64) -> Result<u64, StoreError> {
        let attempts = sqlx::query(PRUNE_ATTEMPTS)
            .bind(at_most)
            .execute(&self.pool.inner)
            .await?
            .rows_affected();
        let resolved = sqlx::query(PRUNE_INCIDENTS)
            .bind(at_most)
            .bind(incidents)
            .execute(&self.pool.inner)
            .await?
            .rows_affected();
        let keys = unique::prune(&self.pool, at_most).await?;
        let ended = batches::prune(&self.pool.inner, incidents, at_most).await?;
        let most = attempts.max(resolved).max(keys).max(ended);
        if most >= at_most.unsigned_abs() {
            // The next slice follows at once. The rest reads all rows of its tables, so it is last.
            return Ok(most);
        }
        let left = progress::prune(&self.pool.inner, at_most).await?;
        Ok(most.max(left))
    }
}
