//! `jobs retry` and `jobs delete`, for single jobs or for all that match; `jobs cancel`.

use std::fmt;
use std::time::Duration;

use clap::Args;
use jobwire_core::producer::commit_hook::Cause;
use jobwire_core::store::{Operated, OperatedJobs};
use jobwire_core::telemetry::plain;
use jobwire_core::{JobId, JobState, Store, StoreError};
use serde::Serialize;

use super::filter::FilterArgs;
use crate::connect::Outlet;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Jobs by id, or all that match a filter.
#[derive(Clone, Debug, Args)]
pub struct Selection {
    /// The jobs
    #[arg(value_name = "ID", conflicts_with = "all")]
    pub ids: Vec<JobId>,
    /// All that match the filters
    #[arg(long)]
    pub all: bool,
    /// The filters.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Maximum number of jobs that are read at once.
const PAGE: i64 = 10_000;
/// Maximum number of jobs that one statement changes.
const BATCH: usize = 500;

/// The number of jobs in each state that a selection by filters matches.
pub(super) struct Matching(Vec<(JobState, i64)>);

impl Matching {
    /// Counts the matches. Without a state, selects dead letters only, since a timer should not run
    /// before its due date. Jobs given by id are selected in any state.
    pub(super) async fn of(selection: &mut Selection, store: &dyn Store) -> Result<Self, Error> {
        if !selection.all {
            return Ok(Self(Vec::new()));
        }
        if selection.filter.states.is_empty() {
            selection.filter.states = vec![JobState::DeadLetter];
        }
        let mut counts = Vec::new();
        for state in &selection.filter.states {
            let mut filter = selection.filter.clone().filter(0, PAGE);
            filter.states = vec![*state];
            counts.push((*state, store.count(&filter).await?));
        }
        Ok(Self(counts))
    }

    pub(super) fn more_than_dead_letters(&self) -> bool {
        let others =
            |(state, count): &(JobState, i64)| *state != JobState::DeadLetter && *count > 0;
        self.0.iter().any(others)
    }
}

impl fmt::Display for Matching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: i64 = self.0.iter().map(|(_, count)| count).sum();
        write!(f, "{}", output::count(all.unsigned_abs(), "job"))?;
        let counts = self.0.iter().filter(|(_, count)| *count > 0);
        let each: Vec<String> = counts
            .map(|(state, count)| format!("{count} {state}"))
            .collect();
        write!(f, " ({})", each.join(", "))
    }
}

impl Selection {
    /// Checks that either ids or --all is given.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.all {
            return Ok(());
        }
        let filtered = self.filter.is_given();
        Err(Error::Usage(match (self.ids.is_empty(), filtered) {
            (false, false) => return Ok(()),
            (true, true) => "no jobs selected; add --all for all that match the filters".to_owned(),
            (true, false) => {
                "no jobs selected; give their ids, or --all with filters such as --type or --state"
                    .to_owned()
            }
            (false, true) => "give the ids of jobs, or --all with filters, not both".to_owned(),
        }))
    }

    /// Reads the ids. All are read before the first change, since a changed job may no longer
    /// match.
    pub(super) async fn ids(&self, store: &dyn Store) -> Result<Vec<JobId>, Error> {
        if !self.all {
            return Ok(self.ids.clone());
        }
        let mut ids = Vec::new();
        let mut offset = 0;
        loop {
            let page = store
                .find(&self.filter.clone().filter(offset, PAGE))
                .await?;
            let last = i64::try_from(page.len()).unwrap_or(PAGE) < PAGE;
            ids.extend(page.into_iter().map(|job| job.id));
            if last {
                return Ok(ids);
            }
            offset += PAGE;
        }
    }
}

pub(super) fn no_such_job(id: JobId) -> Error {
    Error::Failed(format!(
        "there is no job {id}: it is done, was deleted, or was never in this database"
    ))
}

/// The result for each job.
#[derive(Default, Serialize)]
struct Report {
    done: Vec<JobId>,
    not_found: Vec<JobId>,
    running: Vec<JobId>,
    /// Running jobs whose nodes were asked to stop them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    asked: Vec<JobId>,
    /// The jobs that the database refused to change, and why.
    failed: Vec<(JobId, String)>,
}

impl Report {
    fn note(&mut self, id: JobId, operated: Operated) {
        match operated {
            Operated::Done => self.done.push(id),
            Operated::NotFound => self.not_found.push(id),
            Operated::Running => self.running.push(id),
        }
    }

    fn print(&self, what: &str, json: bool) -> Result<(), Error> {
        if json {
            output::json(self)?;
        } else {
            let done = output::count(self.done.len() as u64, "job");
            output::line(format_args!("{done} {what}"))?;
            for id in &self.not_found {
                output::line(no_such_job(*id))?;
            }
            for id in &self.running {
                output::line(format_args!(
                    "job {id} is running; wait until it ends or its lease expires"
                ))?;
            }
            for id in &self.asked {
                output::line(format_args!(
                    "job {id} is running; its node was asked to stop it"
                ))?;
            }
            for (id, why) in &self.failed {
                let why = plain::one_line(why, 500);
                output::line(format_args!("job {id} was not changed: {why}"))?;
            }
        }
        if self.not_found.is_empty() && self.running.is_empty() && self.failed.is_empty() {
            Ok(())
        } else {
            Err(Error::Reported)
        }
    }
}

pub(super) async fn retry(
    settings: &Settings,
    store: &dyn Store,
    ids: &[JobId],
    retries: i32,
    json: bool,
) -> Result<(), Error> {
    let batch = async |ids: &[JobId]| store.retry_many(ids, retries).await;
    let report = each(settings, ids, OfRunning::Report, batch).await?;
    report.print("made executable", json)
}

pub(super) async fn delete(
    settings: &Settings,
    store: &dyn Store,
    ids: &[JobId],
    json: bool,
) -> Result<(), Error> {
    let report = each(settings, ids, OfRunning::Report, async |ids: &[JobId]| {
        store.delete_many(ids).await
    })
    .await?;
    report.print("deleted", json)
}

/// Deletes jobs, and asks the nodes of running ones to stop them.
pub(super) async fn cancel(
    settings: &Settings,
    store: &dyn Store,
    ids: &[JobId],
    json: bool,
) -> Result<(), Error> {
    let delete = async |ids: &[JobId]| store.delete_many(ids).await;
    let report = each(settings, ids, OfRunning::Stop, delete).await?;
    report.print("deleted", json)
}

/// What to do with jobs that are running.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OfRunning {
    /// Report them.
    Report,
    /// Ask their nodes to stop them.
    Stop,
}

/// Applies `operate` to all jobs, batch by batch, and publishes the hints of jobs that became
/// ready.
async fn each(
    settings: &Settings,
    ids: &[JobId],
    of_running: OfRunning,
    operate: impl AsyncFn(&[JobId]) -> Result<OperatedJobs, StoreError>,
) -> Result<Report, Error> {
    let outlet = Outlet::open(settings).await?;
    let hook = outlet.hook();
    let mut report = Report::default();
    let mut result = Ok(());
    for batch in ids.chunks(BATCH) {
        match operate(batch).await {
            Ok(done) => {
                for (id, operated) in done.operated {
                    let stops = operated == Operated::Running && of_running == OfRunning::Stop;
                    if stops && outlet.ask_to_stop(id) {
                        report.asked.push(id);
                    } else {
                        report.note(id, operated);
                    }
                }
                report.failed.extend(done.refused);
                if let Some(hook) = &hook {
                    hook.publish(Cause::Operator, done.ready);
                }
            }
            Err(error) => {
                result = Err(Error::Failed(format!(
                    "{}; {} jobs were changed before the error",
                    Error::Store(error),
                    report.done.len()
                )));
                break;
            }
        }
    }
    let left = outlet.close(Duration::from_secs(10)).await;
    if left > 0 {
        tracing::warn!(
            left,
            "hints could not be published; the sweeper of a running node will publish them"
        );
    }
    result.map(|()| report)
}
