//! Parts of statements, and the code that fills in the differences of the engines.
//!
//! A statement is written once for all engines of the family. The differences are in braces:
//!
//! | part | becomes |
//! | --- | --- |
//! | `{j.create_time_}` | the column, or NULL with its type if the engine lacks it |
//! | `{create_time_}` | the same as an item of a SELECT list |
//! | `{by_age j}` | the order of the jobs of an instance |
//! | `{NAME}` | a part of the engine or of the way of execution ([`Parts`]) |

use super::family::Family;

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
            ".proc_def_id_, {",
            $j,
            ".element_id_} AS element_id_, ",
            $j,
            ".tenant_id_, {",
            $j,
            ".category_} AS category_, ",
            $j,
            ".retries_, ",
            $j,
            ".exception_msg_, ",
            $crate::zone::moment_of!("{", $j, ".create_time_}"),
            " AS created_at, ",
            $crate::zone::moment_of!($j, ".duedate_"),
            " AS due_at, NULL::text AS deployment_id_, NULL::bigint AS priority_"
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

/// True if the job or timer has no lock. The engine reads only the expiry of a job's lock. A lock
/// without one would never end, so an owner alone is no lock.
macro_rules! unlocked {
    ($j:literal) => {
        concat!("(", $j, ".lock_exp_time_ IS NULL)")
    };
}
pub(super) use unlocked;

/// True if the process engine's executor runs the job. Other scopes, such as CMMN, have their own
/// executors and REST interfaces.
macro_rules! of_processes {
    ($j:literal) => {
        concat!(
            "({",
            $j,
            ".scope_type_} IS NULL OR {",
            $j,
            ".scope_type_} = 'bpmn')"
        )
    };
}
pub(super) use of_processes;

/// True if the scope of the node takes the job: `$tenants` and `$categories` are NULL for all.
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
            "::text[] IS NULL OR coalesce({",
            $j,
            ".category_}, '') = '' OR {",
            $j,
            ".category_} = ANY(",
            $categories,
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
          AND (g->'categories' IS NULL OR coalesce({",
            $j,
            ".category_}, '') = '' OR g->'categories' ? {",
            $j,
            ".category_})))"
        )
    };
}
pub(super) use in_groups;

/// The parts that belong to the way of execution, by name.
pub(super) type Parts = [(&'static str, &'static str)];

/// Returns a statement for an engine. The text is made once for each engine, and lives as long as
/// the program.
pub(super) fn filled(statement: &str, family: &Family, parts: &Parts) -> &'static str {
    let mut text = statement.to_owned();
    // A part may contain columns.
    for _ in 0..2 {
        text = fill(&text, family, parts);
    }
    text.leak()
}

fn fill(statement: &str, family: &Family, parts: &Parts) -> String {
    let mut text = String::with_capacity(statement.len() * 2);
    let mut rest = statement;
    while let Some((before, behind)) = rest.split_once('{') {
        text.push_str(before);
        let (part, after) = behind.split_once('}').unwrap_or((behind, ""));
        text.push_str(&value(part, family, parts));
        rest = after;
    }
    text.push_str(rest);
    text
}

fn value(part: &str, family: &Family, parts: &Parts) -> String {
    if let Some((_, text)) = parts.iter().find(|(name, _)| *name == part) {
        return (*text).to_owned();
    }
    if let Some(alias) = part.strip_prefix("by_age ") {
        return match family.lacks("create_time_") {
            None => format!("{alias}.create_time_, {alias}.id_"),
            Some(_) => format!("{alias}.id_"),
        };
    }
    match part {
        "columns" => family.columns(|column| column.to_owned()),
        "values" => family.columns(moved),
        _ if part.chars().all(|c| matches!(c, 'a'..='z' | '_' | '.')) => column(part, family),
        // An unknown name stays, and the test of all statements fails.
        _ => format!("{{{part}}}"),
    }
}

fn column(name: &str, family: &Family) -> String {
    match (family.lacks(name), name.contains('.')) {
        (None, _) => name.to_owned(),
        (Some(kind), true) => format!("NULL::{kind}"),
        (Some(kind), false) => format!("NULL::{kind} AS {name}"),
    }
}

/// Returns the value of a column of a timer that becomes executable. `$3` is the zone.
fn moved(column: &str) -> String {
    match column {
        "lock_exp_time_" | "lock_owner_" => "NULL".to_owned(),
        "correlation_id_" => "coalesce(correlation_id_, gen_random_uuid()::text)".to_owned(),
        "create_time_" => {
            "date_trunc('milliseconds', clock_timestamp() AT TIME ZONE $3)".to_owned()
        }
        _ => column.to_owned(),
    }
}
