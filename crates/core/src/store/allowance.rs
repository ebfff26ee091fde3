//! Limits on the number of rows that are set aside (protocol rule 37).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Maximum number of rows set aside within [`WINDOW`], over all operations.
const AT_MOST: usize = 100;
const WINDOW: Duration = Duration::from_secs(60);

/// Returns the number of rows of a page that may be set aside: 1 %, but at least one.
pub(crate) fn of_page(rows: usize) -> usize {
    (rows / 100).max(1)
}

/// The rows that were set aside lately, and the last commit of each operation.
#[derive(Default)]
pub(crate) struct Allowance {
    /// The times at which rows were set aside, the oldest first.
    gone: VecDeque<Instant>,
    /// The time at which rows of an operation last committed.
    committed: HashMap<&'static str, Instant>,
}

impl Allowance {
    /// Records that rows of this operation have committed.
    pub(crate) fn committed(&mut self, operation: &'static str, now: Instant) {
        self.committed.insert(operation, now);
    }

    /// Returns whether rows of this operation committed after `then`.
    pub(crate) fn has_committed_since(&self, operation: &'static str, then: Instant) -> bool {
        let last = self.committed.get(operation);
        last.is_some_and(|last| *last > then)
    }

    /// Returns whether one more row may be set aside.
    pub(crate) fn has_room(&mut self, now: Instant) -> bool {
        while self
            .gone
            .front()
            .is_some_and(|first| now.duration_since(*first) >= WINDOW)
        {
            self.gone.pop_front();
        }
        self.gone.len() < AT_MOST
    }

    /// Records that a row was set aside.
    pub(crate) fn went(&mut self, now: Instant) {
        self.gone.push_back(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_of_a_page_may_go_and_always_one_row() {
        let pages = [1, 20, 199, 200, 5_000];
        assert_eq!(pages.map(of_page), [1, 1, 1, 2, 50]);
    }

    #[test]
    fn a_hundred_rows_go_within_a_minute() {
        let mut allowance = Allowance::default();
        let start = Instant::now();
        for second in 0..100 {
            let now = start + Duration::from_millis(second * 100);
            assert!(allowance.has_room(now));
            allowance.went(now);
        }
        assert!(!allowance.has_room(start + Duration::from_secs(59)));
        assert!(
            allowance.has_room(start + WINDOW),
            "the first is a minute old"
        );
        allowance.went(start + WINDOW);
        assert!(!allowance.has_room(start + WINDOW));
    }

    #[test]
    fn a_commit_counts_for_its_operation_and_for_what_was_before() {
        let mut allowance = Allowance::default();
        let then = Instant::now();
        assert!(!allowance.has_committed_since("complete", then));
        let now = then + Duration::from_secs(1);
        allowance.committed("complete", now);
        assert!(allowance.has_committed_since("complete", then));
        assert!(!allowance.has_committed_since("complete", now));
        assert!(!allowance.has_committed_since("fail", then));
    }
}
