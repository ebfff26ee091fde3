use chrono::Duration;

use super::*;
use crate::finding::Level;

/// Returns an id as the engine makes it at this moment: a UUID of version 1.
fn made_at(moment: DateTime<Utc>, number: i64) -> String {
    // Steps of 100 ns since 1582-10-15.
    let ticks = moment.timestamp_micros() * 10 + 122_192_928_000_000_000 + number;
    let (low, middle, high) = (ticks & 0xffff_ffff, (ticks >> 32) & 0xffff, ticks >> 48);
    format!("{low:08x}-{middle:04x}-1{high:03x}-b3c8-9e6bdeced846")
}

/// Notes rows that the engine wrote this number of minutes ago, one after the other, by a clock that is
/// ahead of the configured zone by these minutes.
fn note(zone: &Zone, ago: i64, rows: i64, ahead: i64) {
    let now = Utc::now();
    for row in 0..rows {
        let at = now - Duration::minutes(ago) + Duration::milliseconds(row);
        zone.note(&made_at(at, row), at + Duration::minutes(ahead), now);
    }
}

fn utc() -> Zone {
    Zone::new("UTC")
}

#[test]
fn an_id_of_the_strong_uuid_generator_has_its_moment_and_others_have_none() {
    // The example of RFC 9562 for version 1.
    let id = "c232ab00-9414-11ec-b3c8-9e6bdeced846";
    let expected = "2022-02-22T19:22:22Z".parse().ok();
    assert_eq!(moment(id), expected);
    assert_eq!(moment(&format!("JOB-{id}")), expected);
    let now = Utc::now();
    let made = moment(&made_at(now, 0)).expect("a moment");
    assert!((now - made).num_milliseconds() == 0, "{made}");
    for without in [
        "1207",
        "JOB-1207",
        "",
        "919108f7-52d1-4320-9bac-f847db4148a8",
        "é",
    ] {
        assert_eq!(moment(without), None, "{without}");
    }
}

#[test]
fn a_row_shows_the_difference_whatever_its_age() {
    let now = Utc::now();
    for age in [0, 3, 59, 900, 86_400, 86_400 * 365] {
        let made = now - Duration::seconds(age);
        let said = |seconds| difference(made, made + Duration::seconds(seconds), now);
        assert_eq!(said(0), Some(0));
        assert_eq!(said(2), Some(0));
        assert_eq!(said(-5 * 3_600), Some(-20), "New York");
        assert_eq!(said(-5 * 3_600 - 1_800 + 3), Some(-22), "UTC for Kolkata");
        assert_eq!(said(-900), Some(-1));
        // The times do not belong together.
        for apart in [-31, -450, -1_000, -27 * 3_600, -3_650 * 86_400] {
            assert_eq!(said(apart), None, "{apart} s");
        }
    }
}

#[test]
fn a_job_that_was_moved_says_nothing_and_one_in_the_future_is_sure() {
    let now = Utc::now();
    let made = now - Duration::hours(3);
    // The engine moved it an hour after its creation, to the second.
    assert_eq!(difference(made, made + Duration::hours(1), now), None);
    assert_eq!(difference(now, now + Duration::hours(1), now), Some(4));
    // An id from the future has no moment of this engine.
    let later = now + Duration::hours(5);
    assert_eq!(difference(later, now, now), None);
}

#[test]
fn the_newest_rows_decide_by_majority() {
    let zone = utc();
    assert!(!zone.is_known() && zone.problem().is_none());
    // Rows from the time when the JVM had another zone.
    note(&zone, 50, 50, -300);
    assert_eq!(zone.judged(), LAST);
    note(&zone, 40, 4, 0);
    assert_eq!(zone.judged(), LAST, "four of nine");
    note(&zone, 30, 1, 0);
    assert_eq!(zone.judged(), "UTC");
    // A few odd rows change nothing.
    note(&zone, 20, 9, 0);
    note(&zone, 10, 4, -300);
    assert_eq!(zone.judged(), "UTC");
    assert!(zone.problem().is_none());
}

#[test]
fn a_row_that_is_read_again_keeps_its_vote() {
    let zone = utc();
    let now = Utc::now();
    let id = made_at(now, 0);
    for _ in 0..20 {
        zone.note(&id, now - Duration::hours(1), now);
    }
    assert_eq!(zone.votes().0.len(), 1);
}

#[test]
fn an_engine_that_is_behind_is_judged_in_every_zone_and_one_ahead_is_reported() {
    let behind = utc();
    note(&behind, 9, 3, -330);
    assert_eq!((behind.judged(), behind.name()), (LAST, "UTC"));
    let said = behind.problem().expect("a problem");
    assert!(
        said.contains("5 h 30 min behind the zone `UTC`") && said.contains("`engine_zone`"),
        "{said}"
    );
    let ahead = utc();
    note(&ahead, 9, 3, 120);
    assert_eq!(ahead.judged(), "UTC", "nothing would be early");
    let said = ahead.problem().expect("a problem");
    assert!(said.contains("2 h 0 min ahead of the zone"), "{said}");
    for wrong in [behind, ahead] {
        assert_eq!(wrong.finding().map(|found| found.level), Some(Level::Wrong));
    }
    let right = utc();
    assert!(right.finding().is_none());
    note(&right, 9, 1, 0);
    assert_eq!(right.finding().map(|found| found.level), Some(Level::Fine));
}

#[test]
fn the_rows_are_read_once_a_minute() {
    let zone = utc();
    assert!(zone.begins_read());
    assert!(!zone.begins_read());
}

#[test]
fn rows_are_read_until_one_has_voted_and_at_most_once_a_second_while_none_can() {
    let zone = utc();
    assert!(zone.must_learn());
    // An empty table.
    zone.has_read(0);
    assert!(zone.must_learn());
    // The ids have no time.
    zone.has_read(3);
    assert!(!zone.must_learn());
    *zone.silence() = Some(Instant::now());
    assert!(zone.must_learn());
    note(&zone, 0, 1, -300);
    assert!(!zone.must_learn());
    assert_eq!(zone.judged(), LAST);
}
