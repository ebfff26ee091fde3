//! The database's clock: virtual, and different from the nodes' clock.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

/// The year 2100, later than any time of this machine's clock, so that code which reads the wrong
/// clock fails.
const EPOCH: i64 = 4_102_444_800_000_000;

/// The clock behind `clock_timestamp()`.
#[derive(Debug)]
pub(super) struct DatabaseClock {
    virtually: Option<Instant>,
    jumped: chrono::Duration,
    last: DateTime<Utc>,
}

impl DatabaseClock {
    /// Returns this machine's clock, for a store that is used without a simulation.
    pub(super) fn real() -> DatabaseClock {
        DatabaseClock {
            virtually: None,
            jumped: chrono::Duration::zero(),
            last: DateTime::UNIX_EPOCH,
        }
    }

    /// Returns a clock that follows tokio's time, which a paused runtime advances.
    pub(super) fn simulated() -> DatabaseClock {
        DatabaseClock {
            virtually: Some(Instant::now()),
            ..DatabaseClock::real()
        }
    }

    /// Returns a clock that follows tokio's time and shows `from` now.
    pub(super) fn simulated_from(from: DateTime<Utc>) -> DatabaseClock {
        let epoch = DateTime::from_timestamp_micros(EPOCH).unwrap_or_default();
        DatabaseClock {
            jumped: from - epoch,
            ..DatabaseClock::simulated()
        }
    }

    /// Returns the time, later than all previous results.
    pub(super) fn now(&mut self) -> DateTime<Utc> {
        let now = match self.virtually {
            Some(start) => {
                let elapsed = i64::try_from(start.elapsed().as_micros()).unwrap_or(i64::MAX / 2);
                DateTime::from_timestamp_micros(EPOCH + elapsed).unwrap_or_default() + self.jumped
            }
            None => Utc::now(),
        };
        self.last = now.max(self.last + chrono::Duration::microseconds(1));
        self.last
    }

    /// Returns the last result.
    pub(super) fn shown(&self) -> DateTime<Utc> {
        self.last
    }

    /// Sets the clock ahead.
    pub(super) fn jump(&mut self, ahead: Duration) {
        self.jumped += super::database::span(ahead);
    }
}
