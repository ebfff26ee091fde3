//! Pieces that several statements share. They are literals, so each statement stays one constant
//! text.

/// The columns of a `Job`.
macro_rules! job_columns {
    ($t:literal) => {
        $crate::store::sql::job_columns!($t, "::text")
    };
}

/// True if nothing is suspended.
macro_rules! nothing_suspended {
    () => {
        "NOT EXISTS (SELECT FROM jobwire.suspension)"
    };
}

/// True if no row of the table of suspensions fulfils the condition. A statement first checks once
/// whether any row exists: the lookups for each job took a third of the time of a lock by row.
macro_rules! no_gate {
    ($condition:expr) => {
        concat!(
            "(",
            $crate::store::postgres::sql::nothing_suspended!(),
            " OR NOT EXISTS (SELECT FROM jobwire.suspension s WHERE ",
            $condition,
            "))"
        )
    };
}

/// True if no suspension or pause of this scope has this value. The subquery is a value, which is looked up
/// by its key under any plan. `EXISTS` with a condition for each scope became a scan of all suspensions for
/// each job where a statement forbids bitmaps: 16 ms a job with 20,000 suspended instances.
macro_rules! no_gate_of {
    ($scope:literal, $value:expr) => {
        concat!(
            "(SELECT s.scope FROM jobwire.suspension s WHERE s.scope = '",
            $scope,
            "' AND s.value = ",
            $value,
            ") IS NULL"
        )
    };
}

/// Like [`not_put_aside`], if something is suspended.
macro_rules! no_suspension_of {
    ($t:literal) => {
        concat!(
            $crate::store::postgres::sql::no_gate_of!(
                "process_instance",
                concat!($t, ".process_instance")
            ),
            " AND ",
            $crate::store::postgres::sql::no_gate_of!(
                "process_definition",
                concat!($t, ".process_definition")
            ),
            " AND ",
            $crate::store::postgres::sql::no_gate_of!(
                "definition_key",
                $crate::store::sql::definition_key_of!($t)
            ),
            " AND ",
            $crate::store::postgres::sql::no_gate_of!(
                "element",
                $crate::store::sql::element_of!($t)
            ),
            " AND ",
            $crate::store::postgres::sql::no_gate_of!("type", concat!($t, ".type")),
            " AND ",
            $crate::store::postgres::sql::no_gate_of!("tenant", concat!($t, ".tenant"))
        )
    };
}

/// Like [`not_paused`], if something is suspended. A pause of a lane or of everything does not cover the
/// jobs that end it at a date.
macro_rules! no_pause_of {
    ($t:literal) => {
        concat!(
            $crate::store::postgres::sql::no_gate_of!("pause_type", concat!($t, ".type")),
            " AND ",
            $crate::store::postgres::sql::no_gate_of!("pause_category", concat!($t, ".category")),
            " AND (",
            $t,
            ".type = 'jobwire.suspension' OR ",
            $crate::store::postgres::sql::no_gate_of!("pause_lane", concat!($t, ".lane")),
            " AND (SELECT s.scope FROM jobwire.suspension s WHERE s.scope = 'pause_all' LIMIT 1) IS NULL)"
        )
    };
}

/// True if no suspension and no pause covers this job.
macro_rules! not_suspended {
    ($t:literal) => {
        concat!(
            "(",
            $crate::store::postgres::sql::nothing_suspended!(),
            " OR ",
            $crate::store::postgres::sql::no_suspension_of!($t),
            " AND ",
            $crate::store::postgres::sql::no_pause_of!($t),
            ")"
        )
    };
}

/// True if no suspension covers this job. A suspended job lets its siblings pass, a paused one does
/// not.
macro_rules! not_put_aside {
    ($t:literal) => {
        concat!(
            "(",
            $crate::store::postgres::sql::nothing_suspended!(),
            " OR ",
            $crate::store::postgres::sql::no_suspension_of!($t),
            ")"
        )
    };
}

/// True if no pause covers this job.
macro_rules! not_paused {
    ($t:literal) => {
        concat!(
            "(",
            $crate::store::postgres::sql::nothing_suspended!(),
            " OR ",
            $crate::store::postgres::sql::no_pause_of!($t),
            ")"
        )
    };
}

/// True unless this job waits for a permit of a key that is in use.
macro_rules! not_waiting {
    ($t:literal) => {
        concat!(
            "NOT ",
            $crate::store::permits::waits!(
                $t,
                "jobwire.waiting_job",
                "jobwire.permit_key",
                "clock_timestamp() - interval '600 seconds'",
                "clock_timestamp()"
            )
        )
    };
}

/// Like [`not_waiting`]. The subqueries are values, which can't be planned as joins that read whole
/// tables.
macro_rules! not_waiting_by_key {
    ($t:literal) => {
        concat!(
            "(SELECT (SELECT k.used_at FROM jobwire.permit_key k WHERE k.limit_name = w.limit_name AND k.key = w.key \
               AND k.used_at BETWEEN clock_timestamp() - interval '600 seconds' AND clock_timestamp()) \
              FROM jobwire.waiting_job w WHERE w.job_id = ",
            $t,
            ".id AND w.woken_at IS NULL) IS NULL"
        )
    };
}

/// True if this job has no lease, with or without an owner.
///
/// The subquery is a value, which can't be planned as a join. Where the statistics say that a table is
/// empty, as after a vacuum between two bursts, PostgreSQL takes the scan of a whole index to be as
/// cheap as a look-up, and joins by reading all of one table for each row of the other.
macro_rules! unleased {
    ($t:literal) => {
        concat!(
            "(SELECT l.job_id FROM jobwire.job_lease l WHERE l.job_id = ",
            $t,
            ".id) IS NULL"
        )
    };
}

/// The end of an insert into `jobwire.job_lease AS l`. A lease without an owner gets one and keeps
/// its strikes. A lease with an owner is never taken: only the leader cycle ends it (protocol rule
/// 24).
macro_rules! or_take_ownerless {
    () => {
        "
    ON CONFLICT (job_id) DO UPDATE
        SET owner = excluded.owner, fence = excluded.fence, locked_at = excluded.locked_at,
            expires_at = excluded.expires_at, alone_since = NULL
        WHERE l.owner IS NULL
    RETURNING l.job_id, l.fence, l.strikes"
    };
}

/// True if this lease has not expired. One that ends more than 25 hours from now counts as expired:
/// no node wrote it (a lease lasts at most 24 hours,
/// [`NodeOptions::lease`](crate::NodeOptions::lease)), or the clock was set back.
macro_rules! unexpired {
    ($t:literal) => {
        unexpired!($t, "clock_timestamp()")
    };
    ($t:literal, $now:literal) => {
        concat!(
            "(",
            $t,
            ".expires_at > ",
            $now,
            " AND ",
            $t,
            ".expires_at < ",
            $now,
            " + interval '25 hours')"
        )
    };
}

/// True if a job became ready by this moment, or in the future: then it became ready before the clock
/// was set back. The dates that statements write to mark a job are never a minute ahead.
macro_rules! ready_before {
    ($t:literal, $moment:literal) => {
        concat!(
            "(",
            $t,
            ".ready_at <= ",
            $moment,
            " OR ",
            $t,
            ".ready_at > clock_timestamp() + interval '1 minute')"
        )
    };
}

/// True if no lease of this job has an owner. A value, as [`unleased`].
macro_rules! unlocked {
    ($t:literal) => {
        concat!(
            "(SELECT l.job_id FROM jobwire.job_lease l WHERE l.job_id = ",
            $t,
            ".id AND l.owner IS NOT NULL) IS NULL"
        )
    };
}

/// True if an executable job has the `job_id` of this row, otherwise NULL. A value, as [`unleased`].
macro_rules! has_job {
    ($t:literal) => {
        concat!(
            "(SELECT true FROM jobwire.job j WHERE j.id = ",
            $t,
            ".job_id)"
        )
    };
}

/// True if no order is strict.
macro_rules! nothing_strict {
    () => {
        "NOT EXISTS (SELECT FROM jobwire.strict_order)"
    };
}

/// True unless the order is strict and an elder sibling waits for a retry, is suspended, or is a
/// dead letter (protocol rule 14). A job that was created during a suspension is in the executable
/// table. A timer that never ran has no hint yet and does not count. A job
/// that has to wait makes its younger siblings wait, so statements check only the first sibling.
macro_rules! in_strict_order {
    ($t:literal) => {
        concat!(
            "(",
            $crate::store::postgres::sql::nothing_strict!(),
            " OR NOT (\
               EXISTS (SELECT FROM jobwire.timer_job w WHERE w.exclusive AND w.hints > 0 \
                       AND w.process_instance = ",
            $t,
            ".process_instance AND w.seq < ",
            $t,
            ".seq) OR EXISTS (SELECT FROM jobwire.suspended_job w WHERE w.exclusive AND (w.hints > 0 OR w.due_at IS NULL) \
                       AND w.process_instance = ",
            $t,
            ".process_instance AND w.seq < ",
            $t,
            ".seq) OR EXISTS (SELECT FROM jobwire.dead_letter_job w WHERE w.exclusive \
                       AND w.process_instance = ",
            $t,
            ".process_instance AND w.seq < ",
            $t,
            ".seq) OR EXISTS (SELECT FROM jobwire.job w WHERE w.exclusive \
                       AND w.process_instance = ",
            $t,
            ".process_instance AND w.seq < ",
            $t,
            ".seq AND NOT ",
            $crate::store::postgres::sql::not_put_aside!("w"),
            ")))"
        )
    };
}

/// True if this job is not exclusive, or is the first ready sibling of a free instance.
macro_rules! in_turn {
    ($t:literal) => {
        concat!(
            "(NOT ",
            $t,
            ".exclusive OR (\
               NOT EXISTS (SELECT FROM jobwire.job e \
                           WHERE e.exclusive AND e.process_instance = ",
            $t,
            ".process_instance AND e.seq < ",
            $t,
            ".seq AND ",
            $crate::store::postgres::sql::not_put_aside!("e"),
            ") \
               AND ",
            $crate::store::postgres::sql::instance_is_free!($t),
            "))"
        )
    };
}

/// True if no job holds the instance of this job, and the order of its siblings lets one run.
macro_rules! instance_is_free {
    ($t:literal) => {
        concat!(
            "(SELECT (SELECT l.owner FROM jobwire.job_lease l WHERE l.job_id = i.job_id AND l.fence = i.fence) \
                    FROM jobwire.instance_lock i WHERE i.process_instance = ",
            $t,
            ".process_instance) IS NULL AND ",
            $crate::store::postgres::sql::in_strict_order!($t)
        )
    };
}

/// True if this job is not exclusive, or no job holds its instance. Its hint then lets a node lock the first
/// ready sibling, even if that is an elder one.
macro_rules! of_free_instance {
    ($t:literal) => {
        concat!(
            "(NOT ",
            $t,
            ".exclusive OR (",
            $crate::store::postgres::sql::instance_is_free!($t),
            "))"
        )
    };
}

/// True if this job is in the scope of a node or a group of nodes: each name that the job has is
/// among the scope's names of its kind, if the scope has any, and its priority is in the scope's
/// range. The scope is a jsonb; NULL takes all jobs.
macro_rules! in_scope {
    ($t:literal, $scope:literal) => {
        concat!(
            "(",
            $scope,
            " IS NULL OR ((",
            $t,
            ".deployment IS NULL OR coalesce(",
            $scope,
            "->'deployments' ? ",
            $t,
            ".deployment, true)) AND (",
            $t,
            ".category IS NULL OR coalesce(",
            $scope,
            "->'categories' ? ",
            $t,
            ".category, true)) AND (",
            $t,
            ".tenant IS NULL OR coalesce(",
            $scope,
            "->'tenants' ? ",
            $t,
            ".tenant, true)) AND coalesce(",
            $t,
            ".priority >= (",
            $scope,
            "->>'min_priority')::bigint, true) AND coalesce(",
            $t,
            ".priority <= (",
            $scope,
            "->>'max_priority')::bigint, true)))"
        )
    };
}

/// True if the asking node serves this job: the type is among these, and the job is in the node's
/// scope.
macro_rules! served {
    ($t:literal, $types:literal, $scope:literal) => {
        concat!(
            "(",
            $t,
            ".type = ANY(",
            $types,
            ") AND ",
            $crate::store::postgres::sql::in_scope!($t, $scope),
            ")"
        )
    };
}

/// True if a living node serves this job. Groups of nodes are given only if types alone do not
/// decide.
macro_rules! served_by_fleet {
    ($t:literal, $types:literal, $groups:literal) => {
        concat!(
            "(",
            $t,
            ".type = ANY(",
            $types,
            ") AND (",
            $groups,
            "::jsonb IS NULL OR EXISTS (SELECT FROM jsonb_array_elements(",
            $groups,
            "::jsonb) AS g WHERE g->'types' ? ",
            $t,
            ".type AND ",
            $crate::store::postgres::sql::in_scope!($t, "g"),
            ")))"
        )
    };
}

pub(super) use crate::store::sql::{
    definition_key_of, gate_of, in_gate, lane_by_rule, moved_columns, priority_columns,
    ready_columns, rule_columns, strikes_count, suspends,
};
pub(super) use {
    has_job, in_scope, in_strict_order, in_turn, instance_is_free, job_columns, no_gate,
    no_gate_of, no_pause_of, no_suspension_of, not_paused, not_put_aside, not_suspended,
    not_waiting, not_waiting_by_key, nothing_strict, nothing_suspended, of_free_instance,
    or_take_ownerless, ready_before, served, served_by_fleet, unexpired, unleased, unlocked,
};
