//! Inline starts: measures the time for which the jobs of a type keep the thread in their first
//! poll.
//!
//! The task that locked a single job also starts it, before it does other work. The job starts
//! sooner than in a task that waits to be scheduled. This suits nearly all handlers, because they
//! soon wait or end. It does not suit handlers that compute or block, because no job would be
//! locked meanwhile. The first polls of earlier jobs of the type show the kind of a handler.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The longest first poll that counts as short. It hardly delays the next lock, which takes longer.
/// If jobs arrive one by one, the processor's caches are cold: with a limit of 50 µs, a handler
/// that only sends a few bytes never counted as short (docs/internals/measurements.md, 0022).
const SHORT: Duration = Duration::from_micros(250);
/// The number of short first polls in a row after which the next one is expected to be short.
const ENOUGH: u32 = 16;
/// The length of a first poll that only the handler can cause, and not a machine that is busy with
/// other work. Each longer poll doubles the required number of short polls.
const LONG: Duration = Duration::from_millis(10);
const MOST: u32 = 4_096;

/// The first polls of the jobs of one type, in one process. See the [module](self).
#[derive(Debug)]
pub(crate) struct InlineStarts {
    /// Short polls since the last long one, counted up to `needed`.
    short: AtomicU32,
    needed: AtomicU32,
}

impl Default for InlineStarts {
    fn default() -> Self {
        Self {
            short: AtomicU32::new(0),
            needed: AtomicU32::new(ENOUGH),
        }
    }
}

impl InlineStarts {
    /// Records the duration of a job's first poll.
    pub(crate) fn note(&self, took: Duration) {
        if took > SHORT {
            self.note_long(took);
        } else if !self.are_short() {
            self.short.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records the time from the start of a job until the caller has the thread again. It includes
    /// the work around the handler, and may be twice as long as a short poll.
    pub(crate) fn note_whole(&self, took: Duration) {
        if took > SHORT * 2 {
            self.note_long(took);
        }
    }

    fn note_long(&self, took: Duration) {
        if took > LONG {
            let needed = self.needed.load(Ordering::Relaxed);
            self.needed.store((needed * 2).min(MOST), Ordering::Relaxed);
        }
        self.short.store(0, Ordering::Relaxed);
    }

    /// Returns whether the next first poll is expected to be short.
    pub(crate) fn are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(starts: &InlineStarts, many: u32) {
        for _ in 0..many {
            starts.note(SHORT);
        }
    }

    #[test]
    fn one_start_that_is_not_short_outweighs_many_that_are() {
        let starts = InlineStarts::default();
        assert!(!starts.are_short(), "nothing is known");
        for longer in [1, 2] {
            short(&starts, ENOUGH - 1);
            assert!(!starts.are_short());
            short(&starts, 1);
            assert!(starts.are_short());
            short(&starts, 1_000);
            starts.note(SHORT + Duration::from_micros(longer));
        }
        short(&starts, ENOUGH);
        starts.note_whole(SHORT * 2);
        assert!(starts.are_short());
        starts.note_whole(SHORT * 3);
        assert!(!starts.are_short());
    }

    #[test]
    fn a_handler_that_sometimes_keeps_its_thread_is_trusted_less_each_time() {
        let starts = InlineStarts::default();
        for needed in [32, 64, 128] {
            starts.note(LONG * 2);
            short(&starts, needed - 1);
            assert!(!starts.are_short());
            short(&starts, 1);
            assert!(starts.are_short());
        }
        for _ in 0..100 {
            starts.note(LONG * 2);
        }
        short(&starts, MOST);
        assert!(starts.are_short());
    }
}
