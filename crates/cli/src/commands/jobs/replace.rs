//! `jobs replace-timers`: replaces the start timers of a process definition in one transaction, as
//! [`JobTransaction::replace_start_timers`](jobwire_core::JobTransaction::replace_start_timers) does.

use std::path::PathBuf;

use clap::Args;
use jobwire_core::store::Ended;
use jobwire_core::{JobId, NewJob};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{Jobs, end};
use crate::commands::enqueue;
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
    /// The process definition
    #[arg(long, value_name = "NAME", visible_alias = "process-definition")]
    pub definition: String,
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
    let ReplaceArgs { file, definition } = args;
    if !yes {
        let count = jobs.store.count(&end::start_timers(&definition)).await?;
        return Err(Error::Usage(format!(
            "{} would be deleted, and those of the file created; check with `jobwire jobs list {}` \
             first, then pass --yes",
            output::count(count.unsigned_abs(), "start timer"),
            end::of_start_timers(&definition)
        )));
    }
    let Some(database) = jobs.database else {
        return Err(Error::Usage("this is for jobs of Jobwire".to_owned()));
    };
    let timers = enqueue::few(file.as_deref(), |line| timer(line, &definition))?;
    if timers.is_empty() {
        return Err(Error::Input(
            "there is no new timer; to delete the start timers only, run `jobwire jobs end \
             --start-timers`"
                .to_owned(),
        ));
    }
    let created = timers.iter().map(NewJob::id).collect();
    let replaced = through_outlet(jobs.settings, database, definition, timers).await;
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
    definition: String,
    timers: Vec<NewJob>,
) -> Result<Ended, Error> {
    let outlet = Outlet::open(settings).await?;
    let creator = database.creator(outlet.hook());
    let replaced = creator.replace_start_timers(definition, timers).await;
    outlet.close_and_tell().await;
    Ok(replaced?)
}

/// The fields that tell whether a job is a start timer.
#[derive(Deserialize)]
struct Start {
    process_definition: Option<String>,
    process_instance: Option<IgnoredAny>,
    unique_key: Option<IgnoredAny>,
    kind: Option<IgnoredAny>,
    due_at: Option<IgnoredAny>,
    due_in: Option<IgnoredAny>,
    repeat: Option<IgnoredAny>,
}

/// Reads a line, which has to be a start timer of the definition.
fn timer(line: &[u8], definition: &str) -> Result<NewJob, String> {
    let job = enqueue::job(line, None, None)?;
    let start: Start = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if let Some(other) = start.process_definition.filter(|name| name != definition) {
        return Err(format!(
            "field `process_definition` is `{}`; leave it out, or give the definition of the command",
            other.escape_debug()
        ));
    }
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
    let job = job.process_definition(definition);
    job.validate().map_err(|invalid| invalid.to_string())?;
    Ok(job)
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
        let read = |line: &str| timer(line.as_bytes(), "invoice");
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
}
