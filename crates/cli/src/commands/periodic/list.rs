//! `periodic list`.

use chrono::{DateTime, SecondsFormat, Utc};
use jobwire_core::store::PeriodicView;
use jobwire_core::telemetry::plain;
use jobwire_core::{InvalidJob, Store};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::output;

/// Maximum number of faulty periodic jobs that are explained; `--json` has all.
const NAMED: usize = 20;

/// A periodic job, as JSON.
#[derive(Serialize)]
struct Listed {
    name: String,
    schedule: String,
    version: i64,
    paused: bool,
    next_due: Option<DateTime<Utc>>,
    last_due: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    changed_at: DateTime<Utc>,
    /// Why it creates no jobs.
    fault: Option<String>,
    /// The fields of its jobs. `null` if another program wrote no JSON.
    job: Option<Box<RawValue>>,
}

pub(super) async fn list(store: &dyn Store, json: bool) -> Result<(), Error> {
    let all = store.periodic_jobs().await?;
    if json {
        let listed: Vec<Listed> = all.into_iter().map(|view| listed(store, view)).collect();
        return output::json(&listed);
    }
    if all.is_empty() {
        return output::line("no periodic jobs");
    }
    let faults = all.iter().map(|view| view.fault(store.calendars()));
    let faults: Vec<Option<InvalidJob>> = faults.collect();
    let rows = all.iter().zip(&faults);
    let rows: Vec<[String; 6]> = rows
        .map(|(view, fault)| row(view, fault.is_some()))
        .collect();
    let head = [
        "name", "schedule", "version", "state", "next due", "last due",
    ];
    output::table(head, &rows)?;
    let faults = all.iter().zip(faults);
    let faults = faults.filter_map(|(view, fault)| Some((view, fault?)));
    for (view, fault) in faults.take(NAMED) {
        output::line(format_args!(
            "periodic job `{}` creates no jobs: {}",
            plain::one_line(&view.name, 256),
            plain::one_line(&fault.to_string(), 1_000)
        ))?;
    }
    Ok(())
}

fn listed(store: &dyn Store, view: PeriodicView) -> Listed {
    Listed {
        fault: view.fault(store.calendars()).map(|fault| fault.to_string()),
        name: view.name,
        schedule: view.schedule,
        version: view.version,
        paused: view.paused,
        next_due: view.next_due,
        last_due: view.last_due,
        created_at: view.created_at,
        changed_at: view.changed_at,
        job: RawValue::from_string(view.template).ok(),
    }
}

fn row(view: &PeriodicView, is_faulty: bool) -> [String; 6] {
    let date = |date: Option<DateTime<Utc>>| {
        date.map_or("-".to_owned(), |at| {
            at.to_rfc3339_opts(SecondsFormat::Secs, true)
        })
    };
    let state = match (view.paused, view.next_due) {
        _ if is_faulty => "faulty",
        (true, _) => "paused",
        (false, None) => "ended",
        (false, Some(_)) => "active",
    };
    [
        view.name.clone(),
        view.schedule.clone(),
        view.version.to_string(),
        state.to_owned(),
        if view.paused {
            "-".to_owned()
        } else {
            date(view.next_due)
        },
        date(view.last_due),
    ]
}
