//! Changes of jobs by an operator.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::time::Instant;
use uuid::Uuid;

use super::begin::begin;
use super::connection_pool::ConnectionPool;
use super::sql::{
    lane_by_rule, moved_columns, not_put_aside, not_suspended, ready_columns, unlocked,
};
use super::{PgStore, decode, exclusive};
use crate::job::{JobId, JobState};
use crate::store::change::Change;
use crate::store::created::earliest;
use crate::store::error::StoreError;
use crate::store::statements::Changing;
use crate::store::{Operated, OperatedJobs};

/// Locks the executable rows that no other transaction has locked. A later statement checks the
/// leases, so that it sees a lock that was taken while this one ran.
const ENTER: &str = "
SELECT id FROM jobwire.job WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED";

/// Removes the entered jobs without a lock from the executable table. A lease without an owner is
/// deleted with its job.
macro_rules! executable_gone {
    () => {
        concat!(
            "executable AS (
    DELETE FROM jobwire.job j WHERE j.id = ANY($2) AND ",
            unlocked!("j"),
            " RETURNING j.*
), ownerless AS (
    DELETE FROM jobwire.job_lease l USING executable e WHERE l.job_id = e.id
)"
        )
    };
}

/// Removes the given jobs from another table, unless another transaction has locked their rows.
macro_rules! gone {
    ($name:literal, $table:literal) => {
        concat!(
            $name,
            " AS (DELETE FROM jobwire.",
            $table,
            " WHERE id IN (SELECT id FROM jobwire.",
            $table,
            " WHERE id = ANY($1) FOR UPDATE SKIP LOCKED) RETURNING *)"
        )
    };
}

/// Changes the given rows of another table in place.
macro_rules! set {
    ($name:literal, $table:literal, $set:expr) => {
        concat!(
            $name,
            " AS (UPDATE jobwire.",
            $table,
            " t SET ",
            $set,
            ", revision = least(t.revision, 999999999) + 1 WHERE t.id IN (SELECT id FROM jobwire.",
            $table,
            " WHERE id = ANY($1) FOR UPDATE SKIP LOCKED) RETURNING t.*)"
        )
    };
}

/// A row that moves: its columns with these values of `retries`, `due_at` and `exception_message`.
macro_rules! moved_row {
    ($retries:literal, $due_at:literal, $message:literal) => {
        concat!(
            "id, seq, least(revision, 999999999) + 1, kind, type, payload, process_instance, execution, \
             process_definition, element, tenant, category, deployment, priority, exclusive, ",
            $retries,
            ", failures, retry_policy, ",
            $due_at,
            ", repeat, repeat_until, correlation_id, created_at, lane, origin, ",
            $message,
            ", custom_values, trace_parent, ready_at, hints, lane_named"
        )
    };
}

/// A row that becomes executable.
macro_rules! ready_row {
    () => {
        "id, seq, least(revision, 999999999) + 1, kind, type, payload, process_instance, execution, \
         process_definition, element, tenant, category, deployment, priority, exclusive, retries, \
         failures, retry_policy, due_at, repeat, repeat_until, correlation_id, created_at, lane, \
         origin, exception_message, custom_values, trace_parent, clock_timestamp(), \
         least(hints, 999999999) + 1, lane_named"
    };
}

/// The result for one source: the job, whether it became ready, the instance that it left, and the
/// due date of a timer.
macro_rules! result {
    ($from:literal, ready) => {
        concat!(
            "SELECT ",
            ready_columns!(),
            ", true, NULL::text, NULL::timestamptz FROM ",
            $from
        )
    };
    ($from:literal, left, $due:literal) => {
        concat!(
            "SELECT ",
            ready_columns!(),
            ", false, CASE WHEN exclusive THEN process_instance END, ",
            $due,
            " FROM ",
            $from
        )
    };
    ($from:literal, stays, $due:literal) => {
        concat!(
            "SELECT ",
            ready_columns!(),
            ", false, NULL, ",
            $due,
            " FROM ",
            $from
        )
    };
}

const MAKE_EXECUTABLE: &str = concat!(
    "WITH ",
    gone!("timer", "timer_job"),
    ", moved AS (
    INSERT INTO jobwire.job (",
    moved_columns!(),
    ") SELECT ",
    ready_row!(),
    " FROM timer WHERE id <> ALL($2)
    RETURNING ",
    ready_columns!(),
    "
) ",
    result!("moved", ready)
);

const RESCHEDULE: &str = concat!(
    "WITH ",
    executable_gone!(),
    ", moved AS (
    INSERT INTO jobwire.timer_job (",
    moved_columns!(),
    ") SELECT ",
    moved_row!("retries", "$3", "exception_message"),
    " FROM executable
), ",
    set!("timer", "timer_job", "due_at = $3"),
    ", ",
    set!("suspended", "suspended_job", "due_at = $3"),
    "
",
    result!("executable", left, "$3"),
    "
UNION ALL ",
    result!("timer", stays, "$3"),
    "
UNION ALL ",
    result!("suspended", stays, "NULL")
);

const SUSPEND: &str = concat!(
    "WITH ",
    executable_gone!(),
    ", ",
    gone!("timer", "timer_job"),
    ", moved AS (
    INSERT INTO jobwire.suspended_job (",
    moved_columns!(),
    ")
    SELECT ",
    moved_row!("retries", "due_at", "exception_message"),
    " FROM executable
    UNION ALL SELECT ",
    moved_row!("retries", "due_at", "exception_message"),
    " FROM timer
)
",
    result!("executable", left, "NULL::timestamptz"),
    "
UNION ALL ",
    result!("timer", stays, "NULL")
);

/// Leaves the jobs that a suspension covers. A suspension that begins at the same time gates the
/// jobs that become executable.
const ACTIVATE: &str = concat!(
    "WITH back AS (
    DELETE FROM jobwire.suspended_job j
    WHERE j.id IN (SELECT id FROM jobwire.suspended_job WHERE id = ANY($1) FOR UPDATE SKIP LOCKED)
        AND j.id <> ALL($2) AND ",
    not_put_aside!("j"),
    " RETURNING j.*
), timer AS (
    INSERT INTO jobwire.timer_job (",
    moved_columns!(),
    ")
    SELECT ",
    moved_row!("retries", "due_at", "exception_message"),
    " FROM back WHERE due_at > statement_timestamp()
    RETURNING ",
    ready_columns!(),
    ", due_at
), moved AS (
    INSERT INTO jobwire.job (",
    moved_columns!(),
    ")
    SELECT ",
    ready_row!(),
    " FROM back WHERE due_at IS NULL OR due_at <= statement_timestamp()
    RETURNING ",
    ready_columns!(),
    "
)
",
    result!("moved", ready),
    "
UNION ALL ",
    result!("timer", stays, "due_at")
);

const MAKE_DEAD_LETTER: &str = concat!(
    "WITH ",
    executable_gone!(),
    ", ",
    gone!("timer", "timer_job"),
    ", ",
    gone!("suspended", "suspended_job"),
    ", moved AS (
    INSERT INTO jobwire.dead_letter_job (",
    moved_columns!(),
    ")
    SELECT ",
    moved_row!("0", "due_at", "$3"),
    " FROM executable
    UNION ALL SELECT ",
    moved_row!("0", "due_at", "$3"),
    " FROM timer
    UNION ALL SELECT ",
    moved_row!("0", "due_at", "$3"),
    " FROM suspended
)
",
    result!("executable", left, "NULL::timestamptz"),
    "
UNION ALL ",
    result!("timer", stays, "NULL"),
    "
UNION ALL ",
    result!("suspended", stays, "NULL")
);

const SET_RETRIES: &str = concat!(
    "WITH executable AS (
    UPDATE jobwire.job j SET retries = $3, revision = least(j.revision, 999999999) + 1
    WHERE j.id = ANY($2) AND ",
    unlocked!("j"),
    " RETURNING j.*
), ",
    set!("timer", "timer_job", "retries = $3"),
    ", ",
    set!("suspended", "suspended_job", "retries = $3"),
    "
",
    result!("executable", stays, "NULL::timestamptz"),
    "
UNION ALL ",
    result!("timer", stays, "NULL"),
    "
UNION ALL ",
    result!("suspended", stays, "NULL")
);

/// The lane of a job with the new priority, if the rules chose its lane.
macro_rules! its_lane {
    ($t:literal, $type:literal, $category:literal, $tenant:literal) => {
        concat!(
            "CASE WHEN ",
            $t,
            ".lane_named = false THEN coalesce(",
            lane_by_rule!("jobwire.lane_rule", $type, $category, $tenant, "$3"),
            ", 'default') ELSE ",
            $t,
            ".lane END"
        )
    };
}

/// Sets the priority of rows of a table that have no hints.
macro_rules! set_priority {
    ($name:literal, $table:literal) => {
        set!(
            $name,
            $table,
            concat!(
                "priority = $3, lane = ",
                its_lane!("t", "t.type", "t.category", "t.tenant")
            )
        )
    };
}

/// A job that changes its lane becomes ready there. Of an instance, only the first ready sibling is
/// hinted.
const SET_PRIORITY: &str = concat!(
    "WITH places AS MATERIALIZED (
    SELECT j.id, ",
    its_lane!("j", "j.type", "j.category", "j.tenant"),
    " AS its_lane FROM jobwire.job j WHERE j.id = ANY($2)
), executable AS (
    UPDATE jobwire.job j SET priority = $3, lane = p.its_lane, revision = least(j.revision, 999999999) + 1,
        ready_at = CASE WHEN j.lane = p.its_lane THEN j.ready_at ELSE clock_timestamp() END,
        hints = CASE WHEN j.lane = p.its_lane THEN j.hints ELSE least(j.hints, 999999999) + 1 END
    FROM places p WHERE p.id = j.id AND ",
    unlocked!("j"),
    "
    RETURNING ",
    ready_columns!("j"),
    ", j.seq
), ",
    set_priority!("timer", "timer_job"),
    ", ",
    set_priority!("suspended", "suspended_job"),
    ", ",
    set_priority!("letter", "dead_letter_job"),
    "
SELECT x.id, x.lane, x.exclusive, x.process_instance, x.trace_parent, x.type,
    was.lane <> x.lane AND ",
    not_suspended!("was"),
    " AND (NOT x.exclusive OR NOT EXISTS (
        SELECT FROM jobwire.job e
        WHERE e.exclusive AND e.process_instance = x.process_instance AND e.seq < x.seq AND ",
    not_put_aside!("e"),
    ")), NULL::text, NULL::timestamptz
FROM executable x JOIN jobwire.job was ON was.id = x.id
UNION ALL ",
    result!("timer", stays, "NULL"),
    "
UNION ALL ",
    result!("suspended", stays, "NULL"),
    "
UNION ALL ",
    result!("letter", stays, "NULL")
);

/// Selects the tables of the jobs that were not changed, and whether a suspension covers them.
const STILL: &str = concat!(
    "
SELECT id, 'executable', false FROM jobwire.job WHERE id = ANY($1)
UNION ALL SELECT id, 'timer', false FROM jobwire.timer_job WHERE id = ANY($1)
UNION ALL SELECT j.id, 'suspended', NOT ",
    not_put_aside!("j"),
    " FROM jobwire.suspended_job j WHERE j.id = ANY($1)
UNION ALL SELECT id, 'dead-letter', false FROM jobwire.dead_letter_job WHERE id = ANY($1)"
);

/// The time for which a change waits for locked rows, and the pause between two attempts.
const ROWS_WITHIN: Duration = Duration::from_secs(2);
const ROWS_AGAIN: Duration = Duration::from_millis(50);
const LOCKED: &str = "another transaction locks the row of this job; end it, or try again";

/// Changes the jobs whose rows are free, and tries the others again for [`ROWS_WITHIN`].
async fn change(
    pool: &ConnectionPool,
    ids: &[JobId],
    change: &Change,
) -> Result<OperatedJobs, StoreError> {
    let mut asked: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    asked.sort_unstable();
    asked.dedup();
    let mut changed = OperatedJobs::default();
    let until = Instant::now() + ROWS_WITHIN;
    while !asked.is_empty() {
        if let Err(error) = change_free(pool, &mut asked, change, &mut changed).await {
            // The jobs that are changed already need their hints.
            if changed.operated.is_empty() {
                return Err(error);
            }
            let unknown = asked.into_iter().map(|id| (JobId(id), error.to_string()));
            changed.refused.extend(unknown);
            break;
        }
        if asked.is_empty() {
            break;
        }
        if Instant::now() >= until {
            let locked = asked.into_iter().map(|id| (JobId(id), LOCKED.to_owned()));
            changed.refused.extend(locked);
            break;
        }
        tokio::time::sleep(ROWS_AGAIN).await;
    }
    Ok(changed)
}

/// Changes those of the jobs whose rows are free in one transaction, and leaves the others in
/// `asked`.
async fn change_free(
    pool: &ConnectionPool,
    asked: &mut Vec<Uuid>,
    change: &Change,
    changed: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let mut tx = begin(pool).await?;
    let entered: Vec<Uuid> = sqlx::query_scalar(ENTER)
        .bind(&*asked)
        .fetch_all(&mut *tx)
        .await?;
    let statement = match change {
        Change::MakeExecutable => MAKE_EXECUTABLE,
        Change::Reschedule(_) => RESCHEDULE,
        Change::Suspend => SUSPEND,
        Change::Activate => ACTIVATE,
        Change::MakeDeadLetter(_) => MAKE_DEAD_LETTER,
        Change::SetRetries(_) => SET_RETRIES,
        Change::SetPriority(_) => SET_PRIORITY,
    };
    let query = sqlx::query(statement).bind(&*asked).bind(&entered);
    let query = match change {
        Change::Reschedule(due) => query.bind(*due),
        Change::MakeDeadLetter(reason) => query.bind(Change::reason(reason)),
        Change::SetRetries(retries) => query.bind(*retries),
        Change::SetPriority(priority) => query.bind(*priority),
        Change::MakeExecutable | Change::Suspend | Change::Activate => query,
    };
    let rows = query.fetch_all(&mut *tx).await?;
    let mut round = OperatedJobs::default();
    let mut left = Vec::new();
    for row in &rows {
        left.extend(note(row, &mut round)?);
    }
    let done: HashSet<Uuid> = round.operated.iter().map(|(id, _)| id.0).collect();
    let mut rest: Vec<Uuid> = asked.clone();
    rest.retain(|id| !done.contains(id));
    if !rest.is_empty() {
        let still: Vec<(Uuid, String, bool)> = sqlx::query_as(STILL)
            .bind(&rest)
            .fetch_all(&mut *tx)
            .await?;
        let still: HashMap<Uuid, (String, bool)> = still
            .into_iter()
            .map(|(id, state, covered)| (id, (state, covered)))
            .collect();
        let entered: HashSet<Uuid> = entered.into_iter().collect();
        rest.retain(|id| {
            let why = match still.get(id) {
                None => Operated::NotFound,
                Some((state, covered)) => {
                    let applies = JobState::parse(state).is_some_and(|s| change.applies_to(s));
                    if !applies || *covered && *change == Change::Activate {
                        Operated::OtherState
                    } else if entered.contains(id) {
                        Operated::Running
                    } else {
                        return true;
                    }
                }
            };
            round.operated.push((JobId(*id), why));
            false
        });
    }
    tx.commit().await?;
    left.sort_unstable();
    left.dedup();
    round.ready.extend(exclusive::next_since(pool, &left).await);
    changed.operated.extend(round.operated);
    changed.ready.extend(round.ready);
    changed.timer = earliest(changed.timer, round.timer);
    *asked = rest;
    Ok(())
}

/// Adds a changed job to the result, and returns the instance that it has left.
fn note(row: &PgRow, changed: &mut OperatedJobs) -> Result<Option<String>, StoreError> {
    changed
        .operated
        .push((JobId(row.try_get(0)?), Operated::Done));
    if row.try_get(6)? {
        changed.ready.push(decode::ready(row)?);
    }
    let due: Option<DateTime<Utc>> = row.try_get(8)?;
    changed.timer = earliest(changed.timer, due);
    Ok(row.try_get(7)?)
}

impl Changing for PgStore {
    async fn change_jobs(&self, ids: &[JobId], asked: &Change) -> Result<OperatedJobs, StoreError> {
        change(&self.pool, ids, asked).await
    }
}
