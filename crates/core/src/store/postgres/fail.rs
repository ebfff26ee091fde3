//! Failing: moves jobs from the executable table to the table in which they wait.

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::begin::begin_impatiently;
use super::decode::LONGEST;
use super::guards::guards;
use super::sql::{moved_columns, not_put_aside};
use super::{PgStore, attempts, complete};
use crate::job::{JobId, NodeId};
use crate::store::batch_outcome::applied_attempts;
use crate::store::created::earliest;
use crate::store::error::StoreError;
use crate::store::statements::Failing;
use crate::store::{BatchOutcome, Destination, Failure, Handoff, instances};

/// Moves each job to its table: timer, dead letter, or suspended, if a suspension covers the job by
/// now (protocol rule 27). A job that an operator has cancelled is deleted.
macro_rules! fail {
    ($cause:literal) => {
        concat!(
    $cause,
    "
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $4::boolean[], $5::bigint[], $6::integer[], $7::integer[],
        $8::text[], $9::text[], $10::timestamptz[], $11::timestamptz[])
        AS g(job_id, held_fence, dead, delay_ms, retries_left, failed, message, stack, since, until)
), held AS (
    DELETE FROM jobwire.job_lease l USING given g
    WHERE l.job_id = g.job_id AND l.fence = g.held_fence AND l.owner = $3
    RETURNING l.job_id, l.cancelled_at IS NOT NULL AS cancelled
), gone AS (
    DELETE FROM jobwire.job j USING held WHERE j.id = held.job_id RETURNING j.*
), moved AS MATERIALIZED (
    SELECT ",
    "id, seq, least(revision, 999999999) + 1 AS revision, kind, type, payload, process_instance, \
     execution, process_definition, element, tenant, category, deployment, priority, exclusive, \
     coalesce(g.retries_left, 0) AS retries, coalesce(g.failed, least(j.failures, 999999999) + 1) \
     AS failures, retry_policy, CASE WHEN g.dead THEN due_at \
     WHEN g.until IS NOT NULL THEN greatest(g.until, clock_timestamp()) \
     ELSE least(g.since, clock_timestamp()) + g.delay_ms * interval '1 millisecond' END AS due_at, \
     repeat, repeat_until, correlation_id, created_at, lane, origin, \
     coalesce(g.message, exception_message) AS exception_message, custom_values, \
     trace_parent, clock_timestamp() AS ready_at, greatest(hints, 1) AS hints, lane_named, g.dead, NOT ",
    not_put_aside!("j"),
    " AS put_aside
    FROM gone j JOIN given g ON g.job_id = j.id
    WHERE j.id NOT IN (SELECT job_id FROM held WHERE cancelled)
), forgotten AS (
    DELETE FROM jobwire.job_exception e USING held WHERE e.job_id = held.job_id AND held.cancelled
), left_off AS (
    DELETE FROM jobwire.job_progress p USING held WHERE p.job_id = held.job_id AND held.cancelled
), timer AS (
    INSERT INTO jobwire.timer_job (",
    moved_columns!(),
    ") SELECT ",
    moved_columns!(),
    " FROM moved WHERE NOT dead AND NOT put_aside
), aside AS (
    INSERT INTO jobwire.suspended_job (",
    moved_columns!(),
    ") SELECT ",
    moved_columns!(),
    " FROM moved WHERE NOT dead AND put_aside
), letter AS (
    INSERT INTO jobwire.dead_letter_job (",
    moved_columns!(),
    ") SELECT ",
    moved_columns!(),
    " FROM moved WHERE dead
), stacks AS (
    INSERT INTO jobwire.job_exception AS e (job_id, stack)
    SELECT g.job_id, g.stack FROM given g JOIN moved m ON m.id = g.job_id WHERE g.stack IS NOT NULL
    ON CONFLICT (job_id) DO UPDATE SET stack = excluded.stack, written_at = clock_timestamp()
)
SELECT id, CASE WHEN NOT dead AND NOT put_aside THEN due_at END, NOT dead AND put_aside, false FROM moved
UNION ALL SELECT id, NULL, false, true FROM gone WHERE id IN (SELECT job_id FROM held WHERE cancelled)"
        )
    };
}

/// The comments tell the triggers of the event stream whether the jobs have failed (`event_cause` in
/// migration 0012).
const FAIL: &str = fail!("/* jobwire: failed */");
const SNOOZE: &str = fail!("/* jobwire: snoozed */");

/// Keeps suspensions from ending before this transaction, so that their end brings back the jobs
/// that this transaction has suspended.
const KEEP_SUSPENSIONS: &str = "SELECT FROM jobwire.suspension ORDER BY scope, value FOR KEY SHARE";

/// Moves the jobs back whose suspension has ended meanwhile.
const BACK_TO_TIMERS: &str = concat!(
    "
WITH back AS (
    DELETE FROM jobwire.suspended_job j WHERE j.id = ANY($1) AND ",
    not_put_aside!("j"),
    "
    RETURNING j.*
)
INSERT INTO jobwire.timer_job (",
    moved_columns!(),
    ") SELECT ",
    moved_columns!(),
    " FROM back RETURNING due_at"
);

/// Moves these jobs. Returns the id, the due date of a timer, whether the job is suspended, and whether
/// it was cancelled.
async fn move_failed(
    connection: &mut PgConnection,
    statement: &'static str,
    owner: NodeId,
    failed: &[&Failure],
) -> Result<Vec<PgRow>, StoreError> {
    let (ids, fences) = guards(failed.iter().map(|f| &f.held));
    let mut dead = Vec::with_capacity(failed.len());
    let (mut delays, mut retries, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    let mut since: Vec<Option<DateTime<Utc>>> = Vec::with_capacity(failed.len());
    let mut until: Vec<Option<DateTime<Utc>>> = Vec::with_capacity(failed.len());
    for failure in failed {
        let (delay, date, at) = match &failure.to {
            Destination::Retry { delay, since, .. } => {
                let delay = i64::try_from(delay.as_millis()).unwrap_or(LONGEST);
                (delay.min(LONGEST), *since, None)
            }
            Destination::RetryAt { due_at, .. } => (0, None, Some(*due_at)),
            Destination::DeadLetter => (0, None, None),
        };
        let counts = match failure.to {
            Destination::Retry {
                retries, failures, ..
            }
            | Destination::RetryAt {
                retries, failures, ..
            } => Some((retries, failures)),
            Destination::DeadLetter => None,
        };
        dead.push(counts.is_none());
        delays.push(delay);
        retries.push(counts.map(|(left, _)| left));
        failures.push(counts.map(|(_, count)| count));
        since.push(date);
        until.push(at);
    }
    let messages: Vec<Option<&str>> = failed.iter().map(|f| f.message.as_deref()).collect();
    let stacks: Vec<Option<&str>> = failed.iter().map(|f| f.stack.as_deref()).collect();
    let query = sqlx::query(statement)
        .bind(ids)
        .bind(fences)
        .bind(owner.0)
        .bind(dead)
        .bind(delays)
        .bind(retries)
        .bind(failures)
        .bind(messages)
        .bind(stacks)
        .bind(since)
        .bind(until);
    Ok(query.fetch_all(connection).await?)
}

impl Failing for PgStore {
    async fn fail_batch(
        &self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> Result<BatchOutcome, StoreError> {
        let names = instances(failed.iter().map(|f| &f.held));
        crash_point!("failure-unwritten");
        let mut tx = begin_impatiently(&self.pool).await?;
        let holders = complete::enter_held(&mut tx, &names).await?;
        let mut rows = Vec::with_capacity(failed.len());
        for (statement, snoozes) in [(FAIL, false), (SNOOZE, true)] {
            let these: Vec<&Failure> = failed.iter().filter(|f| f.is_snooze() == snoozes).collect();
            if !these.is_empty() {
                rows.extend(move_failed(&mut tx, statement, owner, &these).await?);
            }
        }
        let mut settled = BatchOutcome::default();
        let mut put_aside = Vec::new();
        for row in &rows {
            let id: Uuid = row.try_get(0)?;
            settled.applied.push(JobId(id));
            let due: Option<DateTime<Utc>> = row.try_get(1)?;
            settled.timer = earliest(settled.timer, due);
            if row.try_get(2)? {
                put_aside.push(id);
            }
            if row.try_get(3)? {
                settled.cancelled.push(JobId(id));
            }
        }
        if !put_aside.is_empty() {
            sqlx::query(KEEP_SUSPENSIONS).execute(&mut *tx).await?;
            let back: Vec<DateTime<Utc>> = sqlx::query_scalar(BACK_TO_TIMERS)
                .bind(put_aside)
                .fetch_all(&mut *tx)
                .await?;
            settled.timer = earliest(settled.timer, back.into_iter().min());
        }
        let recorded = failed.iter().filter_map(Failure::recorded);
        let recorded = applied_attempts(recorded, &settled);
        attempts::record_failed(&mut tx, owner, &recorded).await?;
        let held = failed.iter().map(|f| &f.held);
        complete::pass_on(&mut tx, held, &holders, then, &mut settled).await?;
        crash_point!("failure-uncommitted");
        tx.commit().await?;
        crash_point!("failure-committed");
        Ok(settled)
    }
}
