use chrono::TimeDelta;

use super::*;

pub(in crate::job) fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

/// Office hours in Berlin, with holidays of 2026 and 2027.
pub(in crate::job) fn office() -> Calendars {
    let office = WorkingHours::in_zone("Europe/Berlin")
        .and_then(|hours| hours.open("Mon-Thu", "09:00-12:00, 13:00-17:30"))
        .and_then(|hours| hours.open("Fri", "09:00-15:00"))
        .and_then(|hours| hours.closed("12-25"))
        .and_then(|hours| hours.closed("01-01"))
        .and_then(|hours| hours.closed("2026-04-03"))
        .and_then(|hours| hours.open_on("2026-12-24", "09:00-12:00"));
    Calendars::default()
        .with("office", office.unwrap())
        .unwrap()
}

fn night() -> Calendars {
    let night = WorkingHours::in_zone("Europe/Berlin").unwrap();
    let night = night.open("Mon-Sun", "00:00-06:00, 22:00-24:00").unwrap();
    Calendars::default().with("night", night).unwrap()
}

#[test]
fn working_time_begins_with_a_span_and_ends_before_its_end() {
    let calendars = office();
    for (date, open) in [
        // A Thursday in winter, when Berlin is an hour before UTC.
        ("2026-01-08T07:59:59Z", "2026-01-08T08:00:00Z"),
        ("2026-01-08T08:00:00Z", "2026-01-08T08:00:00Z"),
        ("2026-01-08T10:59:59.999999Z", "2026-01-08T10:59:59.999999Z"),
        ("2026-01-08T11:00:00Z", "2026-01-08T12:00:00Z"),
        // The end of a Friday.
        ("2026-01-09T14:00:00Z", "2026-01-12T08:00:00Z"),
        // Good Friday, then a weekend after the change of the clock.
        ("2026-04-02T15:30:00Z", "2026-04-06T07:00:00Z"),
        // A short day, then a holiday and a weekend.
        ("2026-12-24T11:00:00Z", "2026-12-28T08:00:00Z"),
        ("2026-12-31T16:30:00Z", "2027-01-04T08:00:00Z"),
    ] {
        assert_eq!(
            calendars.open_from("office", at(date)),
            Ok(at(open)),
            "{date}"
        );
    }
}

#[test]
fn a_duration_counts_working_time_only() {
    let calendars = office();
    for (from, hours, due) in [
        ("2026-01-08T08:00:00Z", 3, "2026-01-08T11:00:00Z"),
        ("2026-01-08T08:00:00Z", 4, "2026-01-08T13:00:00Z"),
        ("2026-01-08T16:00:00Z", 1, "2026-01-09T08:30:00Z"),
        // It begins with the next working time.
        ("2026-01-10T20:00:00Z", 1, "2026-01-12T09:00:00Z"),
        ("2026-01-10T20:00:00Z", 0, "2026-01-12T08:00:00Z"),
        // Over the change of the clock on 29 March.
        ("2026-03-27T13:00:00Z", 2, "2026-03-30T08:00:00Z"),
        // 36 hours are a week.
        ("2026-01-05T08:00:00Z", 36, "2026-01-09T14:00:00Z"),
        ("2026-01-05T08:00:00Z", 37, "2026-01-12T09:00:00Z"),
    ] {
        let due_at = calendars.after("office", at(from), Duration::from_secs(hours * 3_600));
        assert_eq!(due_at, Ok(at(due)), "{from} {hours}");
    }
    let century = Duration::from_secs(200 * 365 * 24 * 3_600);
    assert!(matches!(
        calendars.after("office", at("2026-01-05T08:00:00Z"), century),
        Err(CalendarFault::Never(..))
    ));
    let endless = calendars.after("office", at("2026-01-05T08:00:00Z"), Duration::MAX);
    assert!(endless.is_err());
}

#[test]
fn working_time_is_elapsed_time_when_the_clock_changes() {
    let calendars = night();
    let hours = |from: &str, to: &str| {
        let span = calendars.span("night", at(from)).unwrap();
        assert_eq!(span.to, at(to));
        span.to.signed_duration_since(span.from).num_hours()
    };
    assert_eq!(hours("2026-03-28T00:00:00Z", "2026-03-28T05:00:00Z"), 6);
    assert_eq!(hours("2026-03-29T00:00:00Z", "2026-03-29T04:00:00Z"), 5);
    assert_eq!(hours("2026-10-25T00:00:00Z", "2026-10-25T05:00:00Z"), 7);
    // Both halves of a night are one working time.
    let due = calendars.after(
        "night",
        at("2026-01-05T21:00:00Z"),
        Duration::from_secs(3 * 3_600),
    );
    assert_eq!(due, Ok(at("2026-01-06T00:00:00Z")));

    // Bounds inside the hour that is skipped or occurs twice.
    let bounds = WorkingHours::in_zone("Europe/Berlin").unwrap();
    let bounds = bounds.open("Sun", "02:15-02:45").unwrap();
    let calendars = Calendars::default().with("bounds", bounds).unwrap();
    let span = calendars
        .span("bounds", at("2026-03-28T12:00:00Z"))
        .unwrap();
    assert_eq!(
        (span.from, span.to),
        (at("2026-03-29T01:15:00Z"), at("2026-03-29T01:45:00Z"))
    );
    let span = calendars
        .span("bounds", at("2026-10-24T12:00:00Z"))
        .unwrap();
    assert_eq!(
        (span.from, span.to),
        (at("2026-10-25T00:15:00Z"), at("2026-10-25T01:45:00Z"))
    );
    let empty = WorkingHours::in_zone("Europe/Berlin").unwrap();
    let empty = empty.open("Sun", "02:30-03:15").unwrap();
    let calendars = Calendars::default().with("empty", empty).unwrap();
    let span = calendars.span("empty", at("2026-03-28T12:00:00Z")).unwrap();
    assert_eq!(span.from, at("2026-04-05T00:30:00Z"));
}

/// Every calendar keeps its rules at any time of a year with holidays and two changes of the clock.
#[test]
fn dates_and_durations_agree_over_a_year() {
    for (name, calendars) in [("office", office()), ("night", night())] {
        let mut now = at("2026-01-01T00:17:00Z");
        let (mut before, mut step) = (now, 0);
        while now < at("2027-01-01T00:00:00Z") {
            let open = calendars.open_from(name, now).unwrap();
            assert!(open >= now && open >= before, "{name} {now}");
            assert_eq!(calendars.open_from(name, open), Ok(open));
            assert_eq!(calendars.after(name, now, Duration::ZERO), Ok(open));
            // A duration in two parts leads to the same date.
            let part = Duration::from_secs(5_000);
            let middle = calendars.after(name, now, part).unwrap();
            let twice = calendars.after(name, middle, part);
            assert_eq!(twice, calendars.after(name, now, part * 2), "{name} {now}");
            step += 1;
            if open > now && step % 4 == 0 {
                let since = calendars
                    .closed_since(name, before - TimeDelta::days(30), now)
                    .unwrap();
                assert!(since <= now);
                assert_eq!(calendars.open_from(name, since), Ok(open), "{name} {now}");
                let last = since - TimeDelta::microseconds(1);
                assert_eq!(calendars.open_from(name, last), Ok(last), "{name} {now}");
            }
            before = open;
            now += TimeDelta::minutes(1_027);
        }
    }
}

#[test]
fn a_calendar_that_misbehaves_gives_a_fault() {
    /// A calendar that answers like this from 2100 on.
    struct Bad(fn(DateTime<Utc>) -> Option<WorkingTime>);

    impl BusinessCalendar for Bad {
        fn working_time(&self, at: DateTime<Utc>) -> Option<WorkingTime> {
            if at.year() >= 2100 {
                return (self.0)(at);
            }
            Some(WorkingTime {
                from: at,
                to: at + TimeDelta::hours(1),
            })
        }
    }

    let late = at("2100-01-01T00:00:00Z");
    let ask = |bad: fn(DateTime<Utc>) -> Option<WorkingTime>| {
        let calendars = Calendars::default().with("bad", Bad(bad)).unwrap();
        calendars.open_from("bad", late).unwrap_err()
    };
    assert!(matches!(ask(|_| panic!("no")), CalendarFault::Panicked(_, text) if text == "no"));
    let past = |at| {
        Some(WorkingTime {
            from: at - TimeDelta::hours(2),
            to: at - TimeDelta::hours(1),
        })
    };
    assert!(matches!(ask(past), CalendarFault::Past(_)));
    let empty = |at| Some(WorkingTime { from: at, to: at });
    assert!(matches!(ask(empty), CalendarFault::Past(_)));
    assert!(matches!(ask(|_| None), CalendarFault::Closed(..)));
    assert!(matches!(
        office().open_from("other", late),
        Err(CalendarFault::Unknown(name)) if name == "other"
    ));
}

#[test]
fn a_calendar_without_working_time_is_refused() {
    let zone = || WorkingHours::in_zone("Europe/Berlin").unwrap();
    let with = |hours| Calendars::default().with("never", hours).unwrap_err();
    assert!(with(zone()).to_string().contains("has no working time"));
    let past = zone().open_on("2020-01-01", "09:00-17:00").unwrap();
    assert!(matches!(
        with(past),
        BadCalendar::Fault(CalendarFault::Closed(..))
    ));
    let mut all = zone().open("Mon-Sun", "09:00-17:00").unwrap();
    for day in 0..366 {
        let date = at("2000-01-01T00:00:00Z") + TimeDelta::days(day);
        all = all.closed(&date.format("%m-%d").to_string()).unwrap();
    }
    assert!(matches!(
        with(all.clone()),
        BadCalendar::Fault(CalendarFault::Closed(..))
    ));
    let leap_days = all.open_on("02-29", "09:00-17:00").unwrap();
    assert!(Calendars::default().with("leap-days", leap_days).is_ok());
    let twice = office().with("office", zone().open("Mon", "09:00-17:00").unwrap());
    assert!(matches!(twice.unwrap_err(), BadCalendar::Twice(_)));
    let named = Calendars::default().with("a b", zone().open("Mon", "09:00-17:00").unwrap());
    assert!(matches!(named.unwrap_err(), BadCalendar::Name(_)));

    assert!(matches!(
        WorkingHours::in_zone("Berlin"),
        Err(BadHours::Zone(_))
    ));
    for hours in [
        "",
        "9-17",
        "09:00",
        "17:00-09:00",
        "09:00-12:00,11:00-13:00",
        "00:00-24:01",
        "23:60-24:00",
        "+9:00-10:00",
    ] {
        assert!(
            matches!(zone().open("Mon", hours), Err(BadHours::Hours(_))),
            "{hours}"
        );
    }
    for days in ["", "Monday-", "Mon-Foo", "8"] {
        assert!(
            matches!(zone().open(days, "09:00-10:00"), Err(BadHours::Days(_))),
            "{days}"
        );
    }
    for date in ["", "13-01", "02-30", "2027-02-29", "tomorrow"] {
        assert!(
            matches!(zone().closed(date), Err(BadHours::Date(_))),
            "{date}"
        );
    }
    let monday = zone().open("Fri-Mon", "09:00-10:00").unwrap();
    assert!(matches!(
        monday.open("Mon", "11:00-12:00"),
        Err(BadHours::Twice(_))
    ));
}

#[test]
fn a_gap_of_the_clock_leaves_the_spans_in_order() {
    // The clock goes from 2:00 to 3:00 on 2026-03-29, so the first two spans move behind the third.
    let hours = WorkingHours::in_zone("Europe/Berlin").unwrap();
    let hours = hours
        .open("Sun", "02:10-02:20, 02:30-02:40, 03:00-03:05")
        .unwrap();
    let calendars = Calendars::default().with("gap", hours).unwrap();
    for (from, open) in [
        ("2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z"),
        ("2026-03-29T01:05:00Z", "2026-03-29T01:10:00Z"),
        ("2026-03-29T01:20:00Z", "2026-03-29T01:30:00Z"),
    ] {
        assert_eq!(calendars.open_from("gap", at(from)), Ok(at(open)), "{from}");
    }
}
