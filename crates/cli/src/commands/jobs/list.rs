//! `jobs list`.

use chrono::{DateTime, SubsecRound, Utc};
use jobwire_core::{JobFilter, JobView, Store, telemetry::plain};

use crate::error::Error;
use crate::output;

/// Maximum number of characters of a cell; `--json` shows all.
const SHOWN: usize = 80;

pub(super) async fn list(store: &dyn Store, filter: JobFilter, json: bool) -> Result<(), Error> {
    let jobs = store.find(&filter).await?;
    if json {
        return output::json(&jobs);
    }
    let rows: Vec<[String; 8]> = jobs.iter().map(row).collect();
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
    output::line(format_args!(
        "{shown} of {all} jobs; see more with --limit and --offset"
    ))
}

fn row(job: &JobView) -> [String; 8] {
    let text = |value: &Option<String>| plain::one_line(value.as_deref().unwrap_or("-"), SHOWN);
    [
        job.id.to_string(),
        job.state.to_string(),
        plain::one_line(&job.job_type, SHOWN),
        text(&job.process_instance),
        job.retries.to_string(),
        job.due_at.map_or("-".to_owned(), date),
        job.lock_owner
            .map_or("-".to_owned(), |owner| owner.to_string()),
        first_line(job.exception_message.as_deref()),
    ]
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
