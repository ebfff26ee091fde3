//! What was delivered of one partition and is not settled yet: the low watermark.
//!
//! Kafka remembers one number per partition and group: everything below it is done with. Hints are
//! settled in any order, so only the unbroken run of settled ones from the start may be committed.
//!
//! ```text
//!   offset     7        8        9        10       11       12
//!           settled  settled  held     settled  given back  next
//!                             ▲ commit 9: the next owner begins here and sees 9, 10 and 11
//! ```
//! What was given back is fetched again from the lowest such offset; what is held or settled above it
//! is then recognised and skipped. Only what is undecided is remembered, so one message that stays held
//! for long costs no memory for those that are settled above it.

use std::collections::BTreeMap;

/// Fetching again from an offset that never came is tried so often; then its message is gone.
const TRIES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
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
    undecided: BTreeMap<i64, State>,
    /// Behind the highest message that arrived.
    next: Option<i64>,
    held: usize,
    /// Something was given back and is to be fetched again.
    rewind: bool,
    /// Where it was last fetched again from, until all of that has come.
    rewound_to: Option<i64>,
    /// How often in vain.
    tries: u8,
}

impl Tracker {
    /// Messages that are delivered and undecided.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Everything below was settled, or was never ours.
    fn low(&self) -> Option<i64> {
        self.undecided.keys().next().copied().or(self.next)
    }

    /// A message arrived.
    pub(crate) fn arrive(&mut self, offset: i64) -> Arrival {
        let known_from = match (self.low(), self.rewound_to) {
            (Some(low), Some(rewound)) => Some(low.min(rewound)),
            (low, _) => low,
        };
        if known_from.is_some_and(|from| offset < from) {
            // The log was wiped, or made again: its offsets begin anew, and what we know is void.
            *self = Self::default();
        }
        if self.next.is_none_or(|next| offset >= next) {
            self.next = Some(offset + 1);
            self.rewound_to = None;
            self.undecided.insert(offset, State::Held);
            self.held += 1;
            return Arrival::New;
        }
        match self.undecided.get_mut(&offset) {
            Some(state @ State::GivenBack) => {
                *state = State::Held;
                self.held += 1;
                self.tries = 0;
                Arrival::Again
            }
            Some(State::Held) | None => Arrival::Known,
        }
    }

    /// To be asked after each arrival. A message came, and what was given back below it did not, although
    /// it was fetched again: that is tried once more, and then it is gone, with the log's start or an
    /// aborted transaction. Returns the offset to commit, if that changed.
    pub(crate) fn notice_gone(&mut self, arrived: i64) -> Option<i64> {
        if self.rewind || self.rewind_to().is_none_or(|first| first > arrived) {
            return None;
        }
        if self.tries < TRIES {
            self.tries += 1;
            self.rewind = true;
            return None;
        }
        self.tries = 0;
        let before = self.low();
        self.undecided
            .retain(|at, state| *at > arrived || *state == State::Held);
        self.low().filter(|_| self.low() != before)
    }

    /// A message was decided. Returns the offset to commit, if that changed.
    pub(crate) fn settle(&mut self, offset: i64) -> Option<i64> {
        let before = self.low();
        if self.undecided.remove(&offset)? == State::Held {
            self.held -= 1;
        }
        self.low().filter(|_| self.low() != before)
    }

    /// A message goes back. False where it was not held.
    pub(crate) fn requeue(&mut self, offset: i64) -> bool {
        match self.undecided.get_mut(&offset) {
            Some(state @ State::Held) => {
                *state = State::GivenBack;
                self.held -= 1;
                self.rewind = true;
                true
            }
            _ => false,
        }
    }

    /// Where to fetch again from, if that has to be done.
    pub(crate) fn wants_rewind(&self) -> Option<i64> {
        self.rewind_to().filter(|_| self.rewind)
    }

    /// It is being done.
    pub(crate) fn rewound(&mut self) {
        self.rewind = false;
        self.rewound_to = self.rewind_to();
    }

    fn rewind_to(&self) -> Option<i64> {
        self.undecided
            .iter()
            .find(|(_, state)| **state == State::GivenBack)
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
        assert!(tracker.requeue(1));
        assert!(!tracker.requeue(1) && !tracker.requeue(2) && !tracker.requeue(9));
        assert_eq!((tracker.held(), tracker.wants_rewind()), (2, Some(1)));
        tracker.rewound();
        assert_eq!(tracker.settle(0), Some(1));
        let again: Vec<Arrival> = (1..=4).map(|offset| tracker.arrive(offset)).collect();
        assert_eq!(
            again,
            [Arrival::Again, Arrival::Known, Arrival::Known, Arrival::New]
        );
        assert_eq!(tracker.wants_rewind(), None);
        assert_eq!(tracker.settle(1), Some(3));
    }

    #[test]
    fn a_message_that_stays_held_costs_no_memory_for_what_is_settled_above_it() {
        let mut tracker = tracker(&[0]);
        for offset in 1..100_000 {
            assert_eq!(tracker.arrive(offset), Arrival::New);
            assert_eq!(tracker.settle(offset), None);
        }
        assert_eq!(tracker.undecided.len(), 1);
        assert_eq!(tracker.arrive(50_000), Arrival::Known);
        assert_eq!(tracker.settle(0), Some(100_000));
    }

    #[test]
    fn a_rewind_that_was_lost_is_done_again() {
        let mut tracker = tracker(&[0, 1, 2]);
        tracker.requeue(1);
        tracker.rewound();
        assert_eq!(tracker.arrive(3), Arrival::New);
        assert_eq!(
            (tracker.notice_gone(3), tracker.wants_rewind()),
            (None, Some(1))
        );
        tracker.rewound();
        assert_eq!(tracker.arrive(1), Arrival::Again);
        assert_eq!(
            (tracker.notice_gone(1), tracker.wants_rewind()),
            (None, None)
        );
        assert_eq!(tracker.settle(0), Some(1));
    }

    #[test]
    fn what_was_given_back_and_is_gone_does_not_hold_the_watermark_for_ever() {
        let mut tracker = tracker(&[0, 1, 2, 3]);
        for offset in 0..3 {
            tracker.requeue(offset);
        }
        for _ in 0..TRIES {
            tracker.rewound();
            assert_eq!(tracker.arrive(3), Arrival::Known);
            assert_eq!(tracker.notice_gone(3), None);
            assert_eq!(tracker.wants_rewind(), Some(0));
        }
        tracker.rewound();
        assert_eq!(tracker.arrive(3), Arrival::Known);
        assert_eq!(tracker.notice_gone(3), Some(3));
        assert_eq!((tracker.held(), tracker.settle(3)), (1, Some(4)));
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
