//! The number of rows that a statement of the leader takes at most.

use crate::store::StoreError;

/// The divisor of a page that took too long.
const LESS: i64 = 8;

/// A page size that follows the speed of the database.
///
/// A statement that the database cancels at
/// [`statement_timeout`](crate::PgOptions::statement_timeout) has no effect. With the same number of
/// rows it would fail again and again, so the next statement takes an eighth of them. A full page
/// that comes in time doubles the next one, up to the maximum.
#[derive(Debug)]
pub(super) struct PageSize {
    now: i64,
    most: i64,
}

impl PageSize {
    pub(super) fn at_most(most: i64) -> PageSize {
        PageSize { now: most, most }
    }

    pub(super) fn get(&self) -> i64 {
        self.now
    }

    /// Records that a page came in time. Returns whether it was full, so that it may have left rows.
    pub(super) fn came(&mut self, rows: usize) -> bool {
        let is_full = i64::try_from(rows).is_ok_and(|rows| rows >= self.now);
        if is_full {
            self.now = (self.now * 2).min(self.most);
        }
        is_full
    }

    /// Makes the next page smaller if the statement took too long.
    pub(super) fn failed(&mut self, error: &StoreError) {
        if error.is_slow() {
            self.now = (self.now / LESS).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::error::tests::said;

    #[test]
    fn a_page_that_took_too_long_becomes_small_and_grows_again() {
        let mut page = PageSize::at_most(5_000);
        page.failed(&said("57014"));
        assert_eq!(page.get(), 625);
        page.failed(&StoreError::Timeout(Duration::from_secs(17)));
        assert_eq!(page.get(), 78);
        assert!(!page.came(77));
        assert_eq!(page.get(), 78);
        assert!(page.came(78));
        assert_eq!(page.get(), 156);
        for _ in 0..5 {
            page.failed(&said("57014"));
        }
        assert_eq!(page.get(), 1);
        while page.get() < 5_000 {
            assert!(page.came(5_000));
        }
        assert!(page.came(5_000));
        assert_eq!(page.get(), 5_000);
    }

    #[test]
    fn other_errors_leave_the_page_as_it_is() {
        let mut page = PageSize::at_most(5_000);
        for code in ["23514", "40001", "53300"] {
            page.failed(&said(code));
        }
        assert_eq!(page.get(), 5_000);
    }
}
