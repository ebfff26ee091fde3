//! The database's clock: virtual, and another one than the nodes'.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

/// 2100: later than any moment of this machine's clock, so that nothing which looked at that one by mistake
/// would go unnoticed.
const EPOCH: i64 = 4_102_444_800_000_000;

/// What `clock_timestamp()` says.
#[derive(Debug)]
pub(super) struct DatabaseClock {
    virtually: Option<Instant>,
    jumped: chrono::Duration,
    last: DateTime<Utc>,
}

impl DatabaseClock {
    /// This machine's time, for a store that is used without a simulation.
    pub(super) fn real() -> DatabaseClock {
        DatabaseClock {
            virtually: None,
            jumped: chrono::Duration::zero(),
            last: DateTime::UNIX_EPOCH,
        }
    }

    /// Tokio's time, which a paused runtime moves on.
    pub(super) fn simulated() -> DatabaseClock {
        DatabaseClock {
            virtually: Some(Instant::now()),
            ..DatabaseClock::real()
        }
    }

    /// No two moments are the same.
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

    /// What it showed last.
    pub(super) fn shown(&self) -> DateTime<Utc> {
        self.last
    }

    /// Somebody sets the clock ahead.
    pub(super) fn jump(&mut self, ahead: Duration) {
        self.jumped += super::database::span(ahead);
    }
}
