//! `jobs list` and `jobs count`.

use std::collections::HashMap;

use chrono::{DateTime, SubsecRound, Utc};
use jobwire_core::store::permits::PermitKey;
use jobwire_core::{
    JobCursor, JobId, JobQuery, JobState, JobView, ProgressView, Store, telemetry::plain,
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

/// The jobs of a page that wait for a permit.
pub(super) struct Waiting(HashMap<JobId, Permit>);

impl Waiting {
    /// Reads which of these jobs wait. Only ready jobs without a holder may.
    pub(super) async fn of(store: &dyn Store, jobs: &[JobView]) -> Result<Self, Error> {
        let may = jobs.iter().filter(|job| {
            job.state == JobState::Executable && job.lock_owner.is_none() && job.gate.is_none()
        });
        let ids: Vec<JobId> = may.map(|job| job.id).collect();
        let found = if ids.is_empty() {
            Vec::new()
        } else {
            store.waiting_of(&ids).await?
        };
        let found = found.into_iter().map(|of| {
            let PermitKey { limit, key } = of.key;
            (of.id, Permit { limit, key })
        });
        Ok(Self(found.collect()))
    }
}

impl Listed {
    pub(super) fn new(view: JobView, waiting: &Waiting) -> Self {
        let engine_id = Some(written(view.id)).filter(|text| *text != view.id.to_string());
        Self {
            engine_id,
            waits_for_permit: waiting.0.get(&view.id).cloned(),
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
    match jobs.last().filter(|_| shown >= query.limit) {
        Some(last) => output::line(format_args!(
            "{shown} of {all} jobs; the next page: --after {}",
            JobCursor::after(last, query.sort)
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
        _ => waiting.0.get(&job.id).map_or("-".to_owned(), permit),
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
    let gate = job.gate.as_ref().map(ToString::to_string);
    plain::one_line(&format!("nobody: {}", gate.unwrap_or_default()), SHOWN)
}

/// Returns the limit and the key for whose permit a job waits.
fn permit(of: &Permit) -> String {
    let Permit { limit, key } = of;
    let text = match key.is_empty() {
        true => format!("nobody: waits for limit {limit}"),
        false => format!("nobody: waits for limit {limit}, key {key}"),
    };
    plain::one_line(&text, SHOWN)
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
