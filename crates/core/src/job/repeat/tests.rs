use chrono::TimeZone;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn none() -> Calendars {
    Calendars::default()
}

fn read(text: &str) -> Repeat {
    Repeat::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the due dates after `due`, as if each occurrence ended at once.
fn series(text: &str, due: &str, count: usize) -> Vec<String> {
    let (mut repeat, mut due) = (read(text), at(due));
    let mut dates = Vec::new();
    while dates.len() < count
        && let Some((next, at)) = repeat.next(due, due, &none()).unwrap()
    {
        // The next occurrence reads the text of the row.
        (repeat, due) = (read(&next.to_string()), at);
        assert_eq!(repeat, next);
        dates.push(due.to_rfc3339_opts(SecondsFormat::AutoSi, true));
    }
    dates
}

/// A date at the end of the calendar has no local date in some zones.
#[test]
fn a_date_beyond_the_year_9999_ends_a_schedule_of_local_dates() {
    let last = DateTime::<Utc>::MAX_UTC;
    for text in [
        "R/P1D[Asia/Tokyo]",
        "R/P1M",
        "0 2 * * *[Pacific/Kiritimati]",
    ] {
        let repeat = Repeat::parse(text).unwrap();
        assert_eq!(repeat.next(last, last, &none()).unwrap(), None, "{text}");
        assert!(!repeat.skips(last, last, &none()), "{text}");
    }
    assert!(
        Repeat::parse("0 2 * * *")
            .unwrap()
            .first(last, &none())
            .is_err()
    );
}

#[test]
fn what_could_not_be_read_back_or_would_not_advance_is_refused() {
    for text in [
        "R/PT1H/9999-12-31T23:59:59-05:00",
        "R/0000-01-01T00:00:00+01:00/PT1H",
        "R/PT0.0000001S",
        "R/PT0.0009S",
    ] {
        assert!(Repeat::parse(text).is_err(), "{text}");
    }
    assert!(Repeat::parse("R/PT0.001S").is_ok());
}

#[test]
fn counts_and_for_ever_are_read() {
    let every = Duration::from_secs(600);
    assert_eq!(read("R3/PT10M"), Repeat::times(3, every));
    assert_eq!(read("R/PT10M"), Repeat::forever(every));
    for text in ["", "PT10M", "R0/PT10M", "R-1/PT10M", "R3", "R3/PT0S"] {
        assert!(Repeat::parse(text).is_err(), "{text} was accepted");
    }
}

#[test]
fn bounds_zones_and_policies_are_read() {
    let hour = Repeat::forever(Duration::from_secs(3_600));
    let (start, end) = (at("2027-01-01T00:00:00Z"), at("2027-12-31T23:00:00Z"));
    for (text, repeat) in [
        ("R/2027-01-01T00:00:00Z/PT1H", hour.clone().starting(start)),
        ("R/PT1H/2028-01-01T00:00:00+01:00", hour.clone().until(end)),
        (
            "R/2027-01-01T00:00:00Z/PT1H/2027-12-31T23:00:00Z[catch-up=all]",
            hour.clone()
                .starting(start)
                .until(end)
                .catch_up(CatchUp::All),
        ),
        ("R/PT1H[catch-up=once]", hour),
    ] {
        assert_eq!(read(text), repeat, "{text}");
    }
    let month = read("R5/P1Y2M3W4DT5M[Europe/Berlin]");
    assert_eq!(month.times, Some(5));
    assert_eq!(month.zone, Some(Tz::Europe__Berlin));
    let period = Period {
        months: 14,
        days: 25,
        time: Duration::from_secs(300),
    };
    assert_eq!(month.schedule, Schedule::Calendar(period));
    // Without a zone, days and weeks have a fixed length, as before calendar periods were known.
    let week = Duration::from_secs(7 * 24 * 3_600);
    assert_eq!(read("R/P1W").interval(), Some(week));
    assert_eq!(read("R/P1W[UTC]").interval(), None);
}

#[test]
fn what_is_written_reads_back() {
    for (text, written) in [
        ("R3/PT10M", "R3/PT600S"),
        ("R/PT0.5S", "R/PT0.5S"),
        ("R/PT0.001000001S", "R/PT0.001S"),
        ("R/P1MT0.0000001S", "R/P1M"),
        ("R/P36600D", "R/PT3162240000S"),
        ("R/P1M", "R/P1M"),
        ("R/P1Y", "R/P1Y"),
        ("R/P14M", "R/P1Y2M"),
        ("R/p1wt1.5s[Asia/Tokyo]", "R/P7DT1.5S[Asia/Tokyo]"),
        ("R/PT1H[Europe/Berlin]", "R/PT3600S[Europe/Berlin]"),
        (
            "R2/2027-01-01T01:00:00.25+01:00/P1D/2028-01-01T00:00:00Z[catch-up=skip][Europe/Berlin]",
            "R2/2027-01-01T00:00:00.250Z/P1D/2028-01-01T00:00:00Z[Europe/Berlin][catch-up=skip]",
        ),
        (" 0  2 * * * ", "0 2 * * *"),
        ("@daily[Europe/Berlin]", "@daily[Europe/Berlin]"),
        ("0 */15 8-17 ? * MON-FRI", "0 */15 8-17 ? * MON-FRI"),
        ("R/cron(*/5 * * * *)", "*/5 * * * *"),
        (
            "R3/cron(*/5 * * * *)/2028-01-01T00:00:00Z",
            "R3/cron(*/5 * * * *)/2028-01-01T00:00:00Z",
        ),
    ] {
        let repeat = read(text);
        assert_eq!(repeat.to_string(), written);
        assert_eq!(read(written), repeat);
    }
}

/// Written as a float of seconds, 1.14 s became 1.1400000000000001 s, which can't be read.
#[test]
fn every_millisecond_up_to_4000_seconds_is_written_exactly() {
    for millis in 1..=4_000_000 {
        let repeat = Repeat::forever(Duration::from_millis(millis));
        assert_eq!(
            Repeat::parse(&repeat.to_string()),
            Ok(repeat),
            "{millis} ms"
        );
    }
}

#[test]
fn an_error_names_the_part() {
    for (text, part) in [
        ("every day", "neither"),
        ("* * *", "neither"),
        ("* * * * * * *", "neither"),
        ("61 * * * *", "cron expression"),
        ("@reboot", "cron expression"),
        ("R/cron(x * * * *)", "cron expression"),
        ("R/2027-01-01/P1D", "2027-01-01"),
        ("R/2027-01-01T00:00:00/P1D", "date with a time zone"),
        ("R/P1D/2027-13-01T00:00:00Z", "date with a time zone"),
        ("R/PT5M/PT5M", "date with a time zone"),
        ("R/P1D[Europe/Atlantis]", "time zone"),
        ("R/P1D[catch-up=twice]", "missed occurrences"),
        ("R/P1D[UTC][UTC]", "suffix"),
        ("R/P1D[u-ca=iso8601]", "suffix"),
        ("R/P101Y", "100 years"),
        ("R/P1MT1X", "not a duration"),
        ("R/-P1D", "not more than zero"),
        ("R/", "not a duration"),
        ("R", "neither"),
        ("R/a/b/c/d", "neither"),
        ("[", "neither"),
        ("]", "neither"),
    ] {
        let error = Repeat::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn no_text_panics_and_what_is_read_is_written_to_the_same() {
    let pieces = [
        "R",
        "R3",
        "/",
        "P",
        "1",
        "31",
        "M",
        "D",
        "Y",
        "W",
        "T",
        "H",
        "PT1H",
        "[",
        "]",
        "UTC",
        "Europe/Berlin",
        "=",
        "catch-up=all",
        "cron(",
        ")",
        "*",
        " ",
        "-",
        ",",
        "#",
        "L",
        "?",
        "+",
        "@daily",
        "2027-01-01T00:00:00Z",
        "ä",
        "MON",
        "0",
        "59",
    ];
    let mut random = SmallRng::seed_from_u64(27);
    let now = at("2027-03-01T00:00:00Z");
    let mut good = 0;
    for round in 0..30_000 {
        let mut text = String::new();
        for _ in 0..random.random_range(1..10) {
            text.push_str(pieces[random.random_range(0..pieces.len())]);
        }
        if round % 3 == 0 {
            text = format!("R/{text}");
        }
        if let Ok(repeat) = Repeat::parse(&text) {
            good += 1;
            assert_eq!(read(&repeat.to_string()), repeat, "{text}");
            if let Some((_, next)) = repeat.next(now, now, &none()).unwrap() {
                assert!(next > now, "{text}: {next}");
            }
        }
    }
    assert!(good > 100, "{good}");
}

#[test]
fn a_month_ends_on_its_last_day() {
    assert_eq!(
        series("R/2027-01-31T08:00:00Z/P1M", "2027-01-31T08:00:00Z", 4),
        [
            "2027-02-28T08:00:00Z",
            "2027-03-31T08:00:00Z",
            "2027-04-30T08:00:00Z",
            "2027-05-31T08:00:00Z",
        ]
    );
    // Without a start, the first due date is remembered.
    assert_eq!(
        series("R3/P1M", "2028-01-31T08:00:00Z", 9),
        ["2028-02-29T08:00:00Z", "2028-03-31T08:00:00Z"]
    );
    assert_eq!(
        series("R/P1Y", "2028-02-29T00:00:00Z", 4),
        [
            "2029-02-28T00:00:00Z",
            "2030-02-28T00:00:00Z",
            "2031-02-28T00:00:00Z",
            "2032-02-29T00:00:00Z",
        ]
    );
}

/// In Berlin, the clocks of 2026 skip 02:00 to 03:00 on 29 March and show it twice on 25 October.
#[test]
fn calendar_days_keep_their_local_time_over_both_changes_of_the_clock() {
    let days = "R/P1D[Europe/Berlin]";
    assert_eq!(
        series(days, "2026-03-27T01:30:00Z", 4),
        [
            "2026-03-28T01:30:00Z",
            // 02:30 is skipped: 03:30.
            "2026-03-29T01:30:00Z",
            "2026-03-30T00:30:00Z",
            "2026-03-31T00:30:00Z",
        ]
    );
    assert_eq!(
        series(days, "2026-10-23T00:30:00Z", 4),
        [
            "2026-10-24T00:30:00Z",
            // The first 02:30 of two.
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
            "2026-10-27T01:30:00Z",
        ]
    );
    // A series that begins in the gap or in the second 02:30 neither repeats nor loses a day.
    assert_eq!(
        series(days, "2026-10-25T01:30:00Z", 2),
        ["2026-10-26T01:30:00Z", "2026-10-27T01:30:00Z"]
    );
    // A fixed length does not follow the clock.
    assert_eq!(
        series("R/P1D", "2026-03-28T01:30:00Z", 2),
        ["2026-03-29T01:30:00Z", "2026-03-30T01:30:00Z"]
    );
    // Samoa skipped the whole of 30 December 2011: its 10:00 is the 10:00 of the day after, and
    // the series goes on with a later date.
    let apia = series("R/P1D[Pacific/Apia]", "2011-12-28T20:00:00Z", 3);
    assert_eq!(
        apia,
        [
            "2011-12-29T20:00:00Z",
            "2011-12-30T20:00:00Z",
            "2011-12-31T20:00:00Z"
        ]
    );
}

#[test]
fn a_cron_time_runs_once_a_day_over_both_changes_of_the_clock() {
    let night = "30 2 * * *[Europe/Berlin]";
    assert_eq!(
        series(night, "2026-03-28T00:00:00Z", 3),
        [
            "2026-03-28T01:30:00Z",
            // 02:30 is skipped: the first moment after the gap, 03:00.
            "2026-03-29T01:00:00Z",
            "2026-03-30T00:30:00Z",
        ]
    );
    assert_eq!(
        series(night, "2026-10-24T00:00:00Z", 3),
        [
            "2026-10-24T00:30:00Z",
            // The first 02:30 of two.
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
        ]
    );
    // A schedule that follows the clock skips the times that the clock skips, and runs twice at those
    // that it shows twice.
    let half_hours = "*/30 * * * *[Europe/Berlin]";
    for day in ["2026-03-28T23:00:00Z", "2026-10-24T22:00:00Z"] {
        let (mut expected, mut next) = (Vec::new(), at(day));
        for _ in 0..8 {
            next += chrono::Duration::minutes(30);
            expected.push(next.to_rfc3339_opts(SecondsFormat::AutoSi, true));
        }
        assert_eq!(series(half_hours, day, 8), expected);
    }
}

#[test]
fn a_year_of_cron_has_each_day_once() {
    for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"] {
        for time in ["30 2", "0 2", "59 1", "0 3", "15 1"] {
            let text = format!("{time} * * *[{zone}]");
            let dates = series(&text, "2026-01-01T12:00:00Z", 364);
            let zone: Tz = zone.parse().unwrap();
            let mut days: Vec<_> = dates
                .iter()
                .map(|date| at(date).with_timezone(&zone).date_naive())
                .collect();
            let all = days.len();
            days.dedup();
            assert_eq!((days.len(), all), (364, 364), "{text}");
            let last = days[363];
            assert_eq!((last - days[0]).num_days(), 363, "{text}");
        }
    }
}

#[test]
fn calendar_days_of_any_zone_count_each_day_once() {
    let mut random = SmallRng::seed_from_u64(4);
    for _ in 0..300 {
        let zone = chrono_tz::TZ_VARIANTS[random.random_range(0..chrono_tz::TZ_VARIANTS.len())];
        let start = Utc
            .timestamp_opt(random.random_range(0..2_000_000_000), 0)
            .unwrap();
        let months = random.random_range(0..3);
        let period = Period {
            months,
            days: random.random_range(1..40),
            time: Duration::ZERO,
        };
        let mut repeat = Repeat::of(Schedule::Calendar(period)).starting(start);
        repeat.zone = Some(zone);
        let mut due = start;
        for n in 1..40 {
            let next = repeat.after(start, due).unwrap();
            assert!(next > due, "{repeat}");
            // No date is left out: the search agrees with counting.
            assert_eq!(
                repeat.after(start, next - chrono::Duration::seconds(1)),
                Some(next)
            );
            let local = start.with_timezone(&zone).naive_local();
            let counted = local
                .checked_add_months(chrono::Months::new(months * n))
                .and_then(|date| {
                    date.checked_add_days(chrono::Days::new(u64::from(period.days * n)))
                });
            let shown = next.with_timezone(&zone).naive_local();
            let moved = shown - counted.unwrap();
            assert!(
                moved.num_hours() >= 0 && moved.num_hours() <= 24,
                "{repeat}: {moved}"
            );
            due = next;
        }
    }
}

#[test]
fn a_start_and_an_end_bound_the_series() {
    let text = "R/2027-01-01T00:00:00Z/PT6H/2027-01-01T12:00:00Z";
    let repeat = read(text);
    assert_eq!(
        repeat.first(at("2026-06-01T00:00:00Z"), &none()),
        Ok(Some(at("2027-01-01T00:00:00Z")))
    );
    assert_eq!(
        repeat.first(at("2027-01-01T00:00:01Z"), &none()),
        Ok(Some(at("2027-01-01T06:00:00Z")))
    );
    assert!(matches!(
        repeat.first(at("2027-01-01T12:00:01Z"), &none()),
        Err(BadRepeat::Never(_))
    ));
    assert_eq!(
        series(text, "2027-01-01T00:00:00Z", 9),
        ["2027-01-01T06:00:00Z", "2027-01-01T12:00:00Z"]
    );
    let cron = read("R2/2027-01-01T00:00:00.5Z/cron(0 0 * * *)");
    assert_eq!(
        cron.first(at("2026-06-01T00:00:00Z"), &none()),
        Ok(Some(at("2027-01-02T00:00:00Z")))
    );
    let cron = read("R2/2027-01-01T00:00:00Z/cron(0 0 * * *)");
    assert_eq!(
        cron.first(at("2026-06-01T00:00:00Z"), &none()),
        Ok(Some(at("2027-01-01T00:00:00Z")))
    );
    // An interval without a start begins at once.
    assert_eq!(
        read("R/P1M").first(at("2026-06-01T00:00:00Z"), &none()),
        Ok(None)
    );
    for never in ["0 0 30 2 *", "R/PT1H/cron"] {
        let first = Repeat::parse(never).and_then(|repeat| repeat.first(Utc::now(), &none()));
        assert!(first.is_err(), "{never}");
    }
}

#[test]
fn missed_occurrences_follow_their_policy() {
    let (due, now) = (at("2027-01-01T00:00:00Z"), at("2027-01-01T05:20:00Z"));
    for (text, next, skipped) in [
        // The series of a plain interval begins anew, as it always did.
        ("R/PT1H", "2027-01-01T06:20:00Z", false),
        ("R/PT1H[catch-up=all]", "2027-01-01T01:00:00Z", false),
        ("R/PT1H[catch-up=skip]", "2027-01-01T06:00:00Z", true),
        ("R/2026-12-31T00:30:00Z/PT1H", "2027-01-01T05:30:00Z", false),
        ("0 * * * *", "2027-01-01T06:00:00Z", false),
        ("0 * * * *[catch-up=all]", "2027-01-01T01:00:00Z", false),
        ("0 * * * *[catch-up=skip]", "2027-01-01T06:00:00Z", true),
        ("0 0 * * *[catch-up=skip]", "2027-01-02T00:00:00Z", false),
        ("R/P1M[catch-up=skip]", "2027-02-01T00:00:00Z", false),
    ] {
        let repeat = read(text);
        let (_, date) = repeat.next(due, now, &none()).unwrap().unwrap();
        assert_eq!(date, at(next), "{text}");
        assert_eq!(repeat.skips(due, now, &none()), skipped, "{text}");
    }
}
