//! `jobs replace-timers`: replaces the start timers of a process definition in one transaction, as
//! [`JobTransaction::replace_start_timers`](jobwire_core::JobTransaction::replace_start_timers) does.

use std::path::PathBuf;

use clap::Args;
use jobwire_core::job::definition_key::DefinitionKey;
use jobwire_core::store::{Ended, EndedScope};
use jobwire_core::{JobId, NewJob};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{Jobs, end};
use crate::commands::{definition_key, enqueue};
use crate::connect::{Database, Outlet};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// The definition and its new timers.
#[derive(Clone, Debug, Args)]
pub struct ReplaceArgs {
    /// The file of the new timers, JSON lines as for `jobwire enqueue`; standard input if it is `-` or
    /// left out
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The process definition, by its exact id
    #[arg(long, value_name = "NAME", visible_alias = "process-definition",
        required_unless_present = "definition_key", conflicts_with_all = ["definition_key", "tenant"])]
    pub definition: Option<String>,
    /// The key of the process definition, for the start timers of all its versions
    #[arg(long, value_name = "KEY")]
    pub definition_key: Option<String>,
    /// With --definition-key: the definitions of this tenant; without it, those that have none
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

impl ReplaceArgs {
    fn whose(self) -> Result<Whose, Error> {
        match (self.definition, self.definition_key) {
            (_, Some(key)) => {
                definition_key::given("definition-key", key, self.tenant).map(Whose::Key)
            }
            (definition, None) => Ok(Whose::Definition(definition.unwrap_or_default())),
        }
    }
}

/// Whose start timers are replaced.
enum Whose {
    Definition(String),
    Key(DefinitionKey),
}

impl Whose {
    fn scope(&self) -> EndedScope {
        match self {
            Self::Definition(name) => EndedScope::StartTimers(name.clone()),
            Self::Key(key) => EndedScope::StartTimersOfKey(key.clone()),
        }
    }
}

/// The result.
#[derive(Serialize)]
struct Report {
    deleted: Vec<JobId>,
    created: Vec<JobId>,
    running: Vec<JobId>,
}

/// Replaces the timers. Without a confirmation, tells how many it would delete.
pub(super) async fn replace(
    jobs: &Jobs<'_>,
    args: ReplaceArgs,
    yes: bool,
    json: bool,
) -> Result<(), Error> {
    let file = args.file.clone();
    let whose = args.whose()?;
    if !yes {
        let count = jobs.store.count(&end::query(&whose.scope())).await?;
        return Err(Error::Usage(format!(
            "{} would be deleted, and those of the file created; check with `jobwire jobs list {}` \
             first, then pass --yes",
            output::count(count.unsigned_abs(), "start timer"),
            end::filters(&whose.scope())
        )));
    }
    let Some(database) = jobs.database else {
        return Err(Error::Usage("this is for jobs of Jobwire".to_owned()));
    };
    let timers = enqueue::few(file.as_deref(), |line| timer(line, &whose))?;
    if timers.is_empty() {
        return Err(Error::Input(
            "there is no new timer; to delete the start timers only, run `jobwire jobs end \
             --start-timers` or `--start-timers-of-key`"
                .to_owned(),
        ));
    }
    let created = timers.iter().map(NewJob::id).collect();
    let replaced = through_outlet(jobs.settings, database, whose, timers).await;
    let Ended {
        deleted, running, ..
    } = replaced?;
    let report = Report {
        deleted,
        created,
        running,
    };
    print(&report, json)
}

async fn through_outlet(
    settings: &Settings,
    database: &Database,
    whose: Whose,
    timers: Vec<NewJob>,
) -> Result<Ended, Error> {
    let outlet = Outlet::open(settings).await?;
    let creator = database.creator(outlet.hook());
    let replaced = match whose {
        Whose::Definition(name) => creator.replace_start_timers(name, timers).await,
        Whose::Key(key) => creator.replace_start_timers_of_key(&key, timers).await,
    };
    outlet.close_and_tell().await;
    Ok(replaced?)
}

/// The fields that tell whether a job is a start timer.
#[derive(Deserialize)]
struct Start {
    process_definition: Option<String>,
    tenant: Option<String>,
    process_instance: Option<IgnoredAny>,
    unique_key: Option<IgnoredAny>,
    kind: Option<IgnoredAny>,
    due_at: Option<IgnoredAny>,
    due_in: Option<IgnoredAny>,
    repeat: Option<IgnoredAny>,
}

/// Reads a line, which has to be a start timer of the definition.
fn timer(line: &[u8], whose: &Whose) -> Result<NewJob, String> {
    let job = enqueue::job(line, None, None)?;
    let start: Start = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let job = match whose {
        Whose::Definition(name) => of_definition(job, &start, name)?,
        Whose::Key(key) => of_key(job, &start, key)?,
    };
    if start.process_instance.is_some() {
        return Err(
            "field `process_instance` is set; leave it out: a start timer belongs to no instance"
                .to_owned(),
        );
    }
    if start.unique_key.is_some() {
        return Err(
            "field `unique_key` is set; leave it out: the command replaces the timers anyway"
                .to_owned(),
        );
    }
    if start.kind.is_some() {
        return Err(
            "field `kind` is set; leave it out: a start timer is no history job".to_owned(),
        );
    }
    if start.due_at.is_none() && start.due_in.is_none() && start.repeat.is_none() {
        return Err(
            "field `due_at` is missing; give a start timer `due_at`, `due_in` or `repeat`"
                .to_owned(),
        );
    }
    job.validate().map_err(|invalid| invalid.to_string())?;
    Ok(job)
}

fn of_definition(job: NewJob, start: &Start, definition: &str) -> Result<NewJob, String> {
    let given = start.process_definition.as_deref();
    if let Some(other) = given.filter(|name| *name != definition) {
        return Err(format!(
            "field `process_definition` is `{}`; leave it out, or give the definition of the command",
            other.escape_debug()
        ));
    }
    Ok(job.process_definition(definition))
}

fn of_key(job: NewJob, start: &Start, key: &DefinitionKey) -> Result<NewJob, String> {
    let tenant = start.tenant.as_deref().or(key.tenant());
    if !key.covers(start.process_definition.as_deref(), key.tenant()) {
        let given = start.process_definition.as_deref().unwrap_or_default();
        return Err(format!(
            "field `process_definition` is `{}`; give the id of the new version: `{}:4:5120` for example",
            given.escape_debug(),
            key.key().escape_debug()
        ));
    }
    if !key.covers(start.process_definition.as_deref(), tenant) {
        return Err(format!(
            "field `tenant` is `{}`; leave it out, or give the tenant of the command",
            tenant.unwrap_or_default().escape_debug()
        ));
    }
    Ok(match key.tenant() {
        Some(tenant) => job.tenant(tenant),
        None => job,
    })
}

fn print(report: &Report, json: bool) -> Result<(), Error> {
    if json {
        return output::json(report);
    }
    let count = |jobs: &[JobId]| output::count(jobs.len() as u64, "job");
    output::line(format_args!(
        "{} deleted, {} created",
        count(&report.deleted),
        count(&report.created)
    ))?;
    for id in &report.created {
        output::line(id)?;
    }
    for id in &report.running {
        output::line(format_args!(
            "job {id} runs and is cancelled: it is deleted when its handler ends, and its series \
             ends with it"
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_start_timer_of_the_definition_is_refused() {
        let invoice = Whose::Definition("invoice".to_owned());
        let read = |line: &str| timer(line.as_bytes(), &invoice);
        for line in [
            r#"{"type":"start","repeat":"R/PT1H"}"#,
            r#"{"type":"start","due_at":"2091-01-01T00:00:00Z","process_instance":null}"#,
            r#"{"type":"start","due_in":"PT1H","process_definition":"invoice"}"#,
        ] {
            let job = read(line).expect(line);
            assert!(format!("{job:?}").contains("Some(\"invoice\")"), "{job:?}");
        }
        for (line, problem) in [
            (r#"{"type":"start"}"#, "`due_at` is missing"),
            (r#"{"repeat":"R/PT1H"}"#, "`type` is missing"),
            (
                r#"{"type":"start","due_in":"PT1H","process_instance":"i"}"#,
                "`process_instance` is set",
            ),
            (
                r#"{"type":"start","due_in":"PT1H","process_definition":"order"}"#,
                "`process_definition` is `order`",
            ),
            (
                r#"{"type":"start","due_in":"PT1H","unique_key":"k"}"#,
                "`unique_key` is set",
            ),
            (
                r#"{"type":"start","due_in":"PT1H","kind":"history"}"#,
                "`kind` is set",
            ),
        ] {
            let said = read(line).expect_err(line);
            assert!(said.contains(problem), "{said}");
        }
    }

    #[test]
    fn a_line_that_is_no_start_timer_of_the_key_is_refused() {
        let key = DefinitionKey::new("invoice").expect("a key");
        let (acme, none) = (Whose::Key(key.clone().of_tenant("acme")), Whose::Key(key));
        let line = |fields: &str| format!(r#"{{"type":"start","due_in":"PT1H"{fields}}}"#);
        let version = r#","process_definition":"invoice:4:5120""#;
        let read = timer(line(version).as_bytes(), &acme).expect("a timer");
        assert!(format!("{read:?}").contains("Some(\"acme\")"), "{read:?}");
        for (whose, fields, problem) in [
            (
                &acme,
                "",
                "`process_definition` is ``; give the id of the new version",
            ),
            (
                &acme,
                r#","process_definition":"order:1:7""#,
                "`process_definition` is `order:1:7`",
            ),
            (
                &acme,
                r#","process_definition":"invoice:4:5120","tenant":"globex""#,
                "`tenant` is `globex`",
            ),
            (
                &none,
                r#","process_definition":"invoice:4:5120","tenant":"acme""#,
                "`tenant` is `acme`",
            ),
        ] {
            let said = timer(line(fields).as_bytes(), whose).expect_err(fields);
            assert!(said.contains(problem), "{said}");
        }
    }
}
