//! Pieces of SQL that the statements of every database share. They are literals, so that each
//! statement stays one constant text.

/// Every column of the job tables, in order, for moves from one table to another. The list is
/// explicit, so that columns of a later version take their defaults (protocol rule 32).
macro_rules! moved_columns {
    () => {
        "id, seq, revision, kind, type, payload, process_instance, execution, process_definition, \
         element, tenant, category, deployment, priority, exclusive, retries, failures, \
         retry_policy, due_at, repeat, repeat_until, correlation_id, created_at, lane, origin, \
         exception_message, custom_values, trace_parent, ready_at, hints"
    };
}

/// The columns of a `Job`, in the order in which `decode::job` reads them. `$json` converts a
/// column of JSON to text.
macro_rules! job_columns {
    ($t:literal, $json:literal) => {
        concat!(
            $t,
            ".id, ",
            $t,
            ".seq, ",
            $t,
            ".revision, ",
            $t,
            ".kind, ",
            $t,
            ".type, ",
            $t,
            ".payload",
            $json,
            ", ",
            $t,
            ".process_instance, ",
            $t,
            ".execution, ",
            $t,
            ".process_definition, ",
            $t,
            ".element, ",
            $t,
            ".tenant, ",
            $t,
            ".category, ",
            $t,
            ".deployment, ",
            $t,
            ".priority, ",
            $t,
            ".exclusive, ",
            $t,
            ".retries, ",
            $t,
            ".failures, ",
            $t,
            ".retry_policy, ",
            $t,
            ".due_at, ",
            $t,
            ".repeat, ",
            $t,
            ".repeat_until, ",
            $t,
            ".correlation_id, ",
            $t,
            ".created_at, ",
            $t,
            ".ready_at, ",
            $t,
            ".lane, ",
            $t,
            ".exception_message, ",
            $t,
            ".custom_values",
            $json,
            ", ",
            $t,
            ".trace_parent"
        )
    };
}

/// The columns of a `Ready`, in the order in which `decode::ready` reads them.
macro_rules! ready_columns {
    () => {
        "id, lane, exclusive, process_instance, trace_parent, type"
    };
    ($t:literal) => {
        concat!(
            $t,
            ".id, ",
            $t,
            ".lane, ",
            $t,
            ".exclusive, ",
            $t,
            ".process_instance, ",
            $t,
            ".trace_parent, ",
            $t,
            ".type"
        )
    };
}

/// True if the death of this lease's owner counts as a strike (protocol rule 26). From the second
/// strike on the job runs alone. Then only a death while it runs alone counts, and not a death
/// while it waits beside another suspect.
macro_rules! strikes_count {
    ($t:literal) => {
        concat!("(", $t, ".strikes < 2 OR ", $t, ".alone_since IS NOT NULL)")
    };
}

/// True if the suspension `s` covers the job.
macro_rules! covers {
    ($t:literal) => {
        concat!(
            "((s.scope = 'process_instance' AND s.value = ",
            $t,
            ".process_instance) OR (s.scope = 'process_definition' AND s.value = ",
            $t,
            ".process_definition) OR (s.scope = 'type' AND s.value = ",
            $t,
            ".type) OR (s.scope = 'tenant' AND s.value = ",
            $t,
            ".tenant))"
        )
    };
}

/// Selects the lane by the first rule whose conditions hold, for a job of which these are the
/// columns.
macro_rules! lane_by_rule {
    ($rules:literal, $type:literal, $category:literal, $tenant:literal, $priority:literal) => {
        concat!(
            "(SELECT r.lane FROM ",
            $rules,
            " r
     WHERE (r.type IS NULL OR r.type = ",
            $type,
            ") AND (r.category IS NULL OR r.category = ",
            $category,
            ")
       AND (r.tenant IS NULL OR r.tenant = ",
            $tenant,
            ")
       AND (r.min_priority IS NULL OR r.min_priority <= ",
            $priority,
            ")
       AND (r.max_priority IS NULL OR r.max_priority >= ",
            $priority,
            ")
     ORDER BY r.position LIMIT 1)"
        )
    };
}

/// The columns of a lane rule, in the order in which `decode::lane_rule` reads them.
macro_rules! rule_columns {
    () => {
        "lane, type, category, tenant, min_priority, max_priority"
    };
}

pub(super) use {
    covers, job_columns, lane_by_rule, moved_columns, ready_columns, rule_columns, strikes_count,
};
