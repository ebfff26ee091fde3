//! Local dates in a time zone.
//!
//! A local date that a time zone skips (a clock goes forward) is moved by the length of the gap:
//! 02:30 becomes 03:30. Of a local date that occurs twice (a clock goes back) the first one counts.

use chrono::{DateTime, Duration, LocalResult, NaiveDateTime, TimeZone, Utc};
use chrono_tz::Tz;

/// The longest time that a time zone skips: a day, when a country changes sides of the date line.
const LONGEST_GAP: i64 = 24;

/// Returns the moment of a local date. `None` at the end of the calendar.
pub(super) fn moment(local: NaiveDateTime, zone: Tz) -> Option<DateTime<Utc>> {
    match zone.from_local_datetime(&local) {
        LocalResult::Single(at) | LocalResult::Ambiguous(at, _) => Some(at.with_timezone(&Utc)),
        LocalResult::None => {
            // The offset before the gap, applied to the local date.
            let before = (1..=LONGEST_GAP + 2).find_map(|hours| {
                let earlier = local.checked_sub_signed(Duration::hours(hours))?;
                let found = zone.from_local_datetime(&earlier).latest()?;
                found.checked_add_signed(Duration::hours(hours))
            });
            before.map(|at| at.with_timezone(&Utc))
        }
    }
}

/// Returns the last moment of a local date: of one that occurs twice, the second.
pub(super) fn last_moment(local: NaiveDateTime, zone: Tz) -> Option<DateTime<Utc>> {
    match zone.from_local_datetime(&local) {
        LocalResult::Ambiguous(_, at) => Some(at.with_timezone(&Utc)),
        _ => moment(local, zone),
    }
}
