//! `periodic list`.

use chrono::{DateTime, SecondsFormat, Utc};
use jobwire_core::Store;
use jobwire_core::store::PeriodicView;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::output;

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
    /// The fields of its jobs. `null` if another program wrote no JSON.
    job: Option<Box<RawValue>>,
}

pub(super) async fn list(store: &dyn Store, json: bool) -> Result<(), Error> {
    let all = store.periodic_jobs().await?;
    if json {
        let listed: Vec<Listed> = all.into_iter().map(listed).collect();
        return output::json(&listed);
    }
    if all.is_empty() {
        return output::line("no periodic jobs");
    }
    let rows: Vec<[String; 6]> = all.iter().map(row).collect();
    let head = [
        "name", "schedule", "version", "state", "next due", "last due",
    ];
    output::table(head, &rows)
}

fn listed(view: PeriodicView) -> Listed {
    Listed {
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

fn row(view: &PeriodicView) -> [String; 6] {
    let date = |date: Option<DateTime<Utc>>| {
        date.map_or("-".to_owned(), |at| {
            at.to_rfc3339_opts(SecondsFormat::Secs, true)
        })
    };
    let state = match (view.paused, view.next_due) {
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
