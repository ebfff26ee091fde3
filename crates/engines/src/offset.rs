//! The offset of the engine's zone from UTC, which changes twice a year while a commit tap stands.
//!
//! The tap reads the local due dates of the engine, so it needs the offset of now. The statement of
//! the timer task and each cycle of the leader read it again.

use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, Duration, NaiveDateTime, Utc};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Offset {
    millis: AtomicI64,
}

impl Offset {
    /// Records the local time in the engine's zone at a moment.
    pub(crate) fn read(&self, local: NaiveDateTime, at: DateTime<Utc>) {
        self.set(local - at.naive_utc());
    }

    /// Records the offset.
    pub(crate) fn set(&self, offset: Duration) {
        self.millis
            .store(offset.num_milliseconds(), Ordering::Relaxed);
    }

    /// Returns the offset that was recorded last.
    pub(crate) fn get(&self) -> Duration {
        Duration::milliseconds(self.millis.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_follows_the_change_to_summer_time() {
        let offset = Offset::default();
        offset.set(Duration::hours(1));
        assert_eq!(offset.get(), Duration::hours(1));
        let at = DateTime::from_timestamp(1_774_749_600, 0).expect("a time");
        let local = at.naive_utc() + Duration::hours(2);
        offset.read(local, at);
        assert_eq!(offset.get(), Duration::hours(2));
        assert_eq!(local - offset.get(), at.naive_utc());
    }
}
