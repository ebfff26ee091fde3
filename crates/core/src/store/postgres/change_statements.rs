//! The statements of an operator's changes. `$1` are the jobs, and `$2` those of the executable table
//! whose rows are locked. `$3` is the value of the change, if it has one.
//! A comment at the start is for the event stream (`event_cause` in migration 0012).

use super::sql::{
    lane_by_rule, moved_columns, not_put_aside, not_suspended, ready_columns, unlocked,
};

/// Locks the rows of executable jobs that do not run, unless another transaction has locked them. The
/// row of a running job is not locked: its completion would wait for this transaction. A later statement
/// checks the leases again, because a job may be locked while this one runs. No row is waited for: two
/// batches that wait for each other's rows are a deadlock.
pub(super) const ENTER: &str = concat!(
    "SELECT j.id FROM jobwire.job j WHERE j.id = ANY($1) AND ",
    unlocked!("j"),
    " ORDER BY j.id FOR UPDATE OF j SKIP LOCKED"
);

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

/// A row that moves: its columns with these values of `retries`, `due_at` and `exception_message`,
/// and of `ready_at` and `hints`.
macro_rules! moved_row {
    ($retries:literal, $due_at:literal, $message:literal) => {
        moved_row!($retries, $due_at, $message, "ready_at", "hints")
    };
    ($retries:literal, $due_at:literal, $message:literal, $ready_at:literal, $hints:literal) => {
        concat!(
            "id, seq, least(revision, 999999999) + 1, kind, type, payload, process_instance, execution, \
             process_definition, element, tenant, category, deployment, priority, exclusive, ",
            $retries,
            ", failures, retry_policy, ",
            $due_at,
            ", repeat, repeat_until, correlation_id, created_at, lane, origin, ",
            $message,
            ", custom_values, trace_parent, ",
            $ready_at,
            ", ",
            $hints,
            ", lane_named"
        )
    };
}

/// A row that becomes executable.
macro_rules! ready_row {
    () => {
        moved_row!(
            "retries",
            "due_at",
            "exception_message",
            "clock_timestamp()",
            "least(hints, 999999999) + 1"
        )
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

pub(super) const MAKE_EXECUTABLE: &str = concat!(
    "/* jobwire: retried */ WITH ",
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

pub(super) const RESCHEDULE: &str = concat!(
    "/* jobwire: rescheduled */ WITH ",
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

pub(super) const SUSPEND: &str = concat!(
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
pub(super) const ACTIVATE: &str = concat!(
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

pub(super) const MAKE_DEAD_LETTER: &str = concat!(
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

pub(super) const SET_RETRIES: &str = concat!(
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

/// A job that changes its lane becomes ready there. If nodes take ranges of priorities, so does a job that
/// stays in its lane: the node that takes its new priority may have refused its hint. Of an instance, only
/// the first ready sibling is hinted. A pause of the former lane does not cover it any more, and one of the
/// new lane does.
pub(super) const SET_PRIORITY: &str = concat!(
    "WITH places AS MATERIALIZED (
    SELECT p.id, p.its_lane, p.lane <> p.its_lane OR p.priority <> $3 AND EXISTS (
        SELECT FROM jobwire.node n WHERE n.min_priority IS NOT NULL OR n.max_priority IS NOT NULL) AS again
    FROM (
        SELECT j.id, j.lane, j.priority, ",
    its_lane!("j", "j.type", "j.category", "j.tenant"),
    " AS its_lane FROM jobwire.job j WHERE j.id = ANY($2)) p
), executable AS (
    UPDATE jobwire.job j SET priority = $3, lane = p.its_lane, revision = least(j.revision, 999999999) + 1,
        ready_at = CASE WHEN p.again THEN clock_timestamp() ELSE j.ready_at END,
        hints = CASE WHEN p.again THEN least(j.hints, 999999999) + 1 ELSE j.hints END
    FROM places p WHERE p.id = j.id AND ",
    unlocked!("j"),
    "
    RETURNING ",
    ready_columns!("j"),
    ", j.seq, p.again, ",
    not_suspended!("j"),
    " AS may_run
), ",
    set_priority!("timer", "timer_job"),
    ", ",
    set_priority!("suspended", "suspended_job"),
    ", ",
    set_priority!("letter", "dead_letter_job"),
    "
SELECT x.id, x.lane, x.exclusive, x.process_instance, x.trace_parent, x.type,
    x.again AND x.may_run AND (NOT x.exclusive OR NOT EXISTS (
        SELECT FROM jobwire.job e
        WHERE e.exclusive AND e.process_instance = x.process_instance AND e.seq < x.seq AND ",
    not_put_aside!("e"),
    ")), NULL::text, NULL::timestamptz
FROM executable x
UNION ALL ",
    result!("timer", stays, "NULL"),
    "
UNION ALL ",
    result!("suspended", stays, "NULL"),
    "
UNION ALL ",
    result!("letter", stays, "NULL")
);

/// Selects the states of the jobs that were not changed, and whether a lock or a suspension keeps
/// them.
pub(super) const STILL: &str = concat!(
    "
SELECT j.id, 'executable', NOT (",
    unlocked!("j"),
    ") FROM jobwire.job j WHERE j.id = ANY($1)
UNION ALL SELECT id, 'timer', false FROM jobwire.timer_job WHERE id = ANY($1)
UNION ALL SELECT j.id, 'suspended', NOT ",
    not_put_aside!("j"),
    " FROM jobwire.suspended_job j WHERE j.id = ANY($1)
UNION ALL SELECT id, 'dead-letter', false FROM jobwire.dead_letter_job WHERE id = ANY($1)"
);
