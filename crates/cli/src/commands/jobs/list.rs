//! `jobs list`.

use chrono::{DateTime, SubsecRound, Utc};
use jobwire_core::{JobFilter, JobView, ProgressView, Store, telemetry::plain};
use serde::Serialize;

use super::place::{Place, written};
use crate::error::Error;
use crate::output;

/// Maximum number of characters of a cell; `--json` shows all.
const SHOWN: usize = 80;

/// A job as JSON.
#[derive(Serialize)]
pub(super) struct Listed {
    #[serde(flatten)]
    view: JobView,
    /// The engine's id, if it differs from `id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_id: Option<String>,
}

impl Listed {
    pub(super) fn new(view: JobView) -> Self {
        let engine_id = Some(written(view.id)).filter(|text| *text != view.id.to_string());
        Self { view, engine_id }
    }
}

pub(super) async fn list(
    store: &dyn Store,
    place: Place,
    filter: JobFilter,
    json: bool,
) -> Result<(), Error> {
    let jobs = store.find(&filter).await?;
    if json {
        let jobs: Vec<Listed> = jobs.into_iter().map(Listed::new).collect();
        return output::json(&jobs);
    }
    let rows: Vec<[String; 8]> = jobs.iter().map(|job| row(job, place)).collect();
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
    if shown < filter.limit && filter.offset == 0 {
        return output::line(output::count(jobs.len() as u64, "job"));
    }
    let all = store.count(&filter).await?;
    if filter.offset == 0 && shown == all {
        return output::line(output::count(jobs.len() as u64, "job"));
    }
    output::line(format_args!(
        "{shown} of {all} jobs; see more with --limit and --offset"
    ))
}

fn row(job: &JobView, place: Place) -> [String; 8] {
    let text = |value: &Option<String>| plain::one_line(value.as_deref().unwrap_or("-"), SHOWN);
    [
        written(job.id),
        job.state.to_string(),
        plain::one_line(&job.job_type, SHOWN),
        text(&job.process_instance),
        job.retries.to_string(),
        job.due_at.map_or("-".to_owned(), date),
        holder(job, place),
        first_line(job.exception_message.as_deref()),
    ]
}

/// Returns the node that holds the job. A node of an engine has no Jobwire id.
fn holder(job: &JobView, place: Place) -> String {
    match (job.lock_owner, job.lock_expires_at, place) {
        (Some(owner), ..) => match job.progress.as_ref().map(percentage) {
            Some(percentage) => format!("{owner} {percentage}"),
            None => owner.to_string(),
        },
        (None, Some(_), Place::Engine) => "an engine node".to_owned(),
        (None, None, _) if job.gate.is_some() => gate(job),
        _ => "-".to_owned(),
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

pub(super) fn date(moment: DateTime<Utc>) -> String {
    moment
        .trunc_subsecs(3)
        .to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

fn first_line(message: Option<&str>) -> String {
    let line = message.and_then(|m| m.lines().next()).unwrap_or("-");
    plain::one_line(line, SHOWN)
}
