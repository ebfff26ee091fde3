//! Tests of the occurrences of a series.

use super::fate::{Instead, has_ended, instead};
use super::*;
use crate::job::Lane;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn none() -> Calendars {
    Calendars::default()
}

/// Returns the row of a job that plain SQL created, or that an older program created.
fn row(repeat: &str, created: &str) -> Job {
    let created = at(created);
    let mut job = NewJob::of("work", &17);
    job.correlation_id = Some(job.id().uuid());
    let mut row = job.into_job(1, created, Lane::default()).unwrap();
    row.repeat = Some(repeat.to_owned());
    row
}

fn replaced(job: &Job, now: &str) -> Option<Option<NewJob>> {
    let repeat = repeat(job).unwrap().unwrap();
    match instead(job, &repeat, at(now), &none()).unwrap() {
        Instead::Runs => None,
        Instead::Replaced(next) => Some(next.map(|next| *next)),
        Instead::Waits(fault) | Instead::WaitsAs(_, fault) => panic!("{fault}"),
    }
}

#[test]
fn a_schedule_without_a_due_date_begins_at_its_first_date() {
    let now = "2027-01-01T12:00:00Z";
    let row = row("R3/cron(0 2 * * *)[Europe/Berlin]", now);
    let first = replaced(&row, now).unwrap().unwrap();
    assert_eq!(first.due_at, Some(at("2027-01-02T01:00:00Z")));
    // It is the first occurrence, not the second.
    assert_eq!(first.repeat, row.repeat);
    assert_eq!(first.correlation_id, Some(row.correlation_id));
    // The library gives the date at once.
    let mut new = NewJob::of("work", &17).repeat_text("0 2 * * *");
    new.complete().unwrap();
    assert!(new.due_at.is_some_and(|due| due > Utc::now()));
    assert_eq!(new.due_at.unwrap().timestamp() % (24 * 3600), 2 * 3600);
    // A plain interval begins at once.
    let row = self::row("R3/PT10M", now);
    assert!(replaced(&row, now).is_none());
    let mut new = NewJob::of("work", &17).repeat_text("R3/PT10M");
    new.complete().unwrap();
    assert_eq!(new.due_at, None);
    // A schedule without a date left has no occurrence.
    let row = self::row("R/PT1H/2026-01-01T00:00:00Z", now);
    let repeat = repeat(&row).unwrap().unwrap();
    assert!(has_ended(&row, &repeat, at(now)));
    let over = "R/2025-01-01T00:00:00Z/PT1H/2026-01-01T00:00:00Z";
    assert!(matches!(replaced(&self::row(over, now), now), Some(None)));
    let new = NewJob::of("work", &17).repeat_text(over);
    let refused = new.validate().unwrap_err().to_string();
    assert!(refused.contains("no occurrence from now on"), "{refused}");
}

#[test]
fn a_dead_letter_without_a_date_gets_one_and_does_not_run() {
    use crate::job::calendar::tests::office;
    // A Saturday.
    let now = "2026-01-10T12:00:00Z";
    let mut revived = row("R3/PT1H[calendar=office]", now);
    revived.failures = 1;
    revived.exception_message = Some("no working time".to_owned());
    let fate = |job: &Job| {
        let repeat = repeat(job).unwrap().unwrap();
        instead(job, &repeat, at(now), &office()).unwrap()
    };
    let Instead::Replaced(Some(next)) = fate(&revived) else {
        panic!("it runs");
    };
    assert_eq!(next.due_at, Some(at("2026-01-12T08:00:00Z")));
    let over = "R/2026-01-10T11:00:00Z/PT1H/2026-01-11T00:00:00Z[calendar=office]";
    revived.repeat = Some(over.to_owned());
    assert!(matches!(fate(&revived), Instead::Replaced(None)));
    // Without a calendar, an operator's retry runs it.
    revived.repeat = Some("0 2 * * *".to_owned());
    assert!(matches!(fate(&revived), Instead::Runs));
}

#[test]
fn an_occurrence_without_a_date_ends_with_its_series() {
    let created = "2027-01-01T00:00:00Z";
    let mut job = row("R/PT1H/2027-01-01T03:30:00Z[calendar=unknown]", created);
    job.due_at = Some(at("2027-01-01T01:00:00Z"));
    let next = next_occurrence(&job, at("2027-01-01T01:00:00Z"), &none()).unwrap();
    let mut next = next.into_job(2, at(created), Lane::default()).unwrap();
    let repeat = repeat(&next).unwrap().unwrap();
    assert!(repeat.pending.is_some());
    // Each attempt moves the due date.
    for (now, ended) in [
        ("2027-01-01T03:29:00Z", false),
        ("2027-01-01T03:31:00Z", false),
        ("2027-01-01T03:31:01Z", true),
    ] {
        next.due_at = Some(at(now));
        assert_eq!(has_ended(&next, &repeat, at(now)), ended, "{now}");
    }
    // There is none whose date in the schedule lies behind the end.
    job.due_at = Some(at("2027-01-01T03:00:00Z"));
    let ended = "2027-01-01T03:00:01Z";
    assert!(next_occurrence(&job, at(ended), &none()).is_none());
    job.repeat = Some("R/PT1H[calendar=unknown]".to_owned());
    assert!(next_occurrence(&job, at(ended), &none()).is_some());
    job.repeat_until = Some(at("2027-01-01T03:59:59Z"));
    assert!(next_occurrence(&job, at(ended), &none()).is_none());
}

#[test]
fn a_creator_writes_neither_the_suffix_nor_a_text_without_room_for_it() {
    let refused = |text: &str| {
        let new = NewJob::of("work", &17).repeat_text(text);
        new.validate().unwrap_err().to_string()
    };
    let said = refused("R/PT1H[calendar=a][pending=first@2027-01-01T00:00:00Z]");
    assert!(said.contains("leave it out: Jobwire writes it"), "{said}");
    let hours = vec!["1"; 480].join(",");
    let long = format!("0 {hours} * * *[calendar=a]");
    assert!((961..=1_024).contains(&long.len()), "{}", long.len());
    let said = refused(&long);
    assert!(said.contains("shorten it"), "{said}");
    assert!(repeat(&row(&long, "2027-01-01T00:00:00Z")).is_err());
    let without = NewJob::of("work", &17).repeat_text(format!("0 {hours} * * *"));
    without.validate().unwrap();
}

#[test]
fn a_missed_occurrence_is_skipped_where_the_job_asks_for_it() {
    let created = "2027-01-01T00:00:00Z";
    let mut row = row("R3/PT1H[catch-up=skip]", created);
    row.due_at = Some(at("2027-01-01T01:00:00Z"));
    assert!(replaced(&row, "2027-01-01T01:59:59Z").is_none());
    let next = replaced(&row, "2027-01-01T05:20:00Z").unwrap().unwrap();
    assert_eq!(next.due_at, Some(at("2027-01-01T06:00:00Z")));
    assert_eq!(next.repeat.as_deref(), Some("R3/PT3600S[catch-up=skip]"));
    // An attempt that failed is not forgotten.
    row.failures = 1;
    assert!(replaced(&row, "2027-01-01T05:20:00Z").is_none());
    row.failures = 0;
    row.repeat = Some("R3/PT1H".to_owned());
    assert!(replaced(&row, "2027-01-01T05:20:00Z").is_none());
}

#[test]
fn the_next_date_counts_from_the_last_one_and_keeps_the_zone() {
    let mut row = row("R/P1D[Europe/Berlin]", "2026-03-27T01:30:00Z");
    let mut dates = Vec::new();
    for _ in 0..3 {
        let due = row.due_at.unwrap_or(row.created_at);
        // Each occurrence runs for a minute.
        let ended = due + chrono::Duration::minutes(1);
        let next = next_occurrence(&row, ended, &none()).unwrap();
        row = next.into_job(2, due, Lane::default()).unwrap();
        dates.push(row.due_at.unwrap());
    }
    assert_eq!(
        dates,
        [
            at("2026-03-28T01:30:00Z"),
            at("2026-03-29T01:30:00Z"),
            at("2026-03-30T00:30:00Z")
        ]
    );
    assert_eq!(
        row.repeat.as_deref(),
        Some("R/2026-03-27T01:30:00Z/P1D[Europe/Berlin]")
    );
}
