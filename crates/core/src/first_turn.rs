//! How long the jobs of a type keep their thread when they are first given it.
//!
//! A job that was locked alone is begun by whoever locked it, before that one looks after anything else: it starts sooner than
//! in a task that has to wait for its turn. That is right for handlers that soon wait for something or are soon done, as
//! nearly all do, and wrong for those that compute or block: meanwhile nothing would be locked. Which of the two a handler is shows
//! in what it did before.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A turn that is no longer than this hardly delays the next lock: that alone takes longer. A handler that does nothing but send a
/// few bytes takes 50 to 100 microseconds where jobs come one by one, since nothing of it is in the processor's caches.
const SHORT: Duration = Duration::from_micros(250);
/// So many short turns in a row make the next one likely to be short.
const ENOUGH: u32 = 16;

/// The first turns of the jobs of one type, in one process. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct FirstTurns {
    /// Short ones since the last that was not.
    short: AtomicU32,
}

impl FirstTurns {
    /// A job's first turn took so long.
    pub(crate) fn note(&self, took: Duration) {
        let short = if took <= SHORT {
            let before = self.short.load(Ordering::Relaxed);
            (before + 1).min(ENOUGH)
        } else {
            0
        };
        self.short.store(short, Ordering::Relaxed);
    }

    /// The next one will be short, too, as far as one can tell.
    pub(crate) fn are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_turn_outweighs_many_short_ones() {
        let turns = FirstTurns::default();
        assert!(!turns.are_short(), "nothing is known");
        for _ in 0..100 {
            turns.note(Duration::from_micros(5));
        }
        assert!(turns.are_short());
        turns.note(Duration::from_millis(1));
        for _ in 1..ENOUGH {
            turns.note(SHORT);
            assert!(!turns.are_short());
        }
        turns.note(SHORT);
        assert!(turns.are_short());
    }
}
