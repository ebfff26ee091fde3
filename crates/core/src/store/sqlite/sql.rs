//! SQL fragments that several statements share, as literals, so that each statement is one constant
//! text.
//!
//! Sets are bound as one JSON array: `json_each` is to SQLite what `unnest` is to PostgreSQL, and a
//! statement is prepared once for sets of any length. The time of a transaction is read once and
//! bound, so all its statements compare with the same clock reading.

/// The columns of a `Job`.
macro_rules! job_columns {
    ($t:literal) => {
        $crate::store::sql::job_columns!($t, "")
    };
}

/// True if the lease has not expired at the time `$now`. A lease that ends more than 25 hours later
/// counts as expired: no node wrote it (a lease lasts 24 hours at most,
/// [`NodeOptions::lease`](crate::NodeOptions::lease)), or the clock was set back.
macro_rules! unexpired {
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
            " + 90000000000)"
        )
    };
}

/// The strikes of the lease. The value is clamped, because another program may have written
/// anything.
macro_rules! strikes {
    ($t:literal) => {
        concat!(
            "CAST(max(0, min(coalesce(",
            $t,
            ".strikes, 0), 1000000)) AS INTEGER)"
        )
    };
}

/// True if a suspension or a pause covers the job.
macro_rules! suspended {
    ($t:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM suspension s WHERE ",
            $crate::store::sql::covers!($t),
            ")"
        )
    };
}

/// True if a suspension covers the job. A suspended job lets its siblings pass, a paused one does
/// not.
macro_rules! is_put_aside {
    ($t:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM suspension s WHERE ",
            $crate::store::sql::suspends!($t),
            ")"
        )
    };
}

/// True if a pause covers the job.
macro_rules! paused {
    ($t:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM suspension s WHERE ",
            $crate::store::sql::pauses!($t),
            ")"
        )
    };
}

/// True if the job waits for a permit of a key that is in use. `unixepoch` reads the clock of the
/// machine, as all programs on this database do.
macro_rules! waits {
    ($t:literal) => {
        $crate::store::permits::waits!(
            $t,
            "waiting_job",
            "permit_key",
            "(unixepoch() - 600) * 1000000",
            "(unixepoch() + 1) * 1000000"
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
            ".ready_at > (unixepoch() + 60) * 1000000)"
        )
    };
}

/// True if the id of a row can be read. The checks of the tables read a text up to its first NUL, so
/// another program can write an id with a rest. No statement passes such a job on: it has no name.
macro_rules! has_id {
    ($id:literal) => {
        concat!("octet_length(", $id, ") = 36")
    };
}

/// True if no lease of the job has an owner.
macro_rules! unlocked {
    ($t:literal) => {
        concat!(
            "NOT EXISTS (SELECT 1 FROM job_lease l WHERE l.job_id = ",
            $t,
            ".id AND l.owner IS NOT NULL)"
        )
    };
}

/// True if the job is in the scope of the suspension or pause (scope `?1`, value `?2`).
macro_rules! in_scope {
    ($t:literal) => {
        $crate::store::sql::in_gate!($t, "?1", "?2")
    };
}

/// With strict order, true if no elder sibling waits for a retry, is suspended, or is a dead letter
/// (protocol rule 14). True without strict order.
macro_rules! in_strict_order {
    ($t:literal) => {
        concat!(
            "(NOT EXISTS (SELECT 1 FROM strict_order) OR NOT (\
               EXISTS (SELECT 1 FROM timer_job w WHERE w.exclusive AND w.hints > 0 AND w.process_instance = ",
            $t,
            ".process_instance AND w.seq < ",
            $t,
            ".seq) OR EXISTS (SELECT 1 FROM suspended_job w WHERE w.exclusive AND (w.hints > 0 OR w.due_at IS NULL) AND w.process_instance = ",
            $t,
            ".process_instance AND w.seq < ",
            $t,
            ".seq) OR EXISTS (SELECT 1 FROM dead_letter_job w WHERE w.exclusive AND w.process_instance = ",
            $t,
            ".process_instance AND w.seq < ",
            $t,
            ".seq) OR EXISTS (SELECT 1 FROM job w WHERE w.exclusive AND w.process_instance = ",
            $t,
            ".process_instance AND w.seq < ",
            $t,
            ".seq AND ",
            $crate::store::sqlite::sql::is_put_aside!("w"),
            ")))"
        )
    };
}

/// True if the job is not exclusive, or is the first ready sibling of a free instance.
macro_rules! in_turn {
    ($t:literal) => {
        concat!(
            "(NOT ",
            $t,
            ".exclusive OR (\
               NOT EXISTS (SELECT 1 FROM job e \
                           WHERE e.exclusive AND e.process_instance = ",
            $t,
            ".process_instance AND e.seq < ",
            $t,
            ".seq AND ",
            $crate::store::sqlite::sql::has_id!("e.id"),
            " AND NOT ",
            $crate::store::sqlite::sql::is_put_aside!("e"),
            ") \
               AND ",
            $crate::store::sqlite::sql::instance_is_free!($t),
            "))"
        )
    };
}

/// True if no job holds the instance of this job, and the order of its siblings lets one run.
macro_rules! instance_is_free {
    ($t:literal) => {
        concat!(
            "NOT EXISTS (SELECT 1 FROM instance_lock i \
                               JOIN job_lease l ON l.job_id = i.job_id AND l.fence = i.fence \
                               WHERE i.process_instance = ",
            $t,
            ".process_instance AND l.owner IS NOT NULL) AND ",
            $crate::store::sqlite::sql::in_strict_order!($t)
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
            $crate::store::sqlite::sql::instance_is_free!($t),
            "))"
        )
    };
}

/// Deletes the leases that match the guard; a job missing from the result has lost its lock. `?1`
/// is an array of `[id, fence]`, `?2` the owner.
macro_rules! release_leases {
    () => {
        "DELETE FROM job_lease \
         WHERE (job_id, fence) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND owner = ?2"
    };
}

/// True if a node of this scope runs the job: for each kind of name that the scope restricts, the
/// job has no such name or one in the scope, and the job's priority is in the scope's range. The
/// scope is JSON, NULL if it has no restriction.
macro_rules! in_node_scope {
    ($t:literal, $scope:literal) => {
        concat!(
            "(",
            $scope,
            " IS NULL OR ((",
            $t,
            ".deployment IS NULL OR json_type(",
            $scope,
            ", '$.deployments') IS NULL OR ",
            $t,
            ".deployment IN (SELECT value FROM json_each(",
            $scope,
            ", '$.deployments'))) AND (",
            $t,
            ".category IS NULL OR json_type(",
            $scope,
            ", '$.categories') IS NULL OR ",
            $t,
            ".category IN (SELECT value FROM json_each(",
            $scope,
            ", '$.categories'))) AND (",
            $t,
            ".tenant IS NULL OR json_type(",
            $scope,
            ", '$.tenants') IS NULL OR ",
            $t,
            ".tenant IN (SELECT value FROM json_each(",
            $scope,
            ", '$.tenants'))) AND coalesce(",
            $t,
            ".priority >= json_extract(",
            $scope,
            ", '$.min_priority'), 1) AND coalesce(",
            $t,
            ".priority <= json_extract(",
            $scope,
            ", '$.max_priority'), 1)))"
        )
    };
}

/// True if the calling node serves the job: its type is among these, and it is in the node's scope.
macro_rules! served {
    ($t:literal, $types:literal, $scope:literal) => {
        concat!(
            "(",
            $t,
            ".type IN (SELECT value FROM json_each(",
            $types,
            ")) AND ",
            $crate::store::sqlite::sql::in_node_scope!($t, $scope),
            ")"
        )
    };
}

/// True if a living node serves the job. Groups of nodes are given only if types alone do not
/// decide.
macro_rules! served_by_fleet {
    ($t:literal, $types:literal, $groups:literal) => {
        concat!(
            "(",
            $t,
            ".type IN (SELECT value FROM json_each(",
            $types,
            ")) AND (",
            $groups,
            " IS NULL OR EXISTS (SELECT 1 FROM json_each(",
            $groups,
            ") AS g WHERE ",
            $t,
            ".type IN (SELECT value FROM json_each(g.value, '$.types')) AND ",
            $crate::store::sqlite::sql::in_node_scope!($t, "g.value"),
            ")))"
        )
    };
}

/// Selects the priority of a new job by the rules, of which these are the columns. `$own` is the
/// priority that its creator gave, or NULL.
macro_rules! priority_by_rule {
    ($rules:literal, $kind:literal, $type:literal, $definition:literal, $element:literal, $own:literal) => {
        concat!(
            "coalesce((SELECT p.priority FROM ",
            $rules,
            " p WHERE p.scope = 'override' AND p.type = ",
            $type,
            " AND p.process_definition IN ('', ",
            $definition,
            ") AND p.element IN ('', ",
            $element,
            ") ORDER BY p.element = '', p.process_definition = '' LIMIT 1), ",
            $own,
            ", (SELECT p.priority FROM ",
            $rules,
            " p WHERE p.scope = 'type' AND p.type = ",
            $type,
            "), (SELECT p.priority FROM ",
            $rules,
            " p WHERE p.scope = 'process_definition' AND p.process_definition = ",
            $definition,
            "), (SELECT p.priority FROM ",
            $rules,
            " p WHERE p.scope = CASE ",
            $kind,
            " WHEN 'history' THEN 'history' ELSE 'default' END), 0)"
        )
    };
}

pub(super) use crate::store::sql::{
    definition_key_of, gate_of, lane_by_rule, moved_columns, priority_columns, ready_columns,
    rule_columns, strikes_count, suspends,
};
pub(super) use {
    has_id, in_node_scope, in_scope, in_strict_order, in_turn, instance_is_free, is_put_aside,
    job_columns, of_free_instance, paused, priority_by_rule, ready_before, release_leases, served,
    served_by_fleet, strikes, suspended, unexpired, unlocked, waits,
};
