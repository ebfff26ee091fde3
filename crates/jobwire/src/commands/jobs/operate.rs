//! `jobs retry` and `jobs delete`, of single jobs or of all that match.

use std::time::Duration;

use clap::Args;
use jobwire_core::commit_hook::Cause;
use jobwire_core::hint::Ready;
use jobwire_core::store::Operated;
use jobwire_core::{JobId, Store, StoreError};
use serde::Serialize;

use super::filter::FilterArgs;
use crate::connect::Outlet;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Jobs by their ids, or all that match a filter.
#[derive(Clone, Debug, Args)]
pub struct Selection {
    /// The jobs
    #[arg(
        value_name = "ID",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub ids: Vec<JobId>,
    /// All that match the filters
    #[arg(long)]
    pub all: bool,
    /// The filters.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Jobs read at once.
const PAGE: i64 = 10_000;

impl Selection {
    /// The ids, read before anything is changed: what is changed may match no more.
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
        "there is no job {id}: it is done, or was deleted, or never was in this database"
    ))
}

/// What was done to which jobs.
#[derive(Default, Serialize)]
struct Report {
    done: Vec<JobId>,
    not_found: Vec<JobId>,
    running: Vec<JobId>,
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
                    "job {id} runs: wait until it ends, or until its lock does"
                ))?;
            }
        }
        if self.not_found.is_empty() && self.running.is_empty() {
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
    let report = each(settings, ids, |id| store.retry(id, retries)).await?;
    report.print("made executable", json)
}

pub(super) async fn delete(
    settings: &Settings,
    store: &dyn Store,
    ids: &[JobId],
    json: bool,
) -> Result<(), Error> {
    let report = each(settings, ids, |id| store.delete(id)).await?;
    report.print("deleted", json)
}

/// Do it to each, and let the hints of what became ready leave.
async fn each<F>(
    settings: &Settings,
    ids: &[JobId],
    operate: impl Fn(JobId) -> F,
) -> Result<Report, Error>
where
    F: Future<Output = Result<(Operated, Vec<Ready>), StoreError>>,
{
    let outlet = Outlet::open(settings).await?;
    let hook = outlet.hook();
    let mut report = Report::default();
    let mut result = Ok(());
    for id in ids {
        match operate(*id).await {
            Ok((operated, ready)) => {
                report.note(*id, operated);
                if let Some(hook) = &hook {
                    hook.publish(Cause::Operator, ready);
                }
            }
            Err(error) => {
                result = Err(Error::Failed(format!(
                    "{}; {} jobs before were done",
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
            "hints could not be published; the sweeper of a running node finds their jobs"
        );
    }
    result.map(|()| report)
}
