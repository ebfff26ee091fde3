//! Pieces of SQL that the statements of every database share. They are literals, so that each
//! statement stays one constant text.

/// Every column of the job tables, in order, for moves from one table to another. The list is
/// explicit, so that columns of a later version take their defaults (protocol rule 32).
macro_rules! moved_columns {
    () => {
        "id, seq, revision, kind, type, payload, process_instance, execution, process_definition, \
         element, tenant, category, deployment, priority, exclusive, retries, failures, \
         retry_policy, due_at, repeat, repeat_until, correlation_id, created_at, lane, origin, \
         exception_message, custom_values, trace_parent, ready_at, hints, lane_named"
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
            ".trace_parent, ",
            $t,
            ".lane_named"
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

/// The value of the suspension of a job's element, as `SuspensionScope::parts` makes it; NULL if the
/// job has no process definition or no element. `length` counts characters on every database.
macro_rules! element_of {
    ($t:literal) => {
        concat!(
            "(length(",
            $t,
            ".process_definition) || ':' || ",
            $t,
            ".process_definition || ",
            $t,
            ".element)"
        )
    };
}

/// The value of the suspension of a job's definition key, as `DefinitionKey::value` makes it; NULL if the
/// job has no process definition. `ltrim` takes off the leading characters of a set: without those that are
/// no colon, the rest of the definition begins at its first colon. No function for the place of a character
/// has the same name on every database.
macro_rules! definition_key_of {
    ($t:literal) => {
        concat!(
            "(substr(",
            $t,
            ".process_definition, 1, length(",
            $t,
            ".process_definition) - length(ltrim(",
            $t,
            ".process_definition, replace(",
            $t,
            ".process_definition, ':', '')))) || coalesce(':' || nullif(",
            $t,
            ".tenant, ''), ''))"
        )
    };
}

/// True if the row `s` is a suspension that covers the job. It moves the job to the suspended table.
macro_rules! suspends {
    ($t:literal) => {
        concat!(
            "((s.scope = 'process_instance' AND s.value = ",
            $t,
            ".process_instance) OR (s.scope = 'process_definition' AND s.value = ",
            $t,
            ".process_definition) OR (s.scope = 'definition_key' AND s.value = ",
            $crate::store::sql::definition_key_of!($t),
            ") OR (s.scope = 'element' AND s.value = ",
            $crate::store::sql::element_of!($t),
            ") OR (s.scope = 'type' AND s.value = ",
            $t,
            ".type) OR (s.scope = 'tenant' AND s.value = ",
            $t,
            ".tenant))"
        )
    };
}

/// True if the row `s` is a pause that covers the job. A pause of a lane or of everything does not
/// cover the jobs that end it at a date.
macro_rules! pauses {
    ($t:literal) => {
        concat!(
            "((s.scope = 'pause_type' AND s.value = ",
            $t,
            ".type) OR (s.scope = 'pause_category' AND s.value = ",
            $t,
            ".category) OR (s.scope = 'pause_lane' AND s.value = ",
            $t,
            ".lane AND ",
            $t,
            ".type <> 'jobwire.suspension') OR (s.scope = 'pause_all' AND ",
            $t,
            ".type <> 'jobwire.suspension'))"
        )
    };
}

/// True if the suspension or pause `s` covers the job: no statement locks it.
macro_rules! covers {
    ($t:literal) => {
        concat!(
            "(",
            $crate::store::sql::suspends!($t),
            " OR ",
            $crate::store::sql::pauses!($t),
            ")"
        )
    };
}

/// The suspension or pause because of which an unlocked executable job `j` with the lease `l` waits,
/// as text that `decode::gate` reads. A suspension comes before a pause.
macro_rules! gate_of {
    ($schema:literal) => {
        concat!(
            "CASE WHEN j.state = 'executable' AND l.job_id IS NULL THEN (SELECT s.scope || ' ' || s.value FROM ",
            $schema,
            "suspension s WHERE ",
            $crate::store::sql::covers!("j"),
            " ORDER BY s.scope LIKE 'pause%', s.since, s.scope, s.value LIMIT 1) END AS gate"
        )
    };
}

/// True if the job belongs to the suspension or pause of this scope and value.
macro_rules! in_gate {
    ($t:literal, $scope:literal, $value:literal) => {
        concat!(
            "(CASE ",
            $scope,
            " WHEN 'process_instance' THEN ",
            $t,
            ".process_instance WHEN 'process_definition' THEN ",
            $t,
            ".process_definition WHEN 'definition_key' THEN ",
            $crate::store::sql::definition_key_of!($t),
            " WHEN 'element' THEN ",
            $crate::store::sql::element_of!($t),
            " WHEN 'type' THEN ",
            $t,
            ".type WHEN 'tenant' THEN ",
            $t,
            ".tenant WHEN 'pause_type' THEN ",
            $t,
            ".type WHEN 'pause_category' THEN ",
            $t,
            ".category WHEN 'pause_lane' THEN ",
            $t,
            ".lane WHEN 'pause_all' THEN '' END = ",
            $value,
            ")"
        )
    };
}

/// Selects the lane by the first rule whose conditions hold, for a job of which these are the
/// columns.
macro_rules! lane_by_rule {
    ($rules:literal, $type:expr, $category:expr, $tenant:expr, $priority:literal) => {
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

/// The columns of a priority rule, in the order in which `decode::priority_rule` reads them.
macro_rules! priority_columns {
    () => {
        "scope, type, process_definition, element, priority"
    };
}

/// The columns of a lane rule, in the order in which `decode::lane_rule` reads them.
macro_rules! rule_columns {
    () => {
        "lane, type, category, tenant, min_priority, max_priority"
    };
}

pub(super) use {
    covers, definition_key_of, element_of, gate_of, in_gate, job_columns, lane_by_rule,
    moved_columns, pauses, priority_columns, ready_columns, rule_columns, strikes_count, suspends,
};
