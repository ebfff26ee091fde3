//! The number from which pages of events are read.
//!
//! Deleted rows stay in the table, and each page would read them again, while a snapshot is open that is
//! older than their end. So a page begins where the one before it began to find events.
//!
//! An event with a smaller number may become visible later: numbers are drawn before the commit. So the
//! position passes a number only when all transactions have ended that may have drawn a smaller one.
//! They have smaller ids than the transaction that reads this number, which gets its id after its
//! snapshot. A long transaction that writes nothing has no id and holds up nothing; one that writes holds
//! up the position, and so the speed, but no event.
//!
//! A failover may take numbers back. So the position begins anew after an error, and when the ids of
//! transactions go back; and every ten seconds, in case of what this does not know of.

use std::time::Duration;

use tokio::time::Instant;

/// The time after which the position begins anew.
const ANEW: Duration = Duration::from_secs(10);

/// The first and the last number of a page, and the transactions beside its own one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) first: i64,
    pub(super) last: i64,
    /// All transactions with smaller ids have ended.
    pub(super) oldest_running: i64,
    /// The id of the transaction that has read the page.
    pub(super) own: i64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct EventPosition {
    from: Option<i64>,
    /// A number that was visible, and the id that is larger than those of all transactions which may
    /// have drawn a smaller number.
    ahead: Option<(i64, i64)>,
    since: Option<Instant>,
    /// The largest id of a transaction that has read a page.
    newest: i64,
}

impl EventPosition {
    /// Returns the number from which to read.
    pub(super) fn from(&mut self) -> i64 {
        if self.since.is_none_or(|since| since.elapsed() >= ANEW) {
            self.begin_anew();
        }
        self.from.unwrap_or(i64::MIN)
    }

    /// Begins anew, as after an error: another server may answer next.
    pub(super) fn begin_anew(&mut self) {
        *self = Self {
            since: Some(Instant::now()),
            newest: self.newest,
            ..Self::default()
        };
    }

    /// Returns whether a page is of an older history than the pages before it, as after a failover that
    /// has lost commits. The numbers of its events may be drawn for the second time.
    pub(super) fn went_back(&mut self, seen: Seen) -> bool {
        let is_back = seen.own < self.newest;
        self.newest = if is_back {
            seen.own
        } else {
            self.newest.max(seen.own)
        };
        is_back
    }

    /// Notes a page that was read from this number.
    pub(super) fn read(&mut self, from: i64, seen: Seen) {
        if self.from.unwrap_or(i64::MIN) != from {
            // Another task has read meanwhile.
            return;
        }
        match self.ahead {
            // This page has all events up to the number that there will ever be.
            Some((number, until)) if until <= seen.oldest_running => {
                let behind = number.saturating_add(1);
                self.from = Some(behind.min(seen.first).max(from));
                self.ahead = Some((seen.last, seen.own));
            }
            Some(_) => {}
            None => self.ahead = Some((seen.last, seen.own)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(first: i64, last: i64, oldest_running: i64, own: i64) -> Seen {
        Seen {
            first,
            last,
            oldest_running,
            own,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_begins_where_the_one_before_it_found_events() {
        let mut position = EventPosition::default();
        let from = position.from();
        assert_eq!(from, i64::MIN);
        position.read(from, seen(1, 500, 70, 70));
        assert_eq!(position.from(), i64::MIN);
        position.read(from, seen(501, 1_000, 80, 80));
        assert_eq!(position.from(), 501);
        position.read(501, seen(501, 1_000, 85, 85));
        position.read(501, seen(1_001, 1_500, 90, 90));
        assert_eq!(position.from(), 1_001);
        // A page that was read from elsewhere says nothing.
        position.read(501, seen(9_000, 9_000, 95, 95));
        assert_eq!(position.from(), 1_001);
        tokio::time::advance(ANEW).await;
        assert_eq!(position.from(), i64::MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failover_that_takes_numbers_back_is_seen() {
        let mut position = EventPosition::default();
        let _ = position.from();
        for own in [70, 80] {
            assert!(!position.went_back(seen(1, 500, own, own)));
            position.read(i64::MIN, seen(501, 1_000, own, own));
        }
        assert_eq!(position.from(), 501);
        assert!(position.went_back(seen(501, 700, 75, 75)));
        position.begin_anew();
        assert_eq!(position.from(), i64::MIN);
        assert!(!position.went_back(seen(1, 700, 76, 76)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_number_is_passed_when_no_smaller_one_can_come() {
        let mut position = EventPosition::default();
        let from = position.from();
        // Transaction 60 runs, and may have drawn the number 3.
        position.read(from, seen(1, 5, 60, 70));
        position.read(from, seen(6, 9, 60, 80));
        position.read(from, seen(10, 12, 69, 90));
        assert_eq!(position.from(), i64::MIN);
        // It has ended, and its event is in the page.
        position.read(from, seen(3, 20, 75, 95));
        assert_eq!(position.from(), 3);
        position.read(3, seen(21, 30, 94, 99));
        assert_eq!(position.from(), 3);
        position.read(3, seen(21, 30, 95, 99));
        assert_eq!(position.from(), 21);
    }
}
