//! The probe: checks which engine wrote these tables, and whether Jobwire can run its jobs.
//!
//! The probe changes nothing. It refuses an unknown engine or setting, with an error that names the
//! remedy.

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use sqlx::{PgPool, Row};

use super::{HAND_OVER, TITLE};
use crate::finding::Finding;
use crate::id::job_id;
use crate::probing;
use crate::zone::{ends, moment_of, stamps};

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

/// The findings of the probe.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Probed {
    /// The newest version in the engine's log of its schema.
    pub version: Option<String>,
    /// Tables and columns that are missing, as `table` or `table.column`.
    pub missing: Vec<String>,
    /// The other places that have tables of jobs, each with the remedy.
    pub elsewhere: Vec<String>,
    /// A job id that Jobwire can't name.
    pub unknown_id: Option<String>,
    /// Handler types that are not Camunda's own. Their jobs run with the type `other`.
    pub own_handlers: Vec<String>,
    /// The newest creation of a job, by the engine's clock in the configured zone.
    pub newest: Option<DateTime<Utc>>,
    /// The database's clock.
    pub now: DateTime<Utc>,
    /// Whether the database does not know the zone.
    pub unknown_zone: bool,
    /// The zone that was assumed.
    pub zone: String,
    /// Whether an engine node executes jobs by itself: an owner of the engine has locked some jobs.
    pub polls: bool,
}

impl Probed {
    /// Returns the problems that prevent a node's start, each with the remedy.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.missing.is_empty() {
            problems.push(probing::without_tables("Camunda 7", &self.missing));
            problems.extend(self.elsewhere.iter().cloned());
            return problems;
        }
        problems.extend(unknown_version(self.version.as_deref()));
        if let Some(id) = &self.unknown_id {
            problems.extend(job_id(id).err().map(|error| error.to_string()));
        }
        let zone = probing::zone_problems(&self.zone, self.unknown_zone, self.newest, self.now);
        problems.extend(zone);
        problems
    }

    /// Returns the findings for the operator.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let fine = || {
            format!(
                "{TITLE}, version {}, zone {}",
                self.version.as_deref().unwrap_or("unknown"),
                self.zone
            )
        };
        let mut findings = probing::found(self.problems(), fine);
        if self.polls {
            findings.push(probing::polls(HAND_OVER));
        }
        findings.extend(probing::zone_remark(&self.zone, self.newest, self.now));
        findings.extend(probing::own_handlers(&self.own_handlers));
        findings
    }

    /// Fails if there is a problem.
    ///
    /// # Errors
    /// [`StoreError::Config`] with all problems.
    pub fn refuse(&self) -> Result<(), StoreError> {
        probing::refuse(&self.problems())
    }
}

/// Returns the problem of a schema version that is not known.
pub(crate) fn unknown_version(version: Option<&str>) -> Option<String> {
    if version.is_some_and(is_known) {
        return None;
    }
    Some(format!(
        "the schema version of the engine is {}; Jobwire knows Camunda 7.20 to 7.29, Operaton and \
         CIB seven",
        version.unwrap_or("not recorded")
    ))
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

const VERSION: &str = "
SELECT version_ FROM act_ge_schema_log ORDER BY timestamp_ DESC NULLS LAST, length(id_) DESC, id_ DESC LIMIT 1";

/// Selects facts about the jobs. Reads a bounded number of rows. `$1`: the zone.
const FACTS: &str = concat!(
    "
SELECT clock_timestamp(),
    (SELECT max(",
    moment_of!("create_time_"),
    ") FROM (SELECT create_time_ FROM act_ru_job LIMIT 1000) j),
    EXISTS (SELECT FROM (SELECT lock_owner_ FROM act_ru_job LIMIT 100000) j
        WHERE lock_owner_ IS NOT NULL AND NOT starts_with(lock_owner_, 'jobwire:'))"
);

/// Selects rows with the time that the engine wrote when it made their id. Reads a bounded number
/// of rows. `$1`: the zone.
pub(super) const STAMPS: &str = stamps!(
    "SELECT id_, create_time_ AS written FROM (",
    ends!("id_, create_time_", "act_ru_job"),
    ") j"
);

const HANDLERS: &str = "
SELECT DISTINCT handler_type_ FROM (SELECT handler_type_ FROM act_ru_job LIMIT 100000) j
WHERE handler_type_ <> ALL($1) ORDER BY 1 LIMIT 20";

/// Probes the tables. `zone` is the zone of the engine's JVM.
///
/// # Errors
/// The database's error. Problems are findings and no errors: see [`Probed::refuse`].
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
