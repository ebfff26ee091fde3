//! `jobs list` and `jobs count`.

use std::collections::HashMap;
use std::fmt;

use chrono::{DateTime, SubsecRound, Utc};
use jobwire_core::store::permits::PermitKey;
use jobwire_core::store::{NodeView, received_by, services_of};
use jobwire_core::{
    JobCursor, JobId, JobQuery, JobState, JobView, Lane, ProgressView, Store, telemetry::plain,
};
use serde::Serialize;
use serde_json::json;

use super::place::{Place, written};
use crate::error::Error;
use crate::output;

/// Maximum number of characters of a cell; `--json` shows all.
const SHOWN: usize = 80;

/// The number up to which a list counts the jobs of all pages.
const COUNTED: i64 = 10_000;

/// A line of a list as JSON.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    job: Listed,
    /// The place behind the job, for `--after`.
    cursor: String,
}

/// A job as JSON.
#[derive(Serialize)]
pub(super) struct Listed {
    #[serde(flatten)]
    view: JobView,
    /// The engine's id, if it differs from `id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_id: Option<String>,
    /// The reason why the ready job does not run, unless the fields of the row tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_because: Option<String>,
    /// The permit for which the job waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for_permit: Option<Permit>,
}

/// A permit for which a job waits.
#[derive(Clone, Serialize)]
pub(super) struct Permit {
    limit: String,
    key: String,
}

/// The reason why a ready job does not run.
enum Why {
    /// No living node serves its type.
    Type(String),
    /// No living node receives its lane.
    Lane(Lane),
    /// Another job of its instance comes first.
    Sibling,
    Permit(Permit),
}

/// The jobs of a page that wait, and why. Jobs whose row tells the reason are not among them.
pub(super) struct Waiting(HashMap<JobId, Why>);

impl Waiting {
    /// Reads which of these jobs wait. Only ready jobs without a holder may, so a page without such
    /// jobs asks nothing.
    pub(super) async fn of(store: &dyn Store, jobs: &[JobView]) -> Result<Self, Error> {
        let may = jobs.iter().filter(|job| {
            job.state == JobState::Executable && job.lock_owner.is_none() && job.gate.is_none()
        });
        let may: Vec<&JobView> = may.collect();
        let ids: Vec<JobId> = may.iter().map(|job| job.id).collect();
        let mut found = HashMap::new();
        if ids.is_empty() {
            return Ok(Self(found));
        }
        // A later reason replaces an earlier one.
        for of in store.waiting_of(&ids).await? {
            let PermitKey { limit, key } = of.key;
            found.insert(of.id, Why::Permit(Permit { limit, key }));
        }
        let exclusive = may.iter().filter(|job| job.exclusive);
        let exclusive: Vec<JobId> = exclusive.map(|job| job.id).collect();
        for id in store.waiting_for_siblings(&exclusive).await? {
            found.insert(id, Why::Sibling);
        }
        // The nodes of a process engine decide about its jobs by more than type and lane.
        let own: Vec<&&JobView> = may.iter().filter(|job| job.hints.is_some()).collect();
        let nodes = match own.is_empty() {
            true => Vec::new(),
            false => store.nodes().await?,
        };
        if nodes.iter().any(NodeView::lives) {
            let (services, received) = (services_of(&nodes), received_by(&nodes));
            for job in own {
                if !services.types.contains(&job.job_type) {
                    found.insert(job.id, Why::Type(job.job_type.clone()));
                } else if !received.contains(&job.lane) {
                    found.insert(job.id, Why::Lane(job.lane.clone()));
                }
            }
        }
        Ok(Self(found))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(name) => write!(f, "no living node serves type {name}"),
            Self::Lane(lane) => write!(f, "no living node receives lane {lane}"),
            Self::Sibling => f.write_str("waits for another job of its instance"),
            Self::Permit(Permit { limit, key }) if key.is_empty() => {
                write!(f, "waits for limit {limit}")
            }
            Self::Permit(Permit { limit, key }) => write!(f, "waits for limit {limit}, key {key}"),
        }
    }
}

impl Listed {
    pub(super) fn new(view: JobView, waiting: &Waiting) -> Self {
        let engine_id = Some(written(view.id)).filter(|text| *text != view.id.to_string());
        let why = waiting.0.get(&view.id);
        Self {
            engine_id,
            waits_because: why.map(ToString::to_string),
            waits_for_permit: why.and_then(|why| match why {
                Why::Permit(permit) => Some(permit.clone()),
                _ => None,
            }),
            view,
        }
    }
}

pub(super) async fn list(
    store: &dyn Store,
    place: Place,
    query: &JobQuery,
    json: bool,
) -> Result<(), Error> {
    let jobs = store.find(query).await?;
    let waiting = Waiting::of(store, &jobs).await?;
    if json {
        let listed = jobs.into_iter().map(|view| Line {
            cursor: JobCursor::after(&view, query.sort).to_string(),
            job: Listed::new(view, &waiting),
        });
        return output::json(&listed.collect::<Vec<_>>());
    }
    let rows: Vec<[String; 8]> = jobs.iter().map(|job| row(job, place, &waiting)).collect();
    let head = [
        "id",
        "state",
        "type",
        "instance",
        "retries",
        "due",
        "locked by",
        "exception",
    ];
    output::table(head, &rows)?;
    let shown = i64::try_from(jobs.len()).unwrap_or(i64::MAX);
    let is_first_page = query.offset == 0 && query.after.is_none();
    if shown < query.limit && is_first_page {
        return output::line(output::count(jobs.len() as u64, "job"));
    }
    let all = store.count_at_most(query, COUNTED + 1).await?;
    if is_first_page && shown == all {
        return output::line(output::count(jobs.len() as u64, "job"));
    }
    let all = match all > COUNTED {
        true => format!("more than {COUNTED}"),
        false => all.to_string(),
    };
    match query.next_page(&jobs) {
        Some(next) => output::line(format_args!(
            "{shown} of {all} jobs; the next page: --after {next}"
        )),
        None => output::line(format_args!("{shown} of {all} jobs; this is the last page")),
    }
}

pub(super) async fn count(
    store: &dyn Store,
    query: &JobQuery,
    limit: Option<i64>,
    json: bool,
) -> Result<(), Error> {
    let found = match limit {
        // One more tells whether there are more.
        Some(limit) => store.count_at_most(query, limit.saturating_add(1)).await?,
        None => store.count(query).await?,
    };
    let more = limit.filter(|limit| found > *limit);
    let jobs = more.unwrap_or(found);
    if json {
        return output::json(&json!({ "jobs": jobs, "more": more.is_some() }));
    }
    let counted = output::count(jobs.unsigned_abs(), "job");
    match more {
        Some(_) => output::line(format_args!("more than {counted}")),
        None => output::line(counted),
    }
}

fn row(job: &JobView, place: Place, waiting: &Waiting) -> [String; 8] {
    let text = |value: &Option<String>| plain::one_line(value.as_deref().unwrap_or("-"), SHOWN);
    [
        written(job.id),
        job.state.to_string(),
        plain::one_line(&job.job_type, SHOWN),
        text(&job.process_instance),
        job.retries.to_string(),
        job.due_at.map_or("-".to_owned(), date),
        holder(job, place, waiting),
        first_line(job.exception_message.as_deref()),
    ]
}

/// Returns the node that holds the job. A node of an engine has no Jobwire id.
fn holder(job: &JobView, place: Place, waiting: &Waiting) -> String {
    match (job.lock_owner, job.lock_expires_at, place) {
        (Some(owner), ..) => match job.progress.as_ref().map(percentage) {
            Some(percentage) => format!("{owner} {percentage}"),
            None => owner.to_string(),
        },
        (None, Some(_), Place::Engine) => "an engine node".to_owned(),
        (None, None, _) if job.gate.is_some() => gate(job),
        _ => waiting.0.get(&job.id).map_or("-".to_owned(), nobody),
    }
}

/// Returns how far a job has come: in percent, or the steps that are done.
fn percentage(of: &ProgressView) -> String {
    match of.progress.percentage() {
        Some(percent) => format!("{percent}%"),
        None => of.progress.done.to_string(),
    }
}

/// Returns the suspension or pause that keeps the job from running.
fn gate(job: &JobView) -> String {
    job.gate.as_ref().map_or("-".to_owned(), nobody)
}

/// Returns that no node holds a job, with the reason.
fn nobody(why: impl fmt::Display) -> String {
    plain::one_line(&format!("nobody: {why}"), SHOWN)
}

pub(super) fn date(moment: DateTime<Utc>) -> String {
    moment
        .trunc_subsecs(3)
        .to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

fn first_line(message: Option<&str>) -> String {
    let line = message.and_then(|m| m.lines().next()).unwrap_or("-");
    plain::one_line(line, SHOWN)
}
