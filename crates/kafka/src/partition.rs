//! The delivered and unsettled messages of one partition, and its low watermark.
//!
//! Kafka stores one offset per partition and group; all messages below it are done. Hints are
//! settled in any order, so the committed offset is the end of the unbroken run of settled
//! messages.
//!
//! ```text
//!   offset     7        8        9        10       11       12
//!           settled  settled  held     settled  requeued    next
//!                             ▲ commit 9: the next owner starts here and receives 9, 10 and 11
//! ```
//! Requeued messages are fetched again from the lowest of their offsets; messages above it that are
//! held or settled are then skipped. Only undecided messages are stored, so a message that is held
//! for long costs no memory for the messages that are settled above it.

use std::collections::BTreeMap;

/// Maximum number of repeated fetches of a requeued message that does not arrive. After them the
/// message counts as gone.
const TRIES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    GivenBack,
}

/// The class of a message that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    New,
    /// It was requeued.
    Again,
    /// It is held or settled.
    Known,
}

/// The offset of the first message that should arrive next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// This one, which was requeued.
    Again(i64),
    /// The one after the highest that arrived, if any has.
    After(Option<i64>),
}

/// The unsettled messages of one partition, while it is assigned to this node.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// The messages by offset. Offsets may have gaps.
    undecided: BTreeMap<i64, State>,
    /// The offset after the highest message that arrived.
    next: Option<i64>,
    held: usize,
    /// A message was requeued and must be fetched again.
    rewind: bool,
    /// The offset of the last repeated fetch, until a new message arrives.
    rewound_to: Option<i64>,
    /// Number of repeated fetches without success.
    tries: u8,
    /// The client's position at the last [`Tracker::pass_to`] since an arrival.
    seen_position: Option<i64>,
}

impl Tracker {
    /// Returns the number of delivered and undecided messages.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns the offset of the first message that should arrive next: the lowest that was requeued,
    /// or the one after the highest that arrived.
    pub(crate) fn expects(&self) -> Expected {
        match self.rewind_to() {
            Some(requeued) => Expected::Again(requeued),
            None => Expected::After(self.next),
        }
    }

    /// Returns the low watermark: every lower offset is settled, or was never delivered here.
    fn low(&self) -> Option<i64> {
        self.undecided.keys().next().copied().or(self.next)
    }

    /// Records the arrival of a message.
    pub(crate) fn arrive(&mut self, offset: i64) -> Arrival {
        self.seen_position = None;
        let known_from = match (self.low(), self.rewound_to) {
            (Some(low), Some(rewound)) => Some(low.min(rewound)),
            (low, _) => low,
        };
        if known_from.is_some_and(|from| offset < from) {
            // The log was wiped or created again: its offsets restart, and this state is invalid.
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

    /// Drops requeued messages that are gone. The caller calls it after each arrival. A requeued
    /// message below `arrived` that did not arrive again is fetched up to [`TRIES`] times more. A
    /// message that is still missing then was deleted with the log's start, or belongs to an
    /// aborted transaction. Returns the offset to commit, if it changed.
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

    /// Settles a message. Returns the offset to commit, if it changed.
    pub(crate) fn settle(&mut self, offset: i64) -> Option<i64> {
        let before = self.low();
        if self.undecided.remove(&offset)? == State::Held {
            self.held -= 1;
        }
        self.low().filter(|_| self.low() != before)
    }

    /// Passes over offsets without a message, up to the client's `position`: the marks of ended
    /// transactions. Does nothing if a message is undecided, and with the first call after an arrival: the
    /// client may have returned a message that arrives next. Returns the offset to commit, if it changed.
    pub(crate) fn pass_to(&mut self, position: i64) -> Option<i64> {
        if !self.undecided.is_empty() || self.next.is_some_and(|next| position <= next) {
            return None;
        }
        if self.seen_position.replace(position) != Some(position) {
            return None;
        }
        self.next = Some(position);
        self.next
    }

    /// Requeues a message. Returns false if it was not held.
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

    /// Returns the offset to fetch again from, if a fetch is due.
    pub(crate) fn wants_rewind(&self) -> Option<i64> {
        self.rewind_to().filter(|_| self.rewind)
    }

    /// Records that the fetch was started.
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
    fn offsets_without_a_message_are_passed_when_all_messages_are_decided() {
        let passed = |tracker: &mut Tracker, to| [tracker.pass_to(to), tracker.pass_to(to)];
        assert_eq!(passed(&mut Tracker::default(), 9), [None, Some(9)]);
        let mut tracker = tracker(&[7]);
        assert_eq!(passed(&mut tracker, 9), [None, None], "one is held");
        assert_eq!(tracker.settle(7), Some(8));
        assert_eq!(passed(&mut tracker, 9), [None, Some(9)]);
        assert_eq!(tracker.arrive(9), Arrival::New);
        assert_eq!(tracker.settle(9), Some(10));
        // A message arrives between two calls.
        assert_eq!(tracker.pass_to(11), None);
        assert_eq!(tracker.arrive(10), Arrival::New);
        assert_eq!(tracker.settle(10), Some(11));
        assert_eq!(passed(&mut tracker, 11), [None, None]);
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
