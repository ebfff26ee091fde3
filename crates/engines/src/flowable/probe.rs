//! The probe: which engine wrote these tables, and whether Jobwire can run its jobs.
//!
//! It changes nothing. What it does not know it refuses, with a sentence that names the remedy.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use sqlx::{PgPool, Row};

use crate::examine::Finding;
use crate::id::job_id;
use crate::probing;

/// The columns that the statements use, by table.
const NEEDED: [(&str, &[&str]); 7] = [
    (
        "act_ru_job",
        &[
            "id_",
            "rev_",
            "category_",
            "type_",
            "lock_exp_time_",
            "lock_owner_",
            "exclusive_",
            "execution_id_",
            "process_instance_id_",
            "proc_def_id_",
            "element_id_",
            "element_name_",
            "scope_id_",
            "sub_scope_id_",
            "scope_type_",
            "scope_definition_id_",
            "correlation_id_",
            "retries_",
            "exception_stack_id_",
            "exception_msg_",
            "duedate_",
            "repeat_",
            "handler_type_",
            "handler_cfg_",
            "custom_values_id_",
            "create_time_",
            "tenant_id_",
        ],
    ),
    (
        "act_ru_timer_job",
        &[
            "id_",
            "duedate_",
            "lock_exp_time_",
            "lock_owner_",
            "correlation_id_",
            "retries_",
        ],
    ),
    ("act_ru_suspended_job", &["id_", "retries_"]),
    ("act_ru_deadletter_job", &["id_", "exception_msg_"]),
    (
        "act_ru_execution",
        &[
            "id_",
            "rev_",
            "lock_time_",
            "lock_owner_",
            "suspension_state_",
            "is_count_enabled_",
            "job_count_",
            "timer_job_count_",
            "start_time_",
        ],
    ),
    ("act_ge_property", &["name_", "value_"]),
    ("act_ge_bytearray", &["id_", "bytes_"]),
];

/// The schema versions that are supported, as beginnings.
const VERSIONS: [&str; 3] = ["6.8.", "7.", "8.0."];

/// What to do with the jobs of cases. One property of Spring turns both executors off.
const KEEP_CMMN: &str = "keep an engine node whose CMMN engine has its executor on, although \
     `flowable.async-executor-activate=false` turns it off, too: an `EngineConfigurationConfigurer` for \
     `SpringCmmnEngineConfiguration` sets `asyncExecutorActivate` to true; then try again when they have run";

/// What the probe found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Probed {
    /// The schema version that the engine wrote.
    pub version: Option<String>,
    /// Tables and columns that are missing, as `table` or `table.column`.
    pub missing: Vec<String>,
    /// Where tables of jobs are instead, each with the remedy.
    pub elsewhere: Vec<String>,
    /// Whether the engine keeps numbers of jobs on executions; `None` while there is no execution.
    pub counts: Option<bool>,
    /// A job id that Jobwire can't name.
    pub unknown_id: Option<String>,
    /// The number of jobs of other scopes, by scope: CMMN, and others.
    pub other_scopes: BTreeMap<String, i64>,
    /// Handler types that are not Flowable's own.
    pub own_handlers: Vec<String>,
    /// The newest creation of a job or an instance, by the engine's clock in the configured zone.
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
            problems.push(probing::without_tables("Flowable", &self.missing));
            problems.extend(self.elsewhere.iter().cloned());
            return problems;
        }
        let is_known = |version: &String| VERSIONS.iter().any(|known| version.starts_with(known));
        if !self.version.as_ref().is_some_and(is_known) {
            problems.push(format!(
                "the schema version of the engine is {}; Jobwire knows Flowable 6.8, 7 and 8.0",
                self.version.as_deref().unwrap_or("not recorded")
            ));
        }
        if let Some(id) = &self.unknown_id {
            problems.extend(job_id(id).err().map(|error| error.to_string()));
        }
        for (scope, jobs) in &self.other_scopes {
            let remedy = match &**scope {
                "cmmn" => KEEP_CMMN,
                _ => "let an engine node with its own executor run the others",
            };
            problems.push(format!(
                "{jobs} jobs have the scope `{scope}`; Jobwire runs the jobs of processes only: {remedy}"
            ));
        }
        let zone = probing::zone_problems(&self.zone, self.unknown_zone, self.newest, self.now);
        problems.extend(zone);
        problems
    }

    /// Returns what an operator should know.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let fine = || {
            format!(
                "Flowable, schema version {}, counts {}, zone {}",
                self.version.as_deref().unwrap_or("unknown"),
                match self.counts {
                    Some(true) => "enabled",
                    Some(false) => "off",
                    None => "unknown yet",
                },
                self.zone
            )
        };
        let mut findings = probing::found(self.problems(), fine);
        if self.polls {
            findings.push(probing::polls("flowable.async-executor-activate=false"));
        }
        findings.extend(probing::own_handlers(&self.own_handlers));
        findings
    }

    /// Fails if something stands in the way.
    ///
    /// # Errors
    /// [`StoreError::Config`] with all problems.
    pub fn refuse(&self) -> Result<(), StoreError> {
        probing::refuse(&self.problems())
    }
}

/// `common.schema.version` is written by 7 and later; before, `schema.version`.
const VERSION: &str = "
SELECT value_ FROM act_ge_property WHERE name_ IN ('schema.version', 'common.schema.version') AND value_ IS NOT NULL
ORDER BY name_ LIMIT 1";

/// `$1`: the zone. Looks at a bounded number of rows.
const FACTS: &str = "
SELECT clock_timestamp(),
    (SELECT bool_or(is_count_enabled_) FROM (SELECT is_count_enabled_ FROM act_ru_execution LIMIT 1000) e),
    (SELECT max(at) FROM (
        (SELECT max(create_time_) AS at FROM (SELECT create_time_ FROM act_ru_job LIMIT 1000) j)
        UNION ALL (SELECT max(create_time_) FROM (SELECT create_time_ FROM act_ru_timer_job LIMIT 1000) t)
        UNION ALL (SELECT max(start_time_) FROM (SELECT start_time_ FROM act_ru_execution LIMIT 1000) e)) n) AT TIME ZONE $1,
    EXISTS (SELECT FROM (SELECT lock_owner_ FROM act_ru_job LIMIT 100000) j
        WHERE lock_owner_ IS NOT NULL AND NOT starts_with(lock_owner_, 'jobwire:'))";

const IDS: &str = "
(SELECT id_ FROM act_ru_job LIMIT 1000) UNION ALL (SELECT id_ FROM act_ru_timer_job LIMIT 1000)
UNION ALL (SELECT id_ FROM act_ru_deadletter_job LIMIT 1000) UNION ALL (SELECT id_ FROM act_ru_suspended_job LIMIT 1000)";

const SCOPES: &str = "
SELECT scope_type_, count(*) FROM (
    SELECT scope_type_ FROM act_ru_job UNION ALL SELECT scope_type_ FROM act_ru_timer_job) j
WHERE scope_type_ IS NOT NULL AND scope_type_ <> 'bpmn' GROUP BY 1 ORDER BY 1 LIMIT 20";

const HANDLERS: &str = "
SELECT DISTINCT handler_type_ FROM (
    (SELECT handler_type_ FROM act_ru_job LIMIT 100000) UNION ALL (SELECT handler_type_ FROM act_ru_timer_job LIMIT 100000)) j
WHERE handler_type_ <> ALL($1) AND handler_type_ NOT LIKE 'cmmn%' ORDER BY 1 LIMIT 20";

/// Probes the tables. `zone` is the zone of the engine's JVM.
///
/// # Errors
/// As the database reports. What was found is no error: see [`Probed::refuse`].
pub async fn probe(pool: &PgPool, zone: &str) -> Result<Probed, StoreError> {
    let mut probed = Probed {
        zone: zone.to_owned(),
        ..Probed::default()
    };
    probed.missing = probing::missing(pool, &NEEDED).await?;
    if !probed.missing.is_empty() {
        probed.elsewhere = probing::elsewhere(pool).await?;
        return Ok(probed);
    }
    probed.version = sqlx::query_scalar(VERSION).fetch_optional(pool).await?;
    let known = probing::knows_zone(pool, zone).await?;
    probed.unknown_zone = !known;
    let assumed = if known { zone } else { "UTC" };
    let row = sqlx::query(FACTS).bind(assumed).fetch_one(pool).await?;
    probed.now = row.try_get(0)?;
    probed.counts = row.try_get(1)?;
    probed.newest = row.try_get(2)?;
    probed.polls = row.try_get(3)?;
    let ids: Vec<String> = sqlx::query_scalar(IDS).fetch_all(pool).await?;
    probed.unknown_id = ids.into_iter().find(|id| job_id(id).is_err());
    for row in &sqlx::query(SCOPES).fetch_all(pool).await? {
        probed.other_scopes.insert(row.try_get(0)?, row.try_get(1)?);
    }
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
            version: Some("7.2.0.2".to_owned()),
            zone: "UTC".to_owned(),
            now: Utc::now(),
            ..Probed::default()
        }
    }

    #[test]
    fn a_known_engine_is_accepted_and_each_problem_names_its_remedy() {
        assert!(good().refuse().is_ok());
        type Spoil = fn(&mut Probed);
        let cases: [(Spoil, &str); 6] = [
            (
                |p| p.missing = vec!["act_ru_job".to_owned()],
                "engine_schema",
            ),
            (|p| p.version = Some("6.4.1.3".to_owned()), "6.8, 7 and 8.0"),
            (
                |p| p.unknown_id = Some("order-1".to_owned()),
                "StrongUuidGenerator",
            ),
            (
                |p| p.other_scopes = [("cmmn".to_owned(), 3)].into(),
                "SpringCmmnEngineConfiguration",
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
}
