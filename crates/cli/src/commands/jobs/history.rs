//! `jobs attempts` of one job, `jobs errors` and `jobs incidents`.

use chrono::{DateTime, Utc};
use jobwire_core::store::attempts::{AttemptView, Incident, IncidentFilter};
use jobwire_core::{JobId, Store};

use crate::error::Error;
use crate::output;

pub(super) fn moment(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S%.3fZ").to_string()
}

fn maybe(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Why there may be no attempts.
pub(super) const NOT_RECORDED: &str = "the setting `attempt_types` names the types that record them, \
                                       and `attempts_kept` the time for which they are kept";

/// Maximum number of attempts of one job that are shown.
const ATTEMPTS: i64 = 10_000;

/// Returns the recorded attempts of a job.
pub(super) async fn read(store: &dyn Store, id: JobId) -> Result<Vec<AttemptView>, Error> {
    Ok(store.attempts(id, ATTEMPTS).await?)
}

/// Returns the filter of all incidents of a job.
pub(super) fn of(id: JobId) -> IncidentFilter {
    IncidentFilter::default().job(Some(id)).resolved(true)
}

pub(super) async fn attempts(store: &dyn Store, id: JobId, json: bool) -> Result<(), Error> {
    let attempts = read(store, id).await?;
    if json {
        return output::json(&attempts);
    }
    attempts_table(id, attempts)
}

pub(super) fn attempts_table(id: JobId, attempts: Vec<AttemptView>) -> Result<(), Error> {
    if attempts.is_empty() {
        return output::line(format_args!(
            "no attempts of job {id} are recorded; {NOT_RECORDED}"
        ));
    }
    let rows: Vec<[String; 6]> = attempts
        .into_iter()
        .map(|attempt| {
            [
                moment(attempt.started_at),
                moment(attempt.ended_at),
                attempt.outcome,
                attempt.node.to_string(),
                attempt.fence.to_string(),
                maybe(attempt.message),
            ]
        })
        .collect();
    output::table(
        ["started", "ended", "outcome", "node", "fence", "message"],
        &rows,
    )
}

pub(super) async fn errors(
    store: &dyn Store,
    job_type: Option<&str>,
    limit: i64,
    json: bool,
) -> Result<(), Error> {
    let errors = store.errors(job_type, limit).await?;
    if json {
        return output::json(&errors);
    }
    if errors.is_empty() {
        return output::line("no errors");
    }
    let rows: Vec<[String; 5]> = errors
        .into_iter()
        .map(|error| {
            [
                error.jobs.to_string(),
                error.attempts.to_string(),
                maybe(error.last_at.map(moment)),
                error.job_type,
                error.message,
            ]
        })
        .collect();
    output::table(["jobs", "attempts", "last", "type", "message"], &rows)
}

pub(super) async fn incidents(
    store: &dyn Store,
    filter: &IncidentFilter,
    json: bool,
) -> Result<(), Error> {
    let incidents = store.incidents(filter).await?;
    if json {
        return output::json(&incidents);
    }
    incidents_table(incidents)
}

pub(super) fn incidents_table(incidents: Vec<Incident>) -> Result<(), Error> {
    if incidents.is_empty() {
        return output::line("no incidents");
    }
    let rows: Vec<[String; 6]> = incidents
        .into_iter()
        .map(|incident| {
            [
                moment(incident.opened_at),
                maybe(incident.resolved_at.map(moment)),
                incident
                    .resolution
                    .map_or("open", |r| r.as_str())
                    .to_owned(),
                incident.job.to_string(),
                incident.job_type,
                maybe(incident.message),
            ]
        })
        .collect();
    output::table(
        ["opened", "resolved", "state", "job", "type", "message"],
        &rows,
    )
}
