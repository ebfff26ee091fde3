//! `jobs retry` and `jobs delete`, for single jobs or for all that match; `jobs cancel`.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use clap::Args;
use jobwire_core::store::{Change, Operated, OperatedJobs};
use jobwire_core::telemetry::plain;
use jobwire_core::{CommitHook, JobId, JobQuery, JobState, Store, StoreError};
use serde::Serialize;

use super::Jobs;
use super::filter::FilterArgs;
use super::place::{self, Place, written};
use crate::connect::Outlet;
use crate::error::{Error, interrupted};
use crate::output;
use crate::settings::Settings;

/// Jobs by id, or all that match a filter.
#[derive(Clone, Debug, Args)]
pub struct Selection {
    /// The jobs
    #[arg(value_name = "ID", conflicts_with = "all", value_parser = place::parse)]
    pub ids: Vec<JobId>,
    /// All that match the filters
    #[arg(long)]
    pub all: bool,
    /// The filters.
    #[command(flatten)]
    pub filter: Box<FilterArgs>,
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
        Self::in_states(selection, &[JobState::DeadLetter], store).await
    }

    /// Counts the matches. Without a state, selects jobs of these states.
    pub(super) async fn in_states(
        selection: &mut Selection,
        states: &[JobState],
        store: &dyn Store,
    ) -> Result<Self, Error> {
        if !selection.all {
            return Ok(Self(Vec::new()));
        }
        if selection.filter.states.is_empty() {
            selection.filter.states = states.to_vec();
        }
        let mut counts = Vec::new();
        for state in &selection.filter.states {
            let query = selection.filter.query().states([*state]);
            counts.push((*state, store.count(&query).await?));
        }
        Ok(Self(counts))
    }

    /// Returns the verb for the matches.
    pub(super) fn verb(&self) -> &'static str {
        matches(self.0.iter().map(|(_, count)| count).sum())
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
    /// Returns the query for the selected jobs, for a bulk operation.
    pub(super) fn query(&self) -> JobQuery {
        if self.all {
            return self.filter.query();
        }
        let states = JobState::ALL.iter().copied();
        let ids = self.ids.iter().copied();
        JobQuery::default().states(states).ids(ids)
    }

    /// Checks that either ids or --all are given.
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

    /// Fails if all matches would be deleted without a confirmation.
    pub(super) async fn confirmed(
        &self,
        store: &dyn Store,
        place: Place,
        yes: bool,
    ) -> Result<(), Error> {
        if yes || !self.all {
            return Ok(());
        }
        let count = store.count(&self.filter.query()).await?;
        let jobs = output::count(count.unsigned_abs(), "job");
        let states = if self.filter.states.is_empty() {
            ", of every state,"
        } else {
            ""
        };
        Err(Error::Usage(format!(
            "{jobs} {}{states} and would be deleted; check with `{} list` first, then pass \
             --yes",
            matches(count),
            place.command()
        )))
    }

    /// Reads all ids. Does so before the first change, since a changed job may no longer match.
    pub(super) async fn ids(&self, store: &dyn Store) -> Result<Vec<JobId>, Error> {
        if !self.all {
            return Ok(self.ids.clone());
        }
        let query = self.filter.query().limit(PAGE);
        let mut ids = Vec::new();
        let mut offset = 0;
        loop {
            let page = store.find(&query.clone().offset(offset)).await?;
            let last = i64::try_from(page.len()).unwrap_or(PAGE) < PAGE;
            ids.extend(page.into_iter().map(|job| job.id));
            if last {
                return Ok(ids);
            }
            offset += PAGE;
        }
    }
}

/// Returns the verb for this number of jobs.
const fn matches(count: i64) -> &'static str {
    match count {
        1 => "matches",
        _ => "match",
    }
}

pub(super) fn no_such_job(id: JobId) -> Error {
    Error::Failed(format!(
        "there is no job {}: it is done, was deleted, or was never in this database",
        written(id)
    ))
}

/// The result for each job.
#[derive(Default, Serialize)]
struct Report {
    done: Vec<JobId>,
    not_found: Vec<JobId>,
    running: Vec<JobId>,
    /// Jobs in a state that the command does not apply to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_state: Vec<JobId>,
    /// Their states and remedies.
    #[serde(skip)]
    why: HashMap<JobId, String>,
    /// Cancelled jobs that still run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cancelled: Vec<JobId>,
    /// Cancelled jobs that an unlock has deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deleted: Vec<JobId>,
    /// The jobs that the database refused to change, with the reason.
    failed: Vec<(JobId, String)>,
}

impl Report {
    fn note(&mut self, id: JobId, operated: Operated) {
        match operated {
            Operated::Done => self.done.push(id),
            Operated::NotFound => self.not_found.push(id),
            Operated::Running => self.running.push(id),
            Operated::OtherState => self.other_state.push(id),
        }
    }

    /// Prints the report. `remedy` is for jobs that run.
    fn print(&self, what: &str, remedy: &str, json: bool) -> Result<(), Error> {
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
                    "job {} is running; wait until it ends or its lease expires{remedy}",
                    written(*id)
                ))?;
            }
            for id in &self.other_state {
                let why = self.why.get(id).map_or(
                    "is in a state that this does not apply to; `jobwire jobs show` shows it",
                    String::as_str,
                );
                output::line(format_args!("job {} {why}", written(*id)))?;
            }
            for id in &self.deleted {
                output::line(format_args!(
                    "job {} had been cancelled, so it was deleted",
                    written(*id)
                ))?;
            }
            for id in &self.cancelled {
                output::line(format_args!(
                    "job {id} is cancelled and still runs; its node ends it two seconds after the \
                     next renewal of its lease (each 10 s by default)"
                ))?;
            }
            for (id, why) in &self.failed {
                let why = plain::one_line(why, 500);
                output::line(format_args!("job {} was not changed: {why}", written(*id)))?;
            }
        }
        let all_done = self.not_found.is_empty()
            && self.running.is_empty()
            && self.other_state.is_empty()
            && self.failed.is_empty();
        if all_done {
            Ok(())
        } else {
            Err(Error::Reported)
        }
    }
}

pub(super) async fn retry(
    jobs: &Jobs<'_>,
    ids: &[JobId],
    retries: i32,
    json: bool,
) -> Result<(), Error> {
    let batch = async |ids: &[JobId]| jobs.store.retry_many(ids, retries).await;
    let report = each(jobs, ids, batch).await?;
    report.print(jobs.place.retried(), "", json)
}

pub(super) async fn delete(jobs: &Jobs<'_>, ids: &[JobId], json: bool) -> Result<(), Error> {
    let batch = async |ids: &[JobId]| jobs.store.delete_many(ids).await;
    let report = each(jobs, ids, batch).await?;
    let remedy = match jobs.place {
        Place::Own => ", or stop it with `jobwire jobs cancel`",
        Place::Engine => "",
    };
    report.print("deleted", remedy, json)
}

pub(super) async fn change(
    jobs: &Jobs<'_>,
    ids: &[JobId],
    change: &Change,
    json: bool,
) -> Result<(), Error> {
    let batch = async |ids: &[JobId]| jobs.store.change_many(ids, change).await;
    let mut report = each(jobs, ids, batch).await?;
    for id in report.other_state.iter().filter(|_| !json) {
        let why = match jobs.store.get(*id).await? {
            Some((job, ..)) => unchanged(*id, job.state, change),
            None => "is done or was deleted meanwhile".to_owned(),
        };
        report.why.insert(*id, why);
    }
    report.print("changed", "", json)
}

pub(super) async fn unlock(jobs: &Jobs<'_>, ids: &[JobId], json: bool) -> Result<(), Error> {
    let batch = async |ids: &[JobId]| {
        let mut unlocked = OperatedJobs::default();
        for id in ids {
            let one = jobs.store.unlock(*id).await?;
            unlocked.operated.extend(one.operated);
            unlocked.cancelled.extend(one.cancelled);
            unlocked.ready.extend(one.ready);
        }
        Ok(unlocked)
    };
    let mut report = each(jobs, ids, batch).await?;
    let free = |id: &JobId| (*id, "has no lock: nothing was changed".to_owned());
    report.why = report.other_state.iter().map(free).collect();
    report.print("unlocked", "", json)
}

/// The time for which `jobs cancel` waits for running jobs to end, and the interval at which it looks
/// and tells their nodes again. A message has no confirm, and the connection may not exist yet.
const END_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Deletes jobs. Those that run are marked as cancelled, and end soon.
pub(super) async fn cancel(
    settings: &Settings,
    store: &dyn Store,
    ids: &[JobId],
    json: bool,
) -> Result<(), Error> {
    let outlet = Outlet::open(settings).await?;
    let cancel = async |ids: &[JobId]| {
        let mut cancelled = store.delete_many(ids).await?;
        for (id, operated) in std::mem::take(&mut cancelled.operated) {
            if operated != Operated::Running {
                cancelled.operated.push((id, operated));
                continue;
            }
            match store.cancel(id).await {
                Ok((operated, ready)) => {
                    cancelled.operated.push((id, operated));
                    cancelled.ready.extend(ready);
                }
                // The others go on.
                Err(error) => cancelled.refused.push((id, error.to_string())),
            }
        }
        Ok(cancelled)
    };
    let mut report = Report::default();
    let mut result = batches(&outlet, store, ids, cancel, &mut report).await;
    if result.is_ok() {
        result = wait_for_end(&outlet, store, &mut report).await;
    }
    outlet.close_and_tell().await;
    result?;
    report.print("deleted", "", json)
}

/// Returns why a change did not apply to a job of this state, and the command that helps.
fn unchanged(id: JobId, state: JobState, change: &Change) -> String {
    let id = written(id);
    match (state, change) {
        (JobState::DeadLetter, Change::MakeDeadLetter(_)) => "is a dead letter already".to_owned(),
        (JobState::DeadLetter, _) => format!(
            "is a dead letter, to which this does not apply; `jobwire jobs retry {id} --retries N` \
             gives it attempts and makes it executable"
        ),
        (JobState::Suspended, Change::Activate) => {
            "belongs to a scope that is suspended; `jobwire suspensions` shows it, and `jobwire \
             activate` ends it"
                .to_owned()
        }
        (JobState::Suspended, Change::Suspend) => "is suspended already".to_owned(),
        (JobState::Suspended, _) => format!(
            "is suspended, and this does not apply to it; `jobwire jobs change {id} --activate` \
             activates it"
        ),
        (JobState::Executable, Change::MakeExecutable) => "is executable already".to_owned(),
        (state, Change::Activate) => format!("is not suspended: its state is {state}"),
        (state, _) => format!(
            "is in the state {state}, to which this does not apply; `jobwire jobs show {id}` shows it"
        ),
    }
}

/// Tells the nodes of the running jobs that they are cancelled, until all have ended or
/// [`END_WITHIN`] has passed.
async fn wait_for_end(
    outlet: &Outlet,
    store: &dyn Store,
    report: &mut Report,
) -> Result<(), Error> {
    let started = Instant::now();
    report.cancelled = std::mem::take(&mut report.running);
    while !report.cancelled.is_empty() && started.elapsed() < END_WITHIN {
        for id in &report.cancelled {
            outlet.tell_cancelled(*id);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        for id in std::mem::take(&mut report.cancelled) {
            if store.get(id).await?.is_some() {
                report.cancelled.push(id);
            } else {
                report.done.push(id);
            }
        }
    }
    Ok(())
}

/// Returns the outlet of hints. A command for an engine needs no broker, because the leader finds
/// the jobs that the engine has changed.
pub(super) async fn outlet(jobs: &Jobs<'_>) -> Result<Outlet, Error> {
    match jobs.place {
        Place::Own => Outlet::open(jobs.settings).await,
        Place::Engine => Ok(Outlet::none()),
    }
}

/// Applies `operate` to all jobs, and publishes the hints of jobs that became ready.
async fn each(
    jobs: &Jobs<'_>,
    ids: &[JobId],
    operate: impl AsyncFn(&[JobId]) -> Result<OperatedJobs, StoreError>,
) -> Result<Report, Error> {
    let outlet = outlet(jobs).await?;
    let mut report = Report::default();
    let result = batches(&outlet, &*jobs.store, ids, operate, &mut report).await;
    outlet.close_and_tell().await;
    result.map(|()| report)
}

/// Applies `operate` batch by batch.
async fn batches(
    outlet: &Outlet,
    store: &dyn Store,
    ids: &[JobId],
    operate: impl AsyncFn(&[JobId]) -> Result<OperatedJobs, StoreError>,
    report: &mut Report,
) -> Result<(), Error> {
    let hook = outlet.hook().unwrap_or_else(CommitHook::disconnected);
    for batch in ids.chunks(BATCH) {
        let done = operate(batch).await.map_err(|error| {
            let done = format!("{} jobs were changed before the error", report.done.len());
            interrupted(error, &done)
        })?;
        for (id, operated) in done.operated {
            if done.cancelled.contains(&id) {
                report.deleted.push(id);
            } else {
                report.note(id, operated);
            }
        }
        report.failed.extend(done.refused);
        hook.operated(store, done.ready).await;
        hook.timer_set(done.timer);
    }
    Ok(())
}
