//! Permits of a rate that cool down in the database, after their node has handed them over.
//!
//! Each row has a name in place of a node, which follows from the time when it expires. Permits that
//! are cold at almost the same time share a row, so a key has a bounded number of rows. The last one
//! decides when the row expires.

use std::time::Duration;

use uuid::Uuid;

use crate::job::NodeId;

/// The number of rows into which the cool-down of a key is divided.
const ROWS: u32 = 64;

/// Permits that cool down and that their node keeps no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cooling {
    /// The number of permits.
    pub number: i32,
    /// The time until the last of them is cold.
    pub rest: Duration,
}

/// Returns the width of a row, in microseconds.
pub(in crate::store) fn width(cool_down: Duration) -> i64 {
    micros(cool_down / ROWS).max(1)
}

/// Returns a duration in microseconds, never shorter than it is.
pub(in crate::store) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// Returns the name of the row of permits that are cold at this time of the database.
#[cfg_attr(
    not(feature = "sqlite"),
    allow(dead_code, reason = "PostgreSQL computes it")
)]
pub(in crate::store) fn row(expires_at: i64, cool_down: Duration) -> NodeId {
    let row = expires_at.max(0) / width(cool_down);
    NodeId(Uuid::from_u128(u128::from(row.unsigned_abs())))
}

/// Divides `taken` permits among those that a request hands over. Those that are cold last come first,
/// if the database knows of fewer.
pub(in crate::store) fn taken_over(handed: &[Cooling], mut taken: i64) -> Vec<Cooling> {
    let mut handed = handed.to_vec();
    handed.sort_unstable_by_key(|of| std::cmp::Reverse(of.rest));
    let mut got = Vec::with_capacity(handed.len());
    for of in handed {
        let number = i64::from(of.number).min(taken);
        taken -= number;
        match i32::try_from(number) {
            Ok(number @ 1..) => got.push(Cooling { number, ..of }),
            _ => break,
        }
    }
    got
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_cold_last_are_taken_over_first() {
        let of = |number, secs| Cooling {
            number,
            rest: Duration::from_secs(secs),
        };
        let handed = [of(2, 1), of(3, 9), of(1, 5)];
        assert_eq!(taken_over(&handed, 4), [of(3, 9), of(1, 5)]);
        assert_eq!(taken_over(&handed, 2), [of(2, 9)]);
        assert_eq!(taken_over(&handed, 0), []);
        assert_eq!(taken_over(&handed, 100).len(), 3);
    }

    #[test]
    fn permits_that_are_cold_at_almost_the_same_time_share_a_row() {
        let day = Duration::from_secs(86_400);
        let now = 1_800_000_000_000_000;
        assert_eq!(row(now, day), row(now + 1, day));
        let later = now + 2 * width(day);
        assert_ne!(row(now, day), row(later, day));
    }
}
