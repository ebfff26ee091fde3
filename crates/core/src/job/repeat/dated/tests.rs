use chrono::{DateTime, TimeDelta, Utc};

use super::*;
use crate::job::calendar::tests::{at, office};
use crate::job::repeat::BadRepeat;

fn read(text: &str) -> Repeat {
    Repeat::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the due dates of a series from a date on, as if each occurrence ended at once. Each text
/// is read by the next occurrence, as from a row.
fn series(text: &str, from: &str, count: usize) -> Vec<DateTime<Utc>> {
    let (mut repeat, calendars) = (read(text), office());
    let mut due = repeat.first(at(from), &calendars).unwrap().unwrap();
    let mut dates = vec![due];
    while dates.len() < count
        && let Some((next, at)) = repeat.next(due, due, &calendars).unwrap()
    {
        (repeat, due) = (read(&next.to_string()), at);
        assert_eq!(repeat, next);
        dates.push(due);
    }
    dates
}

#[test]
fn a_date_outside_of_working_time_moves_or_is_skipped() {
    let dates = |texts: &[&str]| texts.iter().map(|text| at(text)).collect::<Vec<_>>();
    // From a Friday on: the dates of a weekend are one occurrence on Monday.
    assert_eq!(
        series(
            "0 8 * * *[Europe/Berlin][calendar=office]",
            "2026-01-09T00:00:00Z",
            3
        ),
        dates(&[
            "2026-01-09T08:00:00Z",
            "2026-01-12T08:00:00Z",
            "2026-01-13T08:00:00Z"
        ])
    );
    assert_eq!(
        series(
            "0 14 * * *[Europe/Berlin][calendar=office][closed=skip]",
            "2026-01-08T00:00:00Z",
            4
        ),
        dates(&[
            "2026-01-08T13:00:00Z",
            "2026-01-09T13:00:00Z",
            "2026-01-12T13:00:00Z",
            "2026-01-13T13:00:00Z"
        ])
    );
    // A period counts from the schedule's dates, not from the moved ones.
    assert_eq!(
        series(
            "R/2026-01-08T10:00:00Z/P1D[calendar=office]",
            "2026-01-08T00:00:00Z",
            4
        ),
        dates(&[
            "2026-01-08T10:00:00Z",
            "2026-01-09T10:00:00Z",
            "2026-01-12T08:00:00Z",
            "2026-01-12T10:00:00Z"
        ])
    );
    // The first date of a period without a start is the first working time.
    assert_eq!(
        series(
            "R3/P1W[Europe/Berlin][calendar=office]",
            "2026-12-24T15:00:00Z",
            9
        ),
        dates(&[
            "2026-12-28T08:00:00Z",
            "2027-01-04T08:00:00Z",
            "2027-01-11T08:00:00Z"
        ])
    );
    // A date that moves behind the end does not occur.
    assert_eq!(
        series(
            "R/2026-01-09T10:00:00Z/P1D/2026-01-11T00:00:00Z[calendar=office]",
            "2026-01-09T00:00:00Z",
            9
        ),
        dates(&["2026-01-09T10:00:00Z"])
    );
    let never = read("0 3 * * *[Europe/Berlin][calendar=office][closed=skip]");
    assert!(matches!(
        never.first(at("2026-01-01T00:00:00Z"), &office()),
        Err(BadRepeat::Fault(CalendarFault::Never(..)))
    ));
}

/// A cron expression ends in the year 4999, so its dates may run out before the attempts do. The
/// series has not ended by that.
#[test]
fn a_series_whose_dates_are_all_skipped_has_a_fault_and_no_end() {
    let calendars = office();
    let now = at("2026-01-08T09:00:00Z");
    for schedule in ["0 10 25 12 *", "0 3 * * *"] {
        let repeat = read(&format!("{schedule}[calendar=office][closed=skip]"));
        let first = repeat.first(now, &calendars);
        assert!(
            matches!(&first, Err(BadRepeat::Fault(CalendarFault::Never(..)))),
            "{schedule}: {first:?}"
        );
        let next = repeat.next(now, now, &calendars);
        assert!(matches!(next, Err(CalendarFault::Never(..))), "{next:?}");
    }
    // Dates that run out after a few are skipped.
    let last = read("R/9998-12-25T10:00:00Z/P1Y[Europe/Berlin][calendar=office][closed=skip]");
    let first = last.first(now, &calendars);
    assert!(matches!(&first, Err(BadRepeat::Fault(_))), "{first:?}");
    // An end ends the series.
    let ends = read("R/cron(0 10 25 12 *)/2030-01-01T00:00:00Z[calendar=office][closed=skip]");
    assert_eq!(ends.next(now, now, &calendars), Ok(None));
}

/// Hourly dates of a year: each lies in working time, none is missing, and none occurs twice.
#[test]
fn a_series_of_a_year_meets_each_hour_of_working_time_once() {
    let calendars = office();
    let count = series(
        "0 * * * *[calendar=office][closed=skip]",
        "2026-01-01T00:00:00Z",
        3_000,
    );
    let mut expected = Vec::new();
    let mut hour = at("2026-01-01T00:00:00Z");
    while expected.len() < count.len() {
        if calendars.open_from("office", hour) == Ok(hour) {
            expected.push(hour);
        }
        hour += TimeDelta::hours(1);
    }
    assert_eq!(count, expected);
    assert!(*count.last().unwrap() > at("2027-01-01T00:00:00Z"));
    let moved = series("0 * * * *[calendar=office]", "2026-01-01T00:00:00Z", 3_000);
    assert!(moved.is_sorted_by(|a, b| a < b));
    assert!(
        moved
            .iter()
            .all(|date| calendars.open_from("office", *date) == Ok(*date))
    );
}

#[test]
fn a_missed_date_that_moves_into_the_future_is_kept() {
    let calendars = office();
    // Saturdays, which move to Mondays. Nothing ran from the 12th until Saturday the 24th.
    let weekly = read("R/2026-01-03T10:00:00Z/P1W[calendar=office]");
    let due = at("2026-01-12T08:00:00Z");
    let now = at("2026-01-24T12:00:00Z");
    let (_, next) = weekly.next(due, now, &calendars).unwrap().unwrap();
    assert_eq!(next, at("2026-01-26T08:00:00Z"));
    // It does not count twice.
    let (_, next) = weekly.next(next, now, &calendars).unwrap().unwrap();
    assert_eq!(next, at("2026-02-02T08:00:00Z"));
    let all = read("R/2026-01-03T10:00:00Z/P1W[calendar=office][catch-up=all]");
    let (_, next) = all.next(due, now, &calendars).unwrap().unwrap();
    assert_eq!(next, at("2026-01-19T08:00:00Z"));
    let skip = read("R/2026-01-03T10:00:00Z/P1W[calendar=office][catch-up=skip]");
    assert!(skip.skips(due, now, &calendars));
    assert!(!skip.skips(at("2026-01-19T08:00:00Z"), now, &calendars));
    // A node without the calendar can't tell, so the occurrence runs.
    assert!(!skip.skips(due, now, &Calendars::default()));
}

#[test]
fn a_repetition_keeps_its_calendar_as_text() {
    for text in [
        "0 8 * * *[Europe/Berlin][catch-up=skip][calendar=berlin-office][closed=skip]",
        "R/PT3600S[calendar=a.b_c-1]",
        "R/PT3600S[calendar=a][pending=first@2026-01-01T00:00:00Z]",
        "R2/P1M[calendar=a][pending=after@2026-01-01T00:00:00.000001Z]",
    ] {
        assert_eq!(read(text).to_string(), text);
    }
    for (text, part) in [
        ("R/PT1H[calendar=]", "name of a calendar"),
        ("R/PT1H[calendar=a b]", "name of a calendar"),
        ("R/PT1H[calendar=a][calendar=b]", "occurs twice"),
        ("R/PT1H[closed=skip]", "beside a calendar"),
        (
            "R/PT1H[calendar=a][closed=never]",
            "closed=move or closed=skip",
        ),
        ("R/PT1H[pending=first@2026-01-01T00:00:00Z]", "unknown"),
        ("R/PT1H[calendar=a][pending=soon]", "unknown"),
    ] {
        let said = Repeat::parse(text).unwrap_err().to_string();
        assert!(said.contains(part), "{text}: {said}");
    }
}
