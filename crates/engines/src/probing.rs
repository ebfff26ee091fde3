//! The checks that the probes of all engines share.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use sqlx::{PgPool, Row};

use crate::decode::OTHER;
use crate::finding::{Finding, Level};

const COLUMNS: &str = "
SELECT t.name, a.attname::text FROM unnest($1::text[]) AS t(name)
    LEFT JOIN pg_attribute a ON a.attrelid = to_regclass(t.name) AND a.attnum > 0 AND NOT a.attisdropped";

/// Returns the missing ones of these tables and columns, as `table` or `table.column`.
pub(crate) async fn missing(
    pool: &PgPool,
    needed: &[(&str, impl AsRef<[&'static str]>)],
) -> Result<Vec<String>, StoreError> {
    let tables: Vec<&str> = needed.iter().map(|(table, _)| *table).collect();
    let rows = sqlx::query(COLUMNS).bind(tables).fetch_all(pool).await?;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in &rows {
        let column: Option<String> = row.try_get(1)?;
        found.entry(row.try_get(0)?).or_default().extend(column);
    }
    let mut missing = Vec::new();
    for (table, columns) in needed {
        let has = found.get(*table).map(Vec::as_slice).unwrap_or_default();
        if has.is_empty() {
            missing.push((*table).to_owned());
            continue;
        }
        let lacks = columns
            .as_ref()
            .iter()
            .filter(|c| !has.iter().any(|h| h == *c));
        missing.extend(lacks.map(|column| format!("{table}.{column}")));
    }
    Ok(missing)
}

/// Returns whether the database knows this time zone.
pub(crate) async fn knows_zone(pool: &PgPool, zone: &str) -> Result<bool, StoreError> {
    let known = "SELECT EXISTS (SELECT FROM pg_timezone_names WHERE name = $1)";
    Ok(sqlx::query_scalar(known).bind(zone).fetch_one(pool).await?)
}

/// Returns the problem of an engine without its tables.
pub(crate) fn without_tables(engine: &str, missing: &[String]) -> String {
    format!(
        "the database has no tables of {engine} that Jobwire knows: {} is missing; check the \
         database's URL, the rights of the role, `engine_type` and `engine_schema`",
        missing.join(", ")
    )
}

/// Selects the schemas and prefixes of the table that every engine has. Returns at most 20.
const ELSEWHERE: &str = "
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND lower(c.relname) LIKE '%act\\_ru\\_job' AND c.oid IS DISTINCT FROM to_regclass('act_ru_job')
ORDER BY 1, 2 LIMIT 20";

/// Returns the places of job tables that a probe did not find, each with the remedy: another
/// schema, or a table prefix.
pub(crate) async fn elsewhere(pool: &PgPool) -> Result<Vec<String>, StoreError> {
    let found: Vec<(String, String)> = sqlx::query_as(ELSEWHERE).fetch_all(pool).await?;
    let told = found.iter().map(|(schema, table)| match &**table {
        "act_ru_job" => {
            format!("the schema `{schema}` has a table `act_ru_job`; set `engine_schema` to it")
        }
        prefixed => format!(
            "the table `{schema}.{prefixed}` has a table prefix in its name \
             (`databaseTablePrefix`), which Jobwire does not support; a prefix that is a schema, \
             such as `acme.`, is the setting `engine_schema`"
        ),
    });
    Ok(told.collect())
}

/// Returns the problems of the zone. `newest` is the newest time that the engine wrote, read in
/// this zone.
pub(crate) fn zone_problems(
    zone: &str,
    is_unknown: bool,
    newest: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Vec<String> {
    let mut problems = Vec::new();
    if is_unknown {
        problems.push(format!(
            "the database knows no time zone `{zone}`; set `engine_zone` to the zone of the \
             engine's JVM, such as `UTC` or `Europe/Berlin`"
        ));
    }
    if let Some(newest) = newest
        && newest > now + chrono::Duration::minutes(10)
    {
        problems.push(format!(
            "the newest entry of the engine is {} minutes in the future if its clock shows \
             `{zone}`; set `engine_zone` to the zone of the engine's JVM",
            (newest - now).num_minutes()
        ));
    }
    problems
}

/// Returns a remark if the newest time that the engine wrote is old by the difference of two zones,
/// to the minute. An engine that wrote it just now has another zone. Then timers would start early,
/// and locks of living engine nodes would be cleared.
pub(crate) fn zone_remark(
    zone: &str,
    newest: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Option<Finding> {
    let age = now - newest?;
    let quarters = age.num_seconds().div_euclid(900);
    let past_quarter = age.num_seconds().rem_euclid(900);
    // Zones differ by 15 minutes at least, and by 26 hours at most.
    let fits = (1..=26 * 4).contains(&quarters) && past_quarter < 60;
    fits.then(|| {
        Finding::bad(
            Level::Remark,
            "zone",
            format!(
                "the newest entry of the engine is {} h {} min old by the clock of `{zone}`; if \
                 the engine has just worked, its JVM has another zone",
                quarters / 4,
                quarters % 4 * 15
            ),
            "set `engine_zone` to the zone of the engine's JVM; with a wrong one timers start \
             early, and jobs may run twice. Start an instance, and ask again to be sure",
        )
    })
}

/// Fails with all problems, if there are any.
pub(crate) fn refuse(problems: &[String]) -> Result<(), StoreError> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(StoreError::Config(problems.join("; ")))
}

/// Returns the problems as findings, or the finding `fine` if there is none.
pub(crate) fn found(problems: Vec<String>, fine: impl FnOnce() -> String) -> Vec<Finding> {
    let about = "engine";
    if problems.is_empty() {
        return vec![Finding::fine(about, fine())];
    }
    let problems = problems.into_iter();
    problems
        .map(|problem| Finding::wrong(about, problem))
        .collect()
}

/// Returns the remark that an engine node executes jobs by itself. `off` is the property that
/// prevents this.
pub(crate) fn polls(off: &str) -> Finding {
    Finding::bad(
        Level::Remark,
        "executor",
        "jobs are locked by an engine node, which executes them by itself",
        format!(
            "this works beside Jobwire; to hand all jobs over, set `{off}` on every engine node"
        ),
    )
}

/// Returns the finding about handlers that are not the engine's own, if there are any.
pub(crate) fn own_handlers(handlers: &[String]) -> Option<Finding> {
    let found = || {
        let names = handlers.join(", ");
        format!("handlers of your own run as type `{OTHER}`: {names}")
    };
    (!handlers.is_empty()).then(|| Finding::fine("handlers", found()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_old_by_the_difference_of_two_zones_is_remarked() {
        let now = Utc::now();
        let remark =
            |seconds| zone_remark("UTC", Some(now - chrono::Duration::seconds(seconds)), now);
        // An engine in New York, in winter, that wrote an entry three seconds ago.
        let found = remark(5 * 3_600 + 3).expect("a remark").found;
        assert!(found.contains("5 h 0 min"), "{found}");
        assert!(remark(5 * 3_600 + 1_800 + 59).is_some(), "Kolkata");
        for fine in [0, 3, 59, 600, 5 * 3_600 + 90, 27 * 3_600, -3] {
            assert!(remark(fine).is_none(), "{fine} s");
        }
        assert!(zone_remark("UTC", None, now).is_none());
    }
}
