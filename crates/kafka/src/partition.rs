//! What was delivered of one partition and is not settled yet: the low watermark.
//!
//! Kafka remembers one number per partition and group: everything below it is done with. Hints are
//! settled in any order, so only the unbroken run of settled ones from the start may be committed.
//!
//! ```text
//!   offset     7        8        9        10       11
//!           settled  settled  held     settled  given back
//!                             ▲ commit 9: the next owner begins here and sees 9, 10 and 11
//! ```
//! What was given back is fetched again from the lowest such offset; what is held or settled above it
//! is then recognised and skipped.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    Settled,
    GivenBack,
}

/// What a message that arrives is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    New,
    /// It was given back before.
    Again,
    /// It is held, or settled already.
    Known,
}

/// The unsettled part of one partition, for as long as it is assigned to us.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// By offset. Offsets may have gaps.
    entries: VecDeque<(i64, State)>,
    /// Everything below was settled, or was never ours.
    low: Option<i64>,
    held: usize,
}

impl Tracker {
    /// Messages that are delivered and undecided.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    fn find(&self, offset: i64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&offset, |(at, _)| *at)
    }

    /// A message arrived.
    pub(crate) fn arrive(&mut self, offset: i64) -> Arrival {
        if self.low.is_some_and(|low| offset < low) {
            // The log was wiped, or made again: its offsets begin anew, and what we know is void.
            *self = Self::default();
        }
        match self.find(offset) {
            Ok(at) => match self.entries[at].1 {
                State::GivenBack => {
                    self.entries[at].1 = State::Held;
                    self.held += 1;
                    Arrival::Again
                }
                State::Held | State::Settled => Arrival::Known,
            },
            Err(at) => {
                self.entries.insert(at, (offset, State::Held));
                self.held += 1;
                Arrival::New
            }
        }
    }

    /// A message was decided. Returns the offset to commit, if that changed.
    pub(crate) fn settle(&mut self, offset: i64) -> Option<i64> {
        let at = self.find(offset).ok()?;
        if self.entries[at].1 == State::Held {
            self.held -= 1;
        }
        self.entries[at].1 = State::Settled;
        let mut moved = None;
        while let Some((offset, State::Settled)) = self.entries.front().copied() {
            self.entries.pop_front();
            moved = Some(offset + 1);
        }
        self.low = moved.or(self.low);
        moved
    }

    /// A message goes back. False where it was not held.
    pub(crate) fn give_back(&mut self, offset: i64) -> bool {
        match self.find(offset) {
            Ok(at) if self.entries[at].1 == State::Held => {
                self.entries[at].1 = State::GivenBack;
                self.held -= 1;
                true
            }
            _ => false,
        }
    }

    /// Where to fetch again from.
    pub(crate) fn rewind_to(&self) -> Option<i64> {
        self.entries
            .iter()
            .find(|(_, state)| *state == State::GivenBack)
            .map(|(offset, _)| *offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker(offsets: &[i64]) -> Tracker {
        let mut tracker = Tracker::default();
        for offset in offsets {
            assert_eq!(tracker.arrive(*offset), Arrival::New);
        }
        tracker
    }

    #[test]
    fn only_an_unbroken_run_is_committed() {
        let mut tracker = tracker(&[7, 8, 9, 12]);
        assert_eq!(tracker.settle(8), None);
        assert_eq!(tracker.settle(7), Some(9));
        assert_eq!(tracker.settle(12), None);
        assert_eq!(tracker.held(), 1);
        assert_eq!(tracker.settle(9), Some(13));
        assert_eq!(tracker.settle(9), None);
        assert_eq!(tracker.held(), 0);
    }

    #[test]
    fn what_was_given_back_comes_again_and_the_rest_does_not() {
        let mut tracker = tracker(&[0, 1, 2, 3]);
        tracker.settle(2);
        assert!(tracker.give_back(1));
        assert!(!tracker.give_back(1) && !tracker.give_back(2) && !tracker.give_back(9));
        assert_eq!((tracker.held(), tracker.rewind_to()), (2, Some(1)));
        assert_eq!(tracker.settle(0), Some(1));
        let again: Vec<Arrival> = (1..=4).map(|offset| tracker.arrive(offset)).collect();
        assert_eq!(
            again,
            [Arrival::Again, Arrival::Known, Arrival::Known, Arrival::New]
        );
        assert_eq!(tracker.rewind_to(), None);
        assert_eq!(tracker.settle(1), Some(3));
    }

    #[test]
    fn a_log_that_begins_anew_is_believed() {
        let mut tracker = tracker(&[100, 101]);
        assert_eq!(tracker.settle(100), Some(101));
        assert_eq!(tracker.arrive(0), Arrival::New);
        assert_eq!(tracker.settle(101), None);
        assert_eq!(tracker.settle(0), Some(1));
    }
}
