//! How long the jobs of a type keep their thread when they are first given it.
//!
//! A job that was locked alone is begun by whoever locked it, before that one looks after anything else: it starts
//! sooner than in a task that has to wait for its turn. That is right for handlers that soon wait for something or are
//! soon done, as nearly all do, and wrong for those that compute or block: meanwhile nothing would be locked. Which of
//! the two a handler is shows in what it did before.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A turn that is no longer than this hardly delays the next lock: that alone takes longer. Where jobs come one by one
/// nothing is in the processor's caches: with a limit of 50 µs a handler that only sends a few bytes was never short
/// (docs/internals/measurements.md, 0022).
const SHORT: Duration = Duration::from_micros(250);
/// So many short turns in a row make the next one likely to be short.
const ENOUGH: u32 = 16;
/// One that is longer than this comes of what the handler does, not of a machine that was busy elsewhere: from then on
/// it takes twice as many short ones.
const LONG: Duration = Duration::from_millis(10);
const MOST: u32 = 4_096;

/// The first turns of the jobs of one type, in one process. See the [module](self).
#[derive(Debug)]
pub(crate) struct InlineStarts {
    /// Short ones since the last that was not; no more are counted than are needed.
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
    /// A job's first turn took so long.
    pub(crate) fn note(&self, took: Duration) {
        if took > SHORT {
            self.note_long(took);
        } else if !self.are_short() {
            self.short.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whoever gave a job its first turn had the thread back after so long. With everything around the handler that may
    /// be twice as long as a short turn.
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

    /// The next one will be short, too, as far as one can tell.
    pub(crate) fn are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(turns: &InlineStarts, many: u32) {
        for _ in 0..many {
            turns.note(SHORT);
        }
    }

    #[test]
    fn one_turn_that_is_not_short_outweighs_many_that_are() {
        let turns = InlineStarts::default();
        assert!(!turns.are_short(), "nothing is known");
        for longer in [1, 2] {
            short(&turns, ENOUGH - 1);
            assert!(!turns.are_short());
            short(&turns, 1);
            assert!(turns.are_short());
            short(&turns, 1_000);
            turns.note(SHORT + Duration::from_micros(longer));
        }
        short(&turns, ENOUGH);
        turns.note_whole(SHORT * 2);
        assert!(turns.are_short());
        turns.note_whole(SHORT * 3);
        assert!(!turns.are_short());
    }

    #[test]
    fn a_handler_that_sometimes_keeps_its_thread_is_trusted_less_each_time() {
        let turns = InlineStarts::default();
        for needed in [32, 64, 128] {
            turns.note(LONG * 2);
            short(&turns, needed - 1);
            assert!(!turns.are_short());
            short(&turns, 1);
            assert!(turns.are_short());
        }
        for _ in 0..100 {
            turns.note(LONG * 2);
        }
        short(&turns, MOST);
        assert!(turns.are_short());
    }
}
