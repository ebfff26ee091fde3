//! Changes of jobs by an operator.

use std::collections::{BTreeSet, HashMap};

use sqlx::{Row, Sqlite, SqliteConnection};

use super::event_stream::{self, Cause};
use super::sql::{is_put_aside, lane_by_rule, moved_columns, ready_columns, unlocked};
use super::{SqliteStore, decode, exclusive, lanes};
use crate::job::{JobId, JobState};
use crate::store::change::Change;
use crate::store::error::StoreError;
use crate::store::statements::Changing;
use crate::store::{Operated, OperatedJobs};

/// Selects the state of each job, and whether a lock or a suspension keeps it.
const STATES: &str = concat!(
    "
SELECT j.id, 'executable', NOT ", unlocked!("j"), " FROM job j WHERE j.id IN (SELECT value FROM json_each(?1))
UNION ALL SELECT id, 'timer', 0 FROM timer_job WHERE id IN (SELECT value FROM json_each(?1))
UNION ALL SELECT j.id, 'suspended', ", is_put_aside!("j"), " FROM suspended_job j WHERE j.id IN (SELECT value FROM json_each(?1))
UNION ALL SELECT id, 'dead-letter', 0 FROM dead_letter_job WHERE id IN (SELECT value FROM json_each(?1))"
);

/// Selects the instances that exclusive jobs leave with the executable table.
const LEFT: &str = "
SELECT DISTINCT process_instance FROM job WHERE exclusive AND id IN (SELECT value FROM json_each(?1))";

macro_rules! delete {
    ($table:literal, $key:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE ",
            $key,
            " IN (SELECT value FROM json_each(?1))"
        )
    };
}

macro_rules! set {
    ($table:literal, $set:literal) => {
        concat!(
            "UPDATE ",
            $table,
            " SET ",
            $set,
            ", revision = min(revision, 999999999) + 1 WHERE id IN (SELECT value FROM json_each(?1))"
        )
    };
}

/// Copies jobs from one table to another, with these values of `retries`, `due_at` and
/// `exception_message`. `?2` is the time.
macro_rules! copy {
    ($from:literal, $into:literal, $retries:literal, $due_at:literal, $message:literal) => {
        concat!(
            "INSERT INTO ", $into, " (", moved_columns!(), ")
SELECT id, seq, min(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
    category, deployment, priority, exclusive, ", $retries, ", failures, retry_policy, ", $due_at, ", repeat, repeat_until,
    correlation_id, created_at, lane, origin, ", $message, ", custom_values, trace_parent, ready_at, hints,
    lane_named
FROM ", $from, " WHERE id IN (SELECT value FROM json_each(?1))"
        )
    };
}

/// Copies jobs into the executable table.
macro_rules! make_ready {
    ($from:literal, $where:literal) => {
        concat!(
            "INSERT INTO job (", moved_columns!(), ")
SELECT id, seq, min(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
    category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
    correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, ?2,
    min(hints, 999999999) + 1, lane_named
FROM ", $from, " WHERE id IN (SELECT value FROM json_each(?1))", $where, " RETURNING ", ready_columns!(), ", seq"
        )
    };
}

/// Deletes the jobs from the executable table, with their leases without an owner.
const GONE: [&str; 2] = [delete!("job", "id"), delete!("job_lease", "job_id")];

const MAKE_EXECUTABLE: &[&str] = &[make_ready!("timer_job", ""), delete!("timer_job", "id")];

/// Changes the waiting jobs first: the executable ones become timers.
const RESCHEDULE: &[&str] = &[
    set!("timer_job", "due_at = ?3"),
    set!("suspended_job", "due_at = ?3"),
    copy!("job", "timer_job", "retries", "?3", "exception_message"),
    GONE[0],
    GONE[1],
];

const SUSPEND: &[&str] = &[
    copy!(
        "job",
        "suspended_job",
        "retries",
        "due_at",
        "exception_message"
    ),
    copy!(
        "timer_job",
        "suspended_job",
        "retries",
        "due_at",
        "exception_message"
    ),
    GONE[0],
    GONE[1],
    delete!("timer_job", "id"),
];

const ACTIVATE: &[&str] = &[
    concat!(
        copy!(
            "suspended_job",
            "timer_job",
            "retries",
            "due_at",
            "exception_message"
        ),
        " AND due_at > ?2"
    ),
    make_ready!("suspended_job", " AND coalesce(due_at, 0) <= ?2"),
    delete!("suspended_job", "id"),
];

const MAKE_DEAD_LETTER: &[&str] = &[
    copy!("job", "dead_letter_job", "0", "due_at", "?3"),
    copy!("timer_job", "dead_letter_job", "0", "due_at", "?3"),
    copy!("suspended_job", "dead_letter_job", "0", "due_at", "?3"),
    GONE[0],
    GONE[1],
    delete!("timer_job", "id"),
    delete!("suspended_job", "id"),
];

const SET_RETRIES: &[&str] = &[
    set!("job", "retries = ?3"),
    set!("timer_job", "retries = ?3"),
    set!("suspended_job", "retries = ?3"),
];

/// The lane that the rules choose for a job of this table.
macro_rules! its_lane {
    ($table:literal) => {
        concat!(
            "coalesce(",
            lane_by_rule!(
                "lane_rule",
                concat!($table, ".type"),
                concat!($table, ".category"),
                concat!($table, ".tenant"),
                "?3"
            ),
            ", 'default')"
        )
    };
}

/// Sets the priority of rows of a table, and the lane of those that have one by the rules.
macro_rules! set_priority {
    ($table:literal) => {
        concat!(
            "UPDATE ",
            $table,
            " SET priority = ?3, lane = CASE lane_named WHEN 0 THEN ",
            its_lane!($table),
            " ELSE lane END, revision = min(revision, 999999999) + 1 \
             WHERE id IN (SELECT value FROM json_each(?1))"
        )
    };
}

/// The jobs that change their lane become ready first, while they have their old lane and priority. If
/// nodes take ranges of priorities, so do those that stay in their lane: the node that takes the new
/// priority may have refused their hints. `?2` is the time. Returns their ids.
const READY_AGAIN: &str = concat!(
    "UPDATE job SET ready_at = ?2, hints = min(hints, 999999999) + 1
WHERE id IN (SELECT value FROM json_each(?1)) AND (lane_named = 0 AND lane <> ",
    its_lane!("job"),
    " OR priority <> ?3 AND EXISTS (
        SELECT 1 FROM node WHERE min_priority IS NOT NULL OR max_priority IS NOT NULL)) RETURNING id"
);

const SET_PRIORITY: &[&str] = &[
    set_priority!("job"),
    set_priority!("timer_job"),
    set_priority!("suspended_job"),
    set_priority!("dead_letter_job"),
];

const NEXT_DUE: &str =
    "SELECT min(due_at) FROM timer_job WHERE id IN (SELECT value FROM json_each(?1))";

fn statements(change: &Change) -> &'static [&'static str] {
    match change {
        Change::MakeExecutable => MAKE_EXECUTABLE,
        Change::Reschedule(_) => RESCHEDULE,
        Change::Suspend => SUSPEND,
        Change::Activate => ACTIVATE,
        Change::MakeDeadLetter(_) => MAKE_DEAD_LETTER,
        Change::SetRetries(_) => SET_RETRIES,
        Change::SetPriority(_) => SET_PRIORITY,
    }
}

/// Returns the cause of a change, for the event stream.
fn cause(change: &Change) -> Option<Cause> {
    match change {
        Change::MakeExecutable => Some(Cause::Retried),
        Change::Reschedule(_) => Some(Cause::Rescheduled),
        Change::Suspend => Some(Cause::Suspended),
        Change::MakeDeadLetter(_) => Some(Cause::SetAside),
        Change::Activate | Change::SetRetries(_) | Change::SetPriority(_) => None,
    }
}

type Query = sqlx::query::Query<'static, Sqlite, sqlx::sqlite::SqliteArguments>;

/// Binds the value of the change, if it has one.
fn with_value(query: Query, change: &Change) -> Query {
    match change {
        Change::Reschedule(due) => query.bind(decode::micros(*due)),
        Change::MakeDeadLetter(reason) => query.bind(Change::reason(reason).to_owned()),
        Change::SetRetries(retries) => query.bind(*retries),
        Change::SetPriority(priority) => query.bind(*priority),
        Change::MakeExecutable | Change::Suspend | Change::Activate => query,
    }
}

/// Changes the jobs that no node runs.
pub(super) async fn change(
    connection: &mut SqliteConnection,
    ids: &[JobId],
    change: &Change,
) -> Result<OperatedJobs, StoreError> {
    let asked: BTreeSet<JobId> = ids.iter().copied().collect();
    let mut states = HashMap::new();
    let rows = sqlx::query(STATES)
        .bind(decode::array(&asked)?)
        .fetch_all(&mut *connection)
        .await?;
    for (id, row) in decode::job_ids(&rows)?.into_iter().zip(&rows) {
        let state = decode::text(row, 1)?;
        let applies = JobState::parse(&state).is_some_and(|state| change.applies_to(state));
        let kept: bool = row.try_get(2)?;
        let result = match (applies, kept, state.as_str()) {
            (true, true, "executable") => Operated::Running,
            (true, true, _) if *change == Change::Activate => Operated::OtherState,
            (true, ..) => Operated::Done,
            (false, ..) => Operated::OtherState,
        };
        states.insert(id, result);
    }
    let mut changed = OperatedJobs::default();
    let result = |id: &JobId| states.get(id).copied().unwrap_or(Operated::NotFound);
    let operated = asked.iter().map(|id| (*id, result(id)));
    changed.operated.extend(operated);
    let these = decode::array(asked.iter().filter(|id| result(id) == Operated::Done))?;
    let now = decode::now_micros();
    let leaves = change.applies_to(JobState::Executable) && !change.keeps_the_table();
    let left: Vec<String> = if leaves {
        let left = sqlx::query(LEFT).bind(&these);
        decode::instances(&left.fetch_all(&mut *connection).await?)
    } else {
        Vec::new()
    };
    let again: Vec<JobId> = if let Change::SetPriority(priority) = change {
        let again = sqlx::query(READY_AGAIN)
            .bind(these.clone())
            .bind(now)
            .bind(*priority);
        decode::job_ids(&again.fetch_all(&mut *connection).await?)?
    } else {
        Vec::new()
    };
    let cause = cause(change);
    if let Some(cause) = cause {
        event_stream::begin_cause(connection, cause).await?;
    }
    for statement in statements(change) {
        let query = sqlx::query(*statement).bind(these.clone()).bind(now);
        let rows = with_value(query, change)
            .fetch_all(&mut *connection)
            .await?;
        changed.ready.extend(decode::ready_in_order(&rows)?);
    }
    if cause.is_some() {
        event_stream::end_cause(connection).await?;
    }
    if !again.is_empty() {
        changed.ready = lanes::to_hint(connection, &again).await?;
    }
    if matches!(change, Change::Reschedule(_) | Change::Activate) {
        let next: Option<i64> = sqlx::query_scalar(NEXT_DUE)
            .bind(&these)
            .fetch_one(&mut *connection)
            .await?;
        changed.timer = decode::maybe_moment(next)?;
    }
    if !left.is_empty() {
        changed
            .ready
            .extend(exclusive::next(connection, &left).await?);
    }
    Ok(changed)
}

impl Changing for SqliteStore {
    async fn change_jobs(&self, ids: &[JobId], asked: &Change) -> Result<OperatedJobs, StoreError> {
        let mut tx = self.write().await?;
        let changed = change(&mut tx, ids, asked).await?;
        tx.commit().await?;
        Ok(changed)
    }
}
