//! How many rows may be set aside, and when (protocol rule 37).

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// So many rows at most go within [`WINDOW`], whatever the operation.
const AT_MOST: usize = 100;
/// Also for so long a commit shows that the database takes the rows of an operation.
const WINDOW: Duration = Duration::from_secs(60);

/// So many rows of a page may go: 1 %, but at least one.
pub(crate) fn of_page(rows: usize) -> usize {
    (rows / 100).max(1)
}

/// What went, and what committed beside it.
#[derive(Default)]
pub(crate) struct Allowance {
    /// When rows were set aside, the oldest first.
    gone: VecDeque<Instant>,
    /// When rows of an operation last committed.
    committed: HashMap<&'static str, Instant>,
    /// Operations of which a whole page was refused, and nothing has committed since.
    refused: HashSet<&'static str>,
}

impl Allowance {
    /// Rows of this operation have committed.
    pub(crate) fn committed(&mut self, operation: &'static str, now: Instant) {
        self.committed.insert(operation, now);
        self.refused.remove(operation);
    }

    /// Does the database take rows of this operation, so that a refused one of a page of so many has itself to blame? A
    /// page of one row has no rest that could tell, but earlier pages may have.
    pub(crate) fn takes_rows(
        &mut self,
        operation: &'static str,
        page: usize,
        now: Instant,
    ) -> bool {
        if self.has_committed(operation, now) {
            return true;
        }
        if page > 1 {
            self.refused.insert(operation);
        }
        !self.refused.contains(operation)
    }

    /// Did rows of this operation commit within the last minute?
    fn has_committed(&self, operation: &'static str, now: Instant) -> bool {
        let last = self.committed.get(operation);
        last.is_some_and(|last| now.duration_since(*last) < WINDOW)
    }

    /// May one more row go?
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

    /// A row went.
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
    fn a_commit_counts_for_a_minute_and_for_its_operation() {
        let mut allowance = Allowance::default();
        let now = Instant::now();
        assert!(!allowance.has_committed("complete", now));
        allowance.committed("complete", now);
        assert!(allowance.has_committed("complete", now + Duration::from_secs(59)));
        assert!(!allowance.has_committed("complete", now + WINDOW));
        assert!(!allowance.has_committed("fail", now));
    }

    #[test]
    fn a_page_of_one_row_is_believed_unless_a_larger_one_was_refused_as_a_whole() {
        let mut allowance = Allowance::default();
        let now = Instant::now();
        assert!(allowance.takes_rows("complete", 1, now));
        assert!(!allowance.takes_rows("complete", 2, now));
        assert!(!allowance.takes_rows("complete", 1, now));
        assert!(allowance.takes_rows("fail", 1, now));
        allowance.committed("complete", now);
        assert!(allowance.takes_rows("complete", 2, now));
        assert!(allowance.takes_rows("complete", 1, now + WINDOW));
    }
}
