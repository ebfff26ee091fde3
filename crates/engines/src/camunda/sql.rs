//! Parts of statements.

/// The columns of a job, for the decoder. `$1` is the zone.
macro_rules! job_columns {
    ($j:literal) => {
        concat!(
            $j,
            ".id_, ",
            $j,
            ".rev_, ",
            $j,
            ".type_, ",
            $j,
            ".handler_type_, ",
            $j,
            ".process_instance_id_, ",
            $j,
            ".execution_id_, ",
            $j,
            ".process_def_id_ AS proc_def_id_, ",
            $j,
            ".failed_act_id_ AS element_id_, ",
            $j,
            ".tenant_id_, NULL::text AS category_, ",
            $j,
            ".deployment_id_, ",
            $j,
            ".priority_, ",
            $j,
            ".retries_, ",
            $j,
            ".exception_msg_, ",
            $crate::zone::moment_of!($j, ".create_time_"),
            " AS created_at, ",
            $crate::zone::moment_of!($j, ".duedate_"),
            " AS due_at"
        )
    };
}
pub(super) use job_columns;

/// The engine's local time. `$1` is the zone.
macro_rules! local_now {
    () => {
        "(clock_timestamp() AT TIME ZONE $1)"
    };
}
pub(super) use local_now;

/// True if the job has no lock by the engine's rule.
macro_rules! unlocked {
    ($j:literal) => {
        concat!("(", $j, ".lock_exp_time_ IS NULL)")
    };
}
pub(super) use unlocked;

/// True if the job has an attempt left and is not suspended. It may be a timer.
macro_rules! runnable {
    ($j:literal) => {
        concat!("(", $j, ".retries_ > 0 AND ", $j, ".suspension_state_ = 1)")
    };
}
pub(super) use runnable;

/// True if the job has no due date, or is due. The zone of due dates is `$1`, or the second argument.
macro_rules! due {
    ($j:literal) => {
        $crate::camunda::sql::due!($j, "$1")
    };
    ($j:literal, $zone:literal) => {
        concat!(
            "(",
            $j,
            ".duedate_ IS NULL OR ",
            $j,
            ".duedate_ <= (clock_timestamp() AT TIME ZONE ",
            $zone,
            "))"
        )
    };
}
pub(super) use due;

/// The order of the jobs of an instance.
macro_rules! by_age {
    ($j:literal) => {
        concat!(
            "coalesce(",
            $j,
            ".duedate_, ",
            $j,
            ".create_time_), ",
            $j,
            ".sequence_counter_, ",
            $j,
            ".id_"
        )
    };
}
pub(super) use by_age;

/// True if the scope of the node takes the job: `$tenants` and `$deployments` are NULL for all.
macro_rules! in_scope {
    ($j:literal, $tenants:literal, $deployments:literal) => {
        concat!(
            "((",
            $tenants,
            "::text[] IS NULL OR coalesce(",
            $j,
            ".tenant_id_, '') = '' OR ",
            $j,
            ".tenant_id_ = ANY(",
            $tenants,
            ")) AND (",
            $deployments,
            "::text[] IS NULL OR coalesce(",
            $j,
            ".deployment_id_, '') = '' OR ",
            $j,
            ".deployment_id_ = ANY(",
            $deployments,
            ")))"
        )
    };
}
pub(super) use in_scope;

/// A group of nodes takes the job: `$groups` is JSON, or NULL for all.
macro_rules! in_groups {
    ($j:literal, $groups:literal) => {
        concat!(
            "(",
            $groups,
            "::jsonb IS NULL OR EXISTS (SELECT FROM jsonb_array_elements(",
            $groups,
            "::jsonb) AS g
        WHERE (g->'tenants' IS NULL OR coalesce(",
            $j,
            ".tenant_id_, '') = '' OR g->'tenants' ? ",
            $j,
            ".tenant_id_)
          AND (g->'deployments' IS NULL OR coalesce(",
            $j,
            ".deployment_id_, '') = '' OR g->'deployments' ? ",
            $j,
            ".deployment_id_)))"
        )
    };
}
pub(super) use in_groups;
