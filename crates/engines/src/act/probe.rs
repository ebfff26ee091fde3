//! The probe: checks which engine wrote these tables, and whether Jobwire can run its jobs.
//!
//! The probe changes nothing. It refuses an unknown engine or setting, with an error that names the
//! remedy.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use sqlx::{PgPool, Row};

use super::Act;
use super::family::Family;
use super::sql::of_processes;
use crate::finding::{Finding, Level};
use crate::id::job_id;
use crate::options::{Execution, OtherScopes};
use crate::probing;
use crate::zone::{ends, moment_of, stamps};

/// The remedy for jobs of cases. One property of Spring turns both executors off.
const KEEP_CMMN: &str = "keep an engine node whose CMMN engine has its executor on, although \
                         `flowable.async-executor-activate=false` turns it off, too: an \
                         `EngineConfigurationConfigurer` for `SpringCmmnEngineConfiguration` sets \
                         `asyncExecutorActivate` to true; then try again when they have run";

/// The findings of the probe.
#[derive(Clone, Debug)]
pub(super) struct Probed {
    family: &'static Family,
    execution: Execution,
    /// What is done with jobs of other scopes.
    leaves: OtherScopes,
    /// The schema version that the engine wrote.
    version: Option<String>,
    /// The other engine of the family that has these tables, if they are not this engine's.
    other_engine: Option<&'static str>,
    /// Tables and columns that are missing, as `table` or `table.column`.
    missing: Vec<String>,
    /// The other places that have tables of jobs, each with the remedy.
    elsewhere: Vec<String>,
    /// Whether the engine keeps numbers of jobs on executions; `None` while there is no execution.
    counts: Option<bool>,
    /// A job id that Jobwire can't name.
    unknown_id: Option<String>,
    /// The number of jobs of other scopes, by scope: CMMN, and others.
    other_scopes: BTreeMap<String, i64>,
    /// The number of jobs of asynchronous history.
    history_jobs: i64,
    /// Handler types that are not the engine's own.
    own_handlers: Vec<String>,
    /// The newest creation of a job or an instance, by the engine's clock in the configured zone.
    newest: Option<DateTime<Utc>>,
    /// The database's clock.
    now: DateTime<Utc>,
    /// Whether the database does not know the zone.
    unknown_zone: bool,
    /// The zone that was assumed.
    zone: String,
    /// Whether an engine node executes jobs by itself: an owner of the engine has locked some jobs.
    polls: bool,
    /// Whether an executor of the engine has acquired jobs under a global lock.
    global_lock: bool,
}

impl Probed {
    /// Returns the problems that prevent a node's start, each with the remedy.
    fn problems(&self) -> Vec<String> {
        let (family, mut problems) = (self.family, Vec::new());
        if let Some(other) = &self.other_engine {
            problems.push(format!(
                "the tables are those of {other}, not of {}; set `engine_type` to the engine that \
                 wrote them",
                family.title
            ));
            return problems;
        }
        if !self.missing.is_empty() {
            problems.push(probing::without_tables(family.title, &self.missing));
            problems.extend(self.elsewhere.iter().cloned());
            return problems;
        }
        let version = self.version.as_deref();
        problems.extend(family.unknown_version(version));
        if self.execution == Execution::Rest && version.is_some_and(|v| v.starts_with("8.")) {
            problems.push(
                "Flowable 8 has no REST interface for jobs; add the execution endpoint to the \
                 engine, set `engine_execute` to `endpoint`, and `engine_url` to where it stands, \
                 such as https://host/jobwire"
                    .to_owned(),
            );
        }
        if let Some(id) = &self.unknown_id {
            problems.extend(job_id(id).err().map(|error| error.to_string()));
        }
        if self.leaves == OtherScopes::Refuse {
            problems.extend(self.of_other_scopes().map(|(what, remedy)| {
                format!(
                    "{what}; Jobwire runs the jobs of processes only: {remedy}; or, if such a node runs \
                     them already, set `engine_other_scopes` to `leave`"
                )
            }));
        }
        let zone = probing::zone_problems(&self.zone, self.unknown_zone, self.newest, self.now);
        problems.extend(zone);
        problems
    }

    /// Returns a sentence and the remedy for the jobs of each other scope.
    fn of_other_scopes(&self) -> impl Iterator<Item = (String, &'static str)> {
        self.other_scopes.iter().map(|(scope, jobs)| {
            let remedy = match &**scope {
                "cmmn" => KEEP_CMMN,
                _ => "let an engine node with its own executor run the others",
            };
            (format!("{jobs} jobs have the scope `{scope}`"), remedy)
        })
    }

    /// Returns whether the tables can be read.
    pub(super) fn is_readable(&self) -> bool {
        self.missing.is_empty() && self.other_engine.is_none()
    }

    /// Returns the findings for the operator.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let fine = || {
            format!(
                "{}, schema version {}, counts {}, zone {}",
                self.family.title,
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
            findings.push(probing::polls(self.family.hand_over));
        }
        if self.global_lock {
            findings.push(Finding::bad(
                Level::Remark,
                "executor",
                "an engine node has acquired jobs under the engine's global lock; under that lock it replaces \
                 Jobwire's locks of jobs, so a job may run twice",
                "set `flowable.process.async.executor.global-acquire-lock-enabled=false` on every engine node that \
                 executes jobs beside Jobwire; then delete the rows of `ACT_GE_PROPERTY` whose names end in \
                 `acquireAsyncJobsLock` or `acquireTimerJobsLock`, which stay when the setting is off",
            ));
        }
        if self.leaves == OtherScopes::Leave {
            let left = self.of_other_scopes();
            findings.extend(left.map(|(what, remedy)| {
                let what = format!("{what}; `engine_other_scopes` leaves them to the engine");
                Finding::bad(Level::Remark, "scopes", what, remedy)
            }));
        }
        if self.history_jobs > 0 {
            findings.push(Finding::bad(
                Level::Remark,
                "history",
                format!(
                    "{} jobs of asynchronous history wait; they stay with the engine",
                    self.history_jobs
                ),
                "leave the engine's executor of asynchronous history on: `flowable.async-history-executor-activate=true`",
            ));
        }
        findings.extend(probing::zone_remark(&self.zone, self.newest, self.now));
        findings.extend(probing::own_handlers(&self.own_handlers));
        findings
    }

    /// Fails if there is a problem.
    ///
    /// # Errors
    /// [`StoreError::Config`] with all problems.
    pub(super) fn refuse(&self) -> Result<(), StoreError> {
        probing::refuse(&self.problems())
    }
}

/// The table of executable jobs.
const JOBS: &str = "act_ru_job";

/// Selects the schema version. Version 7 and later write it as `common.schema.version`, older ones
/// as `schema.version`.
pub(super) const VERSION: &str = "
SELECT value_ FROM act_ge_property WHERE name_ IN ('schema.version', 'common.schema.version') AND value_ IS NOT NULL
ORDER BY name_ LIMIT 1";

/// Selects facts about the jobs. Reads a bounded number of rows. `$1`: the zone.
pub(super) const FACTS: &str = concat!(
    "
SELECT clock_timestamp(),
    (SELECT bool_or(is_count_enabled_) FROM (SELECT is_count_enabled_ FROM act_ru_execution LIMIT 1000) e),
    (SELECT max(at) FROM (
        (SELECT max(",
    moment_of!("create_time_"),
    ") AS at FROM (SELECT {create_time_} FROM act_ru_job LIMIT 1000) j)
        UNION ALL (SELECT max(",
    moment_of!("create_time_"),
    ") FROM (SELECT {create_time_} FROM act_ru_timer_job LIMIT 1000) t)
        UNION ALL (SELECT max(",
    moment_of!("start_time_"),
    ") FROM (SELECT start_time_ FROM act_ru_execution LIMIT 1000) e)) n),
    EXISTS (SELECT FROM (SELECT lock_owner_ FROM act_ru_job j WHERE ",
    of_processes!("j"),
    " LIMIT 100000) j
        WHERE lock_owner_ IS NOT NULL AND NOT starts_with(lock_owner_, 'jobwire:'))"
);

/// Selects rows with a time that the engine wrote when it made their id. Reads a bounded number of
/// rows. Leaves out jobs with a due date: these are moved timers, whose time Jobwire wrote. `$1`: the
/// zone.
pub(super) const STAMPS: &str = stamps!(
    "
    (SELECT id_, create_time_ AS written FROM (",
    ends!("id_, duedate_, {create_time_}", "act_ru_job"),
    ") j WHERE duedate_ IS NULL)
    UNION ALL ",
    ends!("id_, {create_time_}", "act_ru_timer_job"),
    "
    UNION ALL ",
    ends!("id_, start_time_", "act_ru_execution")
);

/// Selects whether the engine has a global lock for the acquisition of jobs or timers. A setting puts a
/// prefix before its name. The row stays when the lock is free.
const GLOBAL_LOCK: &str = "
SELECT EXISTS (SELECT FROM act_ge_property
    WHERE name_ LIKE '%acquireAsyncJobsLock' OR name_ LIKE '%acquireTimerJobsLock')";

const IDS: &str = "
(SELECT id_ FROM act_ru_job LIMIT 1000) UNION ALL (SELECT id_ FROM act_ru_timer_job LIMIT 1000)
UNION ALL (SELECT id_ FROM act_ru_deadletter_job LIMIT 1000) UNION ALL (SELECT id_ FROM act_ru_suspended_job LIMIT 1000)";

/// Counts the jobs of other scopes, up to 100,000 in each table.
pub(super) const SCOPES: &str = concat!(
    "
SELECT scope_type_, count(*) FROM (
    (SELECT {j.scope_type_} AS scope_type_ FROM act_ru_job j WHERE NOT ",
    of_processes!("j"),
    " LIMIT 100000)
    UNION ALL (SELECT {j.scope_type_} FROM act_ru_timer_job j WHERE NOT ",
    of_processes!("j"),
    " LIMIT 100000)) j
GROUP BY 1 ORDER BY 1 LIMIT 20"
);

const HANDLERS: &str = "
SELECT DISTINCT handler_type_ FROM (
    (SELECT handler_type_ FROM act_ru_job LIMIT 100000) UNION ALL (SELECT handler_type_ FROM act_ru_timer_job LIMIT 100000)) j
WHERE handler_type_ <> ALL($1) AND handler_type_ NOT LIKE 'cmmn%' ORDER BY 1 LIMIT 20";

impl Act {
    /// Probes the tables.
    ///
    /// # Errors
    /// The database's error. Findings are no errors: see [`Probed::refuse`].
    pub(super) async fn probed(&self, pool: &PgPool) -> Result<Probed, StoreError> {
        let mut probed = Probed {
            family: self.family,
            execution: self.execution,
            leaves: self.other_scopes,
            version: None,
            other_engine: None,
            missing: probing::missing(pool, &self.family.needed()).await?,
            elsewhere: Vec::new(),
            counts: None,
            unknown_id: None,
            other_scopes: BTreeMap::new(),
            history_jobs: 0,
            own_handlers: Vec::new(),
            newest: None,
            now: DateTime::default(),
            unknown_zone: false,
            zone: self.zone.name().to_owned(),
            polls: false,
            global_lock: false,
        };
        if let Some((column, other)) = self.family.foreign {
            let foreign = probing::missing(pool, &[(JOBS, vec![column])]).await?;
            probed.other_engine = foreign.is_empty().then_some(other);
        }
        if !probed.missing.is_empty() || probed.other_engine.is_some() {
            probed.elsewhere = probing::elsewhere(pool).await?;
            return Ok(probed);
        }
        probed.version = version(pool).await?;
        let known = probing::knows_zone(pool, self.zone.name()).await?;
        probed.unknown_zone = !known;
        let assumed = if known { self.zone.name() } else { "UTC" };
        let facts = sqlx::query(self.sql.facts).bind(assumed);
        let row = facts.fetch_one(pool).await?;
        probed.now = row.try_get(0)?;
        probed.counts = row.try_get(1)?;
        probed.newest = row.try_get(2)?;
        probed.polls = row.try_get(3)?;
        probed.global_lock = sqlx::query_scalar(GLOBAL_LOCK).fetch_one(pool).await?;
        let ids: Vec<String> = sqlx::query_scalar(IDS).fetch_all(pool).await?;
        probed.unknown_id = ids.into_iter().find(|id| job_id(id).is_err());
        probed.other_scopes = self.of_other_scopes(pool).await?.into_iter().collect();
        probed.history_jobs = history_jobs(pool).await?;
        probed.own_handlers = sqlx::query_scalar(HANDLERS)
            .bind(self.family.types)
            .fetch_all(pool)
            .await?;
        Ok(probed)
    }
}

impl Act {
    /// Returns the number of jobs of other scopes, by scope.
    pub(super) async fn of_other_scopes(
        &self,
        pool: &PgPool,
    ) -> Result<Vec<(String, i64)>, StoreError> {
        Ok(sqlx::query_as(self.sql.scopes).fetch_all(pool).await?)
    }
}

/// Returns the number of jobs of asynchronous history, up to 100,000; 0 if the engine has no such
/// table, or the role may not read it.
async fn history_jobs(pool: &PgPool) -> Result<i64, StoreError> {
    let is_readable =
        "SELECT coalesce(has_table_privilege(to_regclass('act_ru_history_job'), 'SELECT'), false)";
    let is_readable: bool = sqlx::query_scalar(is_readable).fetch_one(pool).await?;
    if !is_readable {
        return Ok(0);
    }
    let count = "SELECT count(*) FROM (SELECT FROM act_ru_history_job LIMIT 100000) h";
    Ok(sqlx::query_scalar(count).fetch_one(pool).await?)
}

/// Returns the schema version that the engine wrote; `None` if its table is missing.
pub(super) async fn version(pool: &PgPool) -> Result<Option<String>, StoreError> {
    let missing = probing::missing(pool, &[("act_ge_property", ["name_", "value_"])]);
    if !missing.await?.is_empty() {
        return Ok(None);
    }
    Ok(sqlx::query_scalar(VERSION).fetch_optional(pool).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{activiti, flowable};

    fn good() -> Probed {
        Probed {
            family: &flowable::FAMILY,
            execution: Execution::Rest,
            leaves: OtherScopes::Refuse,
            version: Some("7.2.0.2".to_owned()),
            other_engine: None,
            missing: Vec::new(),
            elsewhere: Vec::new(),
            counts: None,
            unknown_id: None,
            other_scopes: BTreeMap::new(),
            history_jobs: 0,
            own_handlers: Vec::new(),
            newest: None,
            now: Utc::now(),
            unknown_zone: false,
            zone: "UTC".to_owned(),
            polls: false,
            global_lock: false,
        }
    }

    #[test]
    fn a_known_engine_is_accepted_and_each_problem_names_its_remedy() {
        assert!(good().refuse().is_ok());
        type Spoil = fn(&mut Probed);
        let cases: [(Spoil, &str); 9] = [
            (
                |p| p.missing = vec!["act_ru_job".to_owned()],
                "engine_schema",
            ),
            (|p| p.other_engine = Some("Activiti"), "engine_type"),
            (|p| p.version = Some("6.4.1.3".to_owned()), "6.8, 7 and 8.0"),
            (
                |p| p.version = Some("8.0.0.0".to_owned()),
                "`engine_execute` to `endpoint`",
            ),
            (
                |p| p.family = &activiti::FAMILY,
                "knows Activiti 6.0 and 7.1",
            ),
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

    #[test]
    fn jobs_of_other_scopes_can_be_left_to_the_engine() {
        let mut probed = good();
        probed.leaves = OtherScopes::Leave;
        probed.other_scopes = [("cmmn".to_owned(), 3)].into();
        assert!(probed.refuse().is_ok());
        let findings = probed.findings();
        let remark = findings.iter().find(|finding| finding.about == "scopes");
        let remark = remark.expect("a remark");
        assert!(
            remark.found.contains("3 jobs have the scope `cmmn`"),
            "{remark:?}"
        );
    }

    #[test]
    fn the_endpoint_opens_the_versions_without_rest() {
        let mut probed = good();
        probed.execution = Execution::Endpoint;
        probed.version = Some("8.0.0.0".to_owned());
        assert!(probed.refuse().is_ok());
        probed.family = &activiti::FAMILY;
        for version in ["6.0.0.4", "7.1.0-M6"] {
            probed.version = Some(version.to_owned());
            assert!(probed.refuse().is_ok(), "{version}");
        }
    }
}
