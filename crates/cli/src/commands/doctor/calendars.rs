//! Counts what waits for a business calendar: occurrences whose date no node has computed, and schedules
//! that stay due. Names periodic jobs that create no jobs.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat, Utc};
use jobwire_core::store::PeriodicView;
use jobwire_core::telemetry::plain;
use jobwire_core::{Repeat, Store, StoreError};

use super::finding::Findings;
use crate::error::Error;
use crate::output;

/// Maximum number of calendars that are named.
const NAMED: usize = 20;
/// The time after its due date from which a schedule waits: any node that knows its calendar creates the
/// job within twenty seconds.
const LATE: chrono::Duration = chrono::Duration::seconds(60);

pub(super) async fn examine(store: &dyn Store, findings: &mut Findings) {
    if let Err(error) = look(store, findings).await {
        findings.remark(
            "calendars",
            format!(
                "the jobs that wait for one were not counted: {}",
                Error::Store(error)
            ),
            "if very many jobs wait, run it again when there are fewer",
        );
    }
}

async fn look(store: &dyn Store, findings: &mut Findings) -> Result<(), StoreError> {
    let at_most = i64::try_from(NAMED).unwrap_or(i64::MAX);
    for pending in store.pending_jobs(at_most).await? {
        let jobs = pending.jobs.unsigned_abs();
        let found = format!(
            "{} for the calendar `{}` since {}: no node that took {} knows it",
            waiting(jobs, "job"),
            plain::one_line(&pending.calendar, 64),
            second(pending.since),
            if jobs == 1 { "it" } else { "them" }
        );
        let remedy = remedy(
            store,
            &pending.calendar,
            "jobs then get their dates within five minutes",
        );
        findings.remark("calendars", found, remedy);
    }
    let periodic = store.periodic_jobs().await?;
    faulty(store, &periodic, findings);
    for (calendar, (schedules, since)) in late_schedules(&periodic).into_iter().take(NAMED) {
        let found = format!(
            "{} for the calendar `{}`, due since {}: no living node knows it, or it gives no date",
            waiting(schedules, "periodic job"),
            plain::one_line(&calendar, 64),
            second(since)
        );
        let remedy = remedy(
            store,
            &calendar,
            "the jobs are then created within twenty seconds",
        );
        findings.remark("calendars", found, remedy);
    }
    Ok(())
}

/// Names the periodic jobs that create no jobs.
fn faulty(store: &dyn Store, periodic: &[PeriodicView], findings: &mut Findings) {
    let faulty = periodic.iter();
    let faulty = faulty.filter_map(|view| Some((view, view.fault(store.calendars())?)));
    let faulty: Vec<_> = faulty.collect();
    let Some((first, why)) = faulty.first() else {
        return;
    };
    let number = faulty.len() as u64;
    let found = format!(
        "{} {} no jobs, first `{}`: {}",
        output::count(number, "periodic job"),
        if number == 1 { "creates" } else { "create" },
        plain::one_line(&first.name, 256),
        plain::one_line(&why.to_string(), 500)
    );
    let remedy = "declare it again, resume it, or remove it (`jobwire periodic`); \
                  `jobwire periodic list` names all";
    findings.remark("periodic jobs", found, remedy);
}

/// Returns the number of schedules that stay due, and the earliest of their due dates, by calendar.
fn late_schedules(periodic: &[PeriodicView]) -> BTreeMap<String, (u64, DateTime<Utc>)> {
    let mut late = BTreeMap::new();
    let before = Utc::now() - LATE;
    for view in periodic {
        let Some(due) = view.next_due.filter(|due| !view.paused && *due < before) else {
            continue;
        };
        let Ok(Repeat {
            calendar: Some(calendar),
            ..
        }) = Repeat::parse(&view.schedule)
        else {
            continue;
        };
        let (schedules, since) = late.entry(calendar).or_insert((0, due));
        *schedules += 1;
        *since = due.min(*since);
    }
    late
}

fn waiting(number: u64, noun: &str) -> String {
    let verb = if number == 1 { "waits" } else { "wait" };
    format!("{} {verb}", output::count(number, noun))
}

fn second(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn remedy(store: &dyn Store, calendar: &str, then: &str) -> String {
    if store.calendars().names().any(|known| known == calendar) {
        return format!(
            "these settings know the calendar: give all nodes the same ones (`calendars`, \
             `with_calendars`) and restart them; {then}"
        );
    }
    format!(
        "register the calendar on all nodes (`calendars`, `with_calendars`), or correct its name in \
         the repetition; {then}"
    )
}
