//! The probe: which engine wrote these tables, and whether Jobwire can run its jobs.
//!
//! It changes nothing. What it does not know it refuses, with a sentence that names the remedy.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use sqlx::{PgPool, Row};

use crate::decode::OTHER;
use crate::examine::{Finding, Level};
use crate::id::job_id;

/// The columns that the statements use, by table.
const NEEDED: [(&str, &[&str]); 4] = [
    (
        "act_ru_job",
        &[
            "id_",
            "rev_",
            "type_",
            "lock_exp_time_",
            "lock_owner_",
            "execution_id_",
            "process_instance_id_",
            "process_def_id_",
            "retries_",
            "exception_stack_id_",
            "exception_msg_",
            "failed_act_id_",
            "duedate_",
            "handler_type_",
            "deployment_id_",
            "suspension_state_",
            "priority_",
            "sequence_counter_",
            "tenant_id_",
            "create_time_",
        ],
    ),
    ("act_ru_execution", &["id_", "suspension_state_"]),
    ("act_ge_schema_log", &["timestamp_", "version_"]),
    ("act_ge_bytearray", &["id_", "bytes_"]),
];

/// What the probe found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Probed {
    /// The newest version in the engine's log of its schema.
    pub version: Option<String>,
    /// Tables and columns that are missing, as `table` or `table.column`.
    pub missing: Vec<String>,
    /// A job id that Jobwire can't name.
    pub unknown_id: Option<String>,
    /// Handler types that are not Camunda's own. Their jobs run with the type `other`.
    pub own_handlers: Vec<String>,
    /// The newest creation of a job, by the engine's clock in the configured zone.
    pub newest: Option<DateTime<Utc>>,
    /// The database's clock.
    pub now: DateTime<Utc>,
    /// The zone is unknown to the database.
    pub unknown_zone: bool,
    /// The zone that was assumed.
    pub zone: String,
    /// An engine node executes jobs by itself: some jobs are locked by an owner of the engine.
    pub polls: bool,
}

impl Probed {
    /// Returns what stands in the way, each with the remedy.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.missing.is_empty() {
            problems.push(format!(
                "the database has no tables of Camunda 7 that Jobwire knows: {} is missing; check the database's \
                 URL and `engine_schema`; table prefixes are not supported",
                self.missing.join(", ")
            ));
            return problems;
        }
        if !self.version.as_deref().is_some_and(is_known) {
            problems.push(format!(
                "the schema version of the engine is {}; Jobwire knows Camunda 7.20 to 7.29, Operaton and CIB seven",
                self.version.as_deref().unwrap_or("not recorded")
            ));
        }
        if let Some(id) = &self.unknown_id {
            problems.extend(job_id(id).err().map(|error| error.to_string()));
        }
        if self.unknown_zone {
            problems.push(format!(
                "the database knows no time zone `{}`; set `engine_zone` to the zone of the engine's JVM, such as \
                 `UTC` or `Europe/Berlin`",
                self.zone
            ));
        }
        if let Some(newest) = self.newest
            && newest > self.now + chrono::Duration::minutes(10)
        {
            problems.push(format!(
                "the newest entry of the engine is {} minutes in the future if its clock shows `{}`; set \
                 `engine_zone` to the zone of the engine's JVM",
                (newest - self.now).num_minutes(),
                self.zone
            ));
        }
        problems
    }

    /// Returns what an operator should know.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let about = "engine";
        let problems = self.problems().into_iter();
        let mut findings: Vec<Finding> = problems
            .map(|problem| Finding::wrong(about, problem))
            .collect();
        if findings.is_empty() {
            findings.push(Finding::fine(
                about,
                format!(
                    "Camunda 7 or an engine with its schema, version {}, zone {}",
                    self.version.as_deref().unwrap_or("unknown"),
                    self.zone
                ),
            ));
        }
        if self.polls {
            findings.push(Finding::bad(
                Level::Remark,
                "executor",
                "jobs are locked by an engine node, which executes them by itself",
                "this works beside Jobwire; to hand all jobs over, set `camunda.bpm.job-execution.enabled=false` on every engine node",
            ));
        }
        if !self.own_handlers.is_empty() {
            findings.push(Finding::fine(
                "handlers",
                format!(
                    "handlers of your own run as type `{OTHER}`: {}",
                    self.own_handlers.join(", ")
                ),
            ));
        }
        findings
    }

    /// Fails if something stands in the way.
    ///
    /// # Errors
    /// [`StoreError::Config`] with all problems.
    pub fn refuse(&self) -> Result<(), StoreError> {
        let problems = self.problems();
        if problems.is_empty() {
            return Ok(());
        }
        Err(StoreError::Config(problems.join("; ")))
    }
}

/// Returns whether the version is one of Camunda 7.20 to 7.29, Operaton 1 and 2, or CIB seven 1
/// and 2.
fn is_known(version: &str) -> bool {
    let version = version.strip_prefix("cibseven-").unwrap_or(version);
    let mut numbers = version.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(7)), Some(Ok(minor))) => (20..30).contains(&minor),
        (Some(Ok(1 | 2)), Some(Ok(_))) => true,
        _ => false,
    }
}

const COLUMNS: &str = "
SELECT t.name, a.attname::text FROM unnest($1::text[]) AS t(name)
    LEFT JOIN pg_attribute a ON a.attrelid = to_regclass(t.name) AND a.attnum > 0 AND NOT a.attisdropped";

const VERSION: &str = "
SELECT version_ FROM act_ge_schema_log ORDER BY timestamp_ DESC NULLS LAST, length(id_) DESC, id_ DESC LIMIT 1";

/// `$1`: the zone. Looks at a bounded number of rows.
const FACTS: &str = "
SELECT clock_timestamp(),
    (SELECT max(create_time_) FROM (SELECT create_time_ FROM act_ru_job LIMIT 1000) j) AT TIME ZONE $1,
    EXISTS (SELECT FROM (SELECT lock_owner_ FROM act_ru_job LIMIT 100000) j
        WHERE lock_owner_ IS NOT NULL AND NOT starts_with(lock_owner_, 'jobwire:'))";

const HANDLERS: &str = "
SELECT DISTINCT handler_type_ FROM (SELECT handler_type_ FROM act_ru_job LIMIT 100000) j
WHERE handler_type_ <> ALL($1) ORDER BY 1 LIMIT 20";

/// Probes the tables. `zone` is the zone of the engine's JVM.
///
/// # Errors
/// As the database reports. What was found is no error: see [`Probed::refuse`].
pub async fn probe(pool: &PgPool, zone: &str) -> Result<Probed, StoreError> {
    let mut probed = Probed {
        zone: zone.to_owned(),
        ..Probed::default()
    };
    let tables: Vec<&str> = NEEDED.iter().map(|(table, _)| *table).collect();
    let rows = sqlx::query(COLUMNS).bind(tables).fetch_all(pool).await?;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in &rows {
        let column: Option<String> = row.try_get(1)?;
        found.entry(row.try_get(0)?).or_default().extend(column);
    }
    for (table, columns) in NEEDED {
        let has = found.get(table).map(Vec::as_slice).unwrap_or_default();
        if has.is_empty() {
            probed.missing.push(table.to_owned());
            continue;
        }
        let missing = columns.iter().filter(|c| !has.iter().any(|h| h == *c));
        probed
            .missing
            .extend(missing.map(|column| format!("{table}.{column}")));
    }
    if !probed.missing.is_empty() {
        return Ok(probed);
    }
    probed.version = sqlx::query_scalar(VERSION).fetch_optional(pool).await?;
    let known: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_timezone_names WHERE name = $1)")
            .bind(zone)
            .fetch_one(pool)
            .await?;
    probed.unknown_zone = !known;
    let assumed = if known { zone } else { "UTC" };
    let row = sqlx::query(FACTS).bind(assumed).fetch_one(pool).await?;
    probed.now = row.try_get(0)?;
    probed.newest = row.try_get(1)?;
    probed.polls = row.try_get(2)?;
    let ids: Vec<String> = sqlx::query_scalar("SELECT id_ FROM act_ru_job LIMIT 1000")
        .fetch_all(pool)
        .await?;
    probed.unknown_id = ids.into_iter().find(|id| job_id(id).is_err());
    probed.own_handlers = sqlx::query_scalar(HANDLERS)
        .bind(&super::HANDLER_TYPES[..])
        .fetch_all(pool)
        .await?;
    Ok(probed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Probed {
        Probed {
            version: Some("7.24.0".to_owned()),
            zone: "UTC".to_owned(),
            now: Utc::now(),
            ..Probed::default()
        }
    }

    #[test]
    fn a_known_engine_is_accepted_and_each_problem_names_its_remedy() {
        assert!(good().refuse().is_ok());
        type Spoil = fn(&mut Probed);
        let cases: [(Spoil, &str); 5] = [
            (
                |p| p.missing = vec!["act_ge_schema_log".to_owned()],
                "engine_schema",
            ),
            (|p| p.version = Some("7.13.0".to_owned()), "7.20 to 7.29"),
            (
                |p| p.unknown_id = Some("order-1".to_owned()),
                "StrongUuidGenerator",
            ),
            (|p| p.unknown_zone = true, "engine_zone"),
            (
                |p| p.newest = Some(p.now + chrono::Duration::hours(5)),
                "300 minutes",
            ),
        ];
        for (spoil, said) in cases {
            let mut probed = good();
            spoil(&mut probed);
            let error = probed.refuse().expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn versions_of_engines_that_share_the_schema_are_known_and_others_are_not() {
        for version in ["7.20.0", "7.24.0", "1.0.0", "2.3.0", "cibseven-2.2.0"] {
            assert!(is_known(version), "{version}");
        }
        for version in ["7.19.0", "7.2.0", "7.13.0", "8.0.0", "", "fox"] {
            assert!(!is_known(version), "{version}");
        }
    }
}
