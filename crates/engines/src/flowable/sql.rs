//! Parts of statements.

/// The columns of a job, for `decode::locked`. `$1` is the zone.
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
            ".proc_def_id_, ",
            $j,
            ".element_id_, ",
            $j,
            ".tenant_id_, ",
            $j,
            ".category_, ",
            $j,
            ".retries_, ",
            $j,
            ".exception_msg_, ",
            $j,
            ".create_time_ AT TIME ZONE $1 AS created_at, ",
            $j,
            ".duedate_ AT TIME ZONE $1 AS due_at, NULL::text AS deployment_id_, NULL::bigint AS priority_"
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

/// The job has no lock.
macro_rules! unlocked {
    ($j:literal) => {
        concat!(
            "(",
            $j,
            ".lock_exp_time_ IS NULL AND ",
            $j,
            ".lock_owner_ IS NULL)"
        )
    };
}
pub(super) use unlocked;

/// The process engine's executor runs the job. Other scopes, such as CMMN, have executors and REST
/// interfaces of their own.
macro_rules! of_processes {
    ($j:literal) => {
        concat!(
            "(",
            $j,
            ".scope_type_ IS NULL OR ",
            $j,
            ".scope_type_ = 'bpmn')"
        )
    };
}
pub(super) use of_processes;

/// The scope of the node takes the job: `$tenants` and `$categories` are NULL for all.
macro_rules! in_scope {
    ($j:literal, $tenants:literal, $categories:literal) => {
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
            $categories,
            "::text[] IS NULL OR coalesce(",
            $j,
            ".category_, '') = '' OR ",
            $j,
            ".category_ = ANY(",
            $categories,
            ")))"
        )
    };
}
pub(super) use in_scope;
