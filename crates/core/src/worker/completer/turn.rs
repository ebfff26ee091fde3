//! The moment at which the next commit may begin.

use std::time::Duration;

use tokio::time::Instant;

/// The maximum number of batches that are under way at once.
const COMMITS_AT_ONCE: usize = 2;
/// The minimum time between the beginnings of two commits, if the second one is not urgent. At a
/// thousand short jobs a second this makes one commit of sixteen.
const GATHER: Duration = Duration::from_millis(16);

/// The outcomes that have gathered, and the commits under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathered {
    /// Whether another job waits for one of the outcomes.
    pub(super) is_awaited: bool,
    /// Whether no further outcome fits into the batch.
    pub(super) is_full: bool,
    /// The number of commits that are under way.
    pub(super) under_way: usize,
}

/// The turns of the commits.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The beginning of the last commit.
    last: Option<Instant>,
}

impl Turns {
    /// Returns the moment from which these outcomes may be committed; `None` if another commit has
    /// to end first. `gathers_for` is the wish of the store
    /// ([`Store::gathers_for`](crate::Store::gathers_for)).
    pub(super) fn next(&self, gathered: Gathered, gathers_for: Duration) -> Option<Instant> {
        let is_urgent = gathered.is_awaited || gathered.is_full;
        let at_once = if is_urgent { COMMITS_AT_ONCE } else { 1 };
        if gathered.under_way >= at_once {
            return None;
        }
        let pause = match gathered {
            Gathered { is_full: true, .. } => Duration::ZERO,
            Gathered {
                is_awaited: true, ..
            } => gathers_for,
            _ => gathers_for.max(GATHER),
        };
        Some(self.last.map_or_else(Instant::now, |last| last + pause))
    }

    /// Records the beginning of a commit.
    pub(super) fn begin(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(20);
    const FEW: Gathered = Gathered {
        is_awaited: false,
        is_full: false,
        under_way: 0,
    };
    const AWAITED: Gathered = Gathered {
        is_awaited: true,
        ..FEW
    };
    const FULL: Gathered = Gathered {
        is_full: true,
        ..FEW
    };

    /// Returns the turns after a commit that began now.
    fn begun() -> (Turns, Instant) {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.begin(now);
        (turns, now)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_outcome_is_committed_at_once() {
        for gathered in [FEW, AWAITED, FULL] {
            assert_eq!(Turns::default().next(gathered, LONG), Some(Instant::now()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_awaited_outcome_waits_only_while_the_store_gathers() {
        let (turns, began) = begun();
        assert_eq!(turns.next(AWAITED, Duration::ZERO), Some(began));
        assert_eq!(turns.next(AWAITED, LONG), Some(began + LONG));
        assert_eq!(turns.next(FEW, Duration::ZERO), Some(began + GATHER));
        assert_eq!(turns.next(FEW, LONG), Some(began + LONG));
        assert_eq!(turns.next(FULL, LONG), Some(began), "nothing more fits");
    }

    #[tokio::test(start_paused = true)]
    async fn two_commits_are_under_way_at_most_and_the_second_one_is_urgent() {
        let (turns, began) = begun();
        let beside = |gathered, under_way| {
            let gathered = Gathered {
                under_way,
                ..gathered
            };
            turns.next(gathered, Duration::ZERO)
        };
        assert_eq!(beside(FEW, 1), None);
        for urgent in [AWAITED, FULL] {
            assert_eq!(beside(urgent, 1), Some(began));
            assert_eq!(beside(urgent, COMMITS_AT_ONCE), None);
        }
    }
}
