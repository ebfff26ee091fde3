//! Decides when to ask for the next page. Plain logic: the caller passes the time.
//!
//! A pass goes through all claimed lanes to their ends, page by page without a pause. A pass that
//! found no job is followed by a pause, which grows. Every pass is followed by a rest of a few
//! times its duration in the database, so that the gated rows of a deep table cost a fifth of one
//! connection. The rest is limited even if the database was slow, because jobs that became ready
//! behind the cursor wait.

use std::time::Duration;

use tokio::time::Instant;

/// The bounds of the pause after a pass that found nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The rest between two passes, as a multiple of the time for which the first one kept the database
/// busy, and its maximum.
const PASS_SHARE: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(10);

/// See the [module](self).
pub(super) struct Pace {
    at: Instant,
    /// The earliest time of the next page, also when a job becomes ready.
    earliest: Instant,
    /// The pause after the next pass that finds nothing.
    pause: Duration,
    /// The number of jobs that the current pass found.
    found: usize,
    /// The time that the database took in the current pass.
    took: Duration,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            at: now,
            earliest: now,
            pause: FIRST_PAUSE,
            found: 0,
            took: Duration::ZERO,
        }
    }

    /// Returns the time at which to ask for the next page.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Shortens a long pause, because a job became ready in this process.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.pause = FIRST_PAUSE;
        let soon = (now + FIRST_PAUSE).max(self.earliest);
        self.at = self.at.min(soon);
    }

    /// Delays the next page, because no job may be taken for now.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.at = now + FIRST_PAUSE;
    }

    /// Records a page that gave `jobs` jobs.
    pub(super) fn answered(&mut self, jobs: usize, took: Duration) {
        self.found += jobs;
        self.took += took;
    }

    /// Records a page that could not be asked for. Its duration does not count, because it does not
    /// show the number of rows to look at.
    pub(super) fn failed(&mut self, now: Instant) {
        self.at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Ends a pass: every lane was searched to its end.
    pub(super) fn pass_ended(&mut self, now: Instant) {
        if self.found > 0 {
            self.pause = FIRST_PAUSE;
        }
        self.earliest = now + (self.took * PASS_SHARE).min(LONGEST_REST);
        self.at = (now + self.pause).max(self.earliest);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        (self.found, self.took) = (0, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_while_nothing_is_found() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            pace.pass_ended(now);
            pauses.push((pace.at() - now).as_millis());
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_000, 1_000]);
        pace.answered(1, Duration::ZERO);
        pace.pass_ended(now);
        assert_eq!(pace.at() - now, FIRST_PAUSE);
    }

    #[test]
    fn looking_costs_a_fifth_of_the_time_and_nobody_hurries_it() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.answered(0, SECOND);
        pace.answered(3, SECOND);
        pace.pass_ended(now);
        pace.hurry(now);
        assert_eq!(pace.at() - now, 8 * SECOND);
    }

    #[test]
    fn a_database_that_was_slow_or_silent_is_not_spared_for_minutes() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        for _ in 0..60 {
            pace.failed(now);
        }
        assert!(pace.at() - now <= LONGEST_PAUSE);
        pace.pass_ended(now);
        assert!(
            pace.at() - now <= LONGEST_PAUSE,
            "what failed costs no rest"
        );
        pace.answered(0, 600 * SECOND);
        pace.pass_ended(now);
        assert_eq!(pace.at() - now, LONGEST_REST);
    }
}
