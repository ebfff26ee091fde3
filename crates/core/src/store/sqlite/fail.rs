//! Failures: jobs move from the executable table to the table in which they wait.

use std::collections::HashSet;

use serde::Serialize;
use sqlx::{Row, SqliteConnection};

use super::event_stream::{self, Cause};
use super::sql::{is_put_aside, moved_columns};
use super::{SqliteStore, attempts, complete, decode};
use crate::job::{JobId, NodeId};
use crate::store::batch_outcome::applied_attempts;
use crate::store::error::StoreError;
use crate::store::statements::Failing;
use crate::store::{BatchOutcome, Destination, Failure, Handoff};

/// A failure in the form that the statements read.
#[derive(Serialize)]
struct Given<'a> {
    id: JobId,
    due: Option<i64>,
    retries: i32,
    /// The new count of failures; `None` adds one to the current count.
    failures: Option<i32>,
    message: Option<&'a str>,
    stack: Option<&'a str>,
}

/// Returns the statement for one destination. A job that was suspended meanwhile moves to the
/// suspended table instead of waiting for its next attempt (protocol rule 27); a dead letter stays
/// one.
macro_rules! move_into {
    ($table:literal, $which:expr) => {
        concat!(
            "INSERT INTO ",
            $table,
            " (",
            moved_columns!(),
            ")
SELECT id, seq, min(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
    category, deployment, priority, exclusive, given ->> 'retries', coalesce(given ->> 'failures', min(failures, 999999999) + 1),
    retry_policy, coalesce(given ->> 'due', due_at), repeat, repeat_until, correlation_id, created_at, lane, origin,
    coalesce(given ->> 'message', exception_message), custom_values, trace_parent, ?2, max(hints, 1),
    lane_named
FROM (SELECT value AS given FROM json_each(?1)) CROSS JOIN job j ON j.id = given ->> 'id'
WHERE given ->> 'due' IS ",
            $which
        )
    };
}

const WAIT: &str = concat!(
    move_into!("timer_job", "NOT NULL AND NOT "),
    is_put_aside!("j"),
    " RETURNING due_at"
);
const PUT_ASIDE: &str = concat!(
    move_into!("suspended_job", "NOT NULL AND "),
    is_put_aside!("j")
);
const BURY: &str = move_into!("dead_letter_job", "NULL");

const STACKS: &str = "
INSERT INTO job_exception (job_id, stack, written_at)
SELECT value ->> 'id', value ->> 'stack', ?2 FROM json_each(?1) WHERE value ->> 'stack' IS NOT NULL
ON CONFLICT (job_id) DO UPDATE SET stack = excluded.stack, written_at = excluded.written_at";

impl Failing for SqliteStore {
    async fn fail_batch(
        &self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> Result<BatchOutcome, StoreError> {
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let held = failed.iter().map(|f| &f.held);
        let (finished, cancelled) = complete::finish(&mut tx, owner, held).await?;
        let mut settled = BatchOutcome::default();
        if !finished.is_empty() {
            settled.timer = decode::maybe_moment(
                move_failed(&mut tx, now, failed, &finished, &cancelled).await?,
            )?;
            settled.applied = complete::delete(&mut tx, &finished).await?;
            complete::forget(&mut tx, &cancelled).await?;
            settled.cancelled = cancelled;
        }
        let recorded = failed.iter().filter_map(Failure::recorded);
        let recorded = applied_attempts(recorded, &settled);
        attempts::record(&mut tx, owner, now, &recorded).await?;
        let held = failed.iter().map(|f| &f.held);
        complete::pass_on(&mut tx, now, held, then, &mut settled).await?;
        tx.commit().await?;
        Ok(settled)
    }
}

/// Copies the finished jobs into the tables in which they wait, except the cancelled ones. Returns the earliest due date
/// written.
async fn move_failed(
    connection: &mut SqliteConnection,
    now: i64,
    failed: &[Failure],
    finished: &[JobId],
    cancelled: &[JobId],
) -> Result<Option<i64>, StoreError> {
    let mut finished: HashSet<&JobId> = finished.iter().collect();
    for id in cancelled {
        finished.remove(id);
    }
    let mut seen = HashSet::with_capacity(failed.len());
    let (snoozes, failures): (Vec<&Failure>, Vec<&Failure>) = failed
        .iter()
        .filter(|f| finished.contains(&f.held.id) && seen.insert(f.held.id))
        .partition(|f| f.is_snooze());
    let mut earliest = None;
    if !failures.is_empty() {
        earliest = move_given(connection, now, &failures).await?;
    }
    if !snoozes.is_empty() {
        event_stream::begin_cause(connection, Cause::Snoozed).await?;
        let first = move_given(connection, now, &snoozes).await?;
        event_stream::end_cause(connection).await?;
        earliest = earliest.into_iter().chain(first).min();
    }
    Ok(earliest)
}

/// Copies these jobs.
async fn move_given(
    connection: &mut SqliteConnection,
    now: i64,
    failed: &[&Failure],
) -> Result<Option<i64>, StoreError> {
    let given = decode::array(failed.iter().map(|failure| given(failure, now)))?;
    let waiting = sqlx::query(WAIT)
        .bind(&given)
        .bind(now)
        .fetch_all(&mut *connection)
        .await?;
    for statement in [PUT_ASIDE, BURY, STACKS] {
        sqlx::query(statement)
            .bind(&given)
            .bind(now)
            .execute(&mut *connection)
            .await?;
    }
    let mut earliest: Option<i64> = None;
    for row in &waiting {
        let due: i64 = row.try_get(0)?;
        earliest = Some(earliest.map_or(due, |e| e.min(due)));
    }
    Ok(earliest)
}

fn given(failure: &Failure, now: i64) -> Given<'_> {
    let (due, retries, failures) = match &failure.to {
        Destination::Retry {
            delay,
            since,
            retries,
            failures,
        } => {
            let from = since.map_or(now, |date| date.timestamp_micros().min(now));
            (Some(decode::later(from, *delay)), *retries, Some(*failures))
        }
        Destination::RetryAt {
            due_at,
            retries,
            failures,
        } => (
            Some(decode::micros(*due_at).max(now)),
            *retries,
            Some(*failures),
        ),
        Destination::DeadLetter => (None, 0, None),
    };
    Given {
        id: failure.held.id,
        due,
        retries,
        failures,
        message: failure.message.as_deref(),
        stack: failure.stack.as_deref(),
    }
}
