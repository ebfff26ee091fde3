//! When the next page is asked for. Plain logic: the caller brings the time.
//!
//! A pass goes through all claimed lanes to their ends, page by page without a pause. Behind one that found
//! nothing comes a pause, which grows; behind any comes a rest of a few times as long as looking took, so that the
//! gated rows of a deep table cost a fifth of one connection. The rest has an end, however slow the database was:
//! what became ready behind the cursor is waiting.

use std::time::Duration;

use tokio::time::Instant;

/// After a pass that found nothing, and the longest of the pauses that follow.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Between two passes so many times as long as the first one kept the database busy, and no longer than this.
const PASS_SHARE: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(10);

/// See the [module](self).
pub(super) struct Pace {
    at: Instant,
    /// Not before this, whatever becomes ready.
    earliest: Instant,
    /// Behind the next pass that finds nothing.
    pause: Duration,
    /// The pass under way: what it found, and how long the database took.
    found: usize,
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

    /// The next page is asked for then.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Something became ready here: don't wait out a long pause.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.pause = FIRST_PAUSE;
        let soon = (now + FIRST_PAUSE).max(self.earliest);
        self.at = self.at.min(soon);
    }

    /// Nothing may be taken for the moment.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.at = now + FIRST_PAUSE;
    }

    /// A page gave so many jobs.
    pub(super) fn answered(&mut self, jobs: usize, took: Duration) {
        self.found += jobs;
        self.took += took;
    }

    /// A page could not be asked for. How long that took says nothing of how much there is to look at.
    pub(super) fn failed(&mut self, now: Instant) {
        self.at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Every lane was looked through to its end.
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
