//! Stuck operations: those with rows that the database refuses.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use metrics::gauge;
use serde::Serialize;

use super::AGAIN;
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::telemetry::metrics as m;

/// Time after which a row that was not retried no longer counts as stuck. By then another node has
/// it, or an operator corrected it.
const FORGOTTEN: Duration = Duration::from_secs(300);
/// The same for a row whose reason is probably temporary, beyond the time for which it is passed over. It
/// may have been freed in another way.
const SOON_FORGOTTEN: Duration = Duration::from_secs(30);
/// Maximum time for which a refused row is passed over while others wait. Shorter than
/// [`FORGOTTEN`], so that it is retried before it is forgotten.
const PASSED_OVER: Duration = Duration::from_secs(240);
/// Maximum number of rows that are remembered for one operation.
const ROWS: usize = 10_000;

/// An operation with a page that the database refuses.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StuckBatch {
    /// The operation: `complete`, `fail`, `move_due_timers`, …
    pub operation: &'static str,
    /// A row that is refused; `None` if the whole page is.
    pub job: Option<JobId>,
    /// Number of rows that are refused.
    pub jobs: usize,
    /// Time for which the operation has been stuck, in seconds.
    pub seconds: u64,
    /// The last error of the database, and the reason why no row is set aside.
    pub reason: String,
}

struct Operation {
    since: Instant,
    reason: String,
    /// The refused rows; `None` stands for a whole page.
    rows: HashMap<Option<JobId>, Refused>,
}

/// The times at which a row was refused, and the duration of the refusal.
#[derive(Clone, Copy)]
pub(super) struct Refused {
    first: Instant,
    last: Instant,
    lasts: Lasts,
}

/// The duration of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasts {
    /// Until a correction.
    UntilCorrected,
    /// Some time, without a correction: memory is short, a statement is slow, a lock is held.
    AWhile,
}

impl Lasts {
    pub(super) fn of(error: &StoreError) -> Self {
        if error.is_transient() {
            Self::AWhile
        } else {
            Self::UntilCorrected
        }
    }
}

impl Refused {
    /// Returns whether the row was refused within this time.
    fn is_within(&self, time: Duration, now: Instant) -> bool {
        now.duration_since(self.last) < time
    }

    /// Returns whether the row is passed over while others wait: for four minutes or, if the reason
    /// is probably temporary, for as long as it has been refused so far.
    pub(super) fn is_passed_over(&self, now: Instant) -> bool {
        self.is_within(self.passed_over_for(), now)
    }

    fn passed_over_for(&self) -> Duration {
        match self.lasts {
            Lasts::UntilCorrected => PASSED_OVER,
            Lasts::AWhile => (self.last - self.first).clamp(AGAIN, PASSED_OVER),
        }
    }

    /// Returns whether the row was refused lately, so that it still counts as stuck.
    fn is_remembered(&self, now: Instant) -> bool {
        let time = match self.lasts {
            Lasts::UntilCorrected => FORGOTTEN,
            Lasts::AWhile => self.passed_over_for() + SOON_FORGOTTEN,
        };
        self.is_within(time, now)
    }

    /// Returns whether the row is passed over even if there is nothing else to do.
    pub(super) fn has_just_been_tried(&self, now: Instant) -> bool {
        self.is_within(AGAIN, now)
    }
}

#[derive(Default)]
pub(super) struct StuckBatches {
    operations: BTreeMap<&'static str, Operation>,
    /// Operations whose last pages all failed with a transient error, and the number of failures. A
    /// page of held jobs is named by its first job, because others of its kind get through
    /// meanwhile.
    failing: HashMap<(&'static str, Option<JobId>), u32>,
}

/// Number of failures in a row after which an error no longer counts as temporary.
const AGAIN_AND_AGAIN: u32 = 3;

impl StuckBatches {
    /// Records that a row was refused, or a whole page. Returns whether the operation was not stuck
    /// before.
    pub(super) fn note(
        &mut self,
        operation: &'static str,
        row: Option<JobId>,
        reason: String,
        lasts: Lasts,
        now: Instant,
    ) -> bool {
        let new = !self.operations.contains_key(operation);
        let entry = self
            .operations
            .entry(operation)
            .or_insert_with(|| Operation {
                since: now,
                reason: String::new(),
                rows: HashMap::new(),
            });
        entry.reason = reason;
        if entry.rows.len() >= ROWS {
            entry.rows.retain(|_, refused| refused.is_remembered(now));
        }
        let refused = Refused {
            first: now,
            last: now,
            lasts,
        };
        if entry.rows.len() < ROWS || entry.rows.contains_key(&row) {
            let seen = entry.rows.entry(row).or_insert(refused);
            if seen.lasts != lasts {
                // The reason has changed, and earlier commits prove nothing about the new one.
                *seen = refused;
            }
            seen.last = now;
        }
        gauge!(m::STUCK_BATCHES, "operation" => operation).set(1.0);
        new
    }

    /// Records that a page failed with a transient error. Returns whether the error no longer
    /// counts as temporary.
    pub(super) fn failed(&mut self, operation: &'static str, page: Option<JobId>) -> bool {
        if self.failing.len() >= ROWS {
            self.failing.clear();
        }
        let failures = self.failing.entry((operation, page)).or_default();
        *failures = failures.saturating_add(1);
        *failures >= AGAIN_AND_AGAIN
    }

    /// Returns whether the last pages all failed with a transient error.
    pub(super) fn keeps_failing(&self, operation: &'static str, page: Option<JobId>) -> bool {
        let failures = self.failing.get(&(operation, page));
        failures.is_some_and(|failures| *failures >= AGAIN_AND_AGAIN)
    }

    /// Returns whether the page would fail again: its last ones all failed, or rows of the
    /// operation are refused.
    pub(super) fn comes_again(&self, operation: &'static str, page: Option<JobId>) -> bool {
        let now = Instant::now();
        let is_refused = |(row, refused): (&Option<JobId>, &Refused)| {
            row.is_some() && refused.is_remembered(now)
        };
        let refused = self.operations.get(operation);
        let refused = refused.is_some_and(|entry| entry.rows.iter().any(is_refused));
        refused || self.keeps_failing(operation, page)
    }

    /// Records the end of a search. Rows that it refused were noted since `began`; of the others,
    /// forgets those that `is_settled` names.
    pub(super) fn searched(
        &mut self,
        operation: &'static str,
        began: Instant,
        is_settled: impl Fn(&JobId) -> bool,
    ) {
        let rows = self.operations.get_mut(operation).map(|entry| {
            let settled = |row: &Option<JobId>| row.as_ref().is_none_or(&is_settled);
            entry
                .rows
                .retain(|row, refused| refused.last >= began || !settled(row));
            entry.rows.len()
        });
        if rows.is_none_or(|rows| rows == 0) {
            self.failing.remove(&(operation, None));
        }
        self.forget_empty();
    }

    /// Records that a page was committed: these rows or, without a list, all that the operation
    /// found.
    pub(super) fn passed(
        &mut self,
        operation: &'static str,
        rows: Option<impl Iterator<Item = JobId>>,
    ) {
        if rows.is_none() {
            self.failing.remove(&(operation, None));
        }
        if let Some(entry) = self.operations.get_mut(operation) {
            match &rows {
                Some(_) => drop(entry.rows.remove(&None)),
                None => entry.rows.clear(),
            }
        }
        self.settled(operation, rows.into_iter().flatten());
    }

    /// Returns the rows that were refused lately.
    pub(super) fn lately(&self, operation: &str, now: Instant) -> HashMap<JobId, Refused> {
        let rows = self
            .operations
            .get(operation)
            .into_iter()
            .flat_map(|entry| &entry.rows);
        rows.filter(|(_, refused)| refused.is_remembered(now))
            .filter_map(|(row, refused)| row.map(|row| (row, *refused)))
            .collect()
    }

    /// Returns the time of the first refusal of a row that is refused until a correction.
    pub(super) fn first_refused(&self, operation: &str, row: JobId) -> Option<Instant> {
        let rows = &self.operations.get(operation)?.rows;
        let refused = rows.get(&Some(row))?;
        (refused.lasts == Lasts::UntilCorrected).then_some(refused.first)
    }

    /// Forgets rows that are gone or that a search committed. The rest of their page may still be
    /// refused.
    pub(super) fn settled(
        &mut self,
        operation: &'static str,
        rows: impl IntoIterator<Item = JobId>,
    ) {
        if let Some(entry) = self.operations.get_mut(operation) {
            for row in rows {
                entry.rows.remove(&Some(row));
            }
        }
        self.forget_empty();
    }

    /// Records that a page of held jobs was committed. Its commit may have failed before.
    pub(super) fn page_passed(&mut self, operation: &'static str, page: Option<JobId>) {
        self.failing.remove(&(operation, page));
    }

    /// Returns the operations that are stuck now.
    pub(super) fn list(&mut self, now: Instant) -> Vec<StuckBatch> {
        for entry in self.operations.values_mut() {
            entry.rows.retain(|_, refused| refused.is_remembered(now));
        }
        self.forget_empty();
        let list = self.operations.iter().map(|(operation, entry)| StuckBatch {
            operation,
            job: entry.rows.keys().flatten().min().copied(),
            jobs: entry.rows.keys().flatten().count(),
            seconds: now.duration_since(entry.since).as_secs(),
            reason: entry.reason.clone(),
        });
        list.collect()
    }

    fn forget_empty(&mut self) {
        self.operations.retain(|operation, entry| {
            let keep = !entry.rows.is_empty();
            if !keep {
                gauge!(m::STUCK_BATCHES, "operation" => *operation).set(0.0);
                tracing::info!(
                    operation,
                    "the database accepts the batches of this operation again"
                );
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::Lasts::{AWhile, UntilCorrected};
    use super::*;

    #[test]
    fn a_row_is_stuck_until_it_passes_or_is_forgotten() {
        let mut stuck = StuckBatches::default();
        let now = Instant::now();
        let (a, b) = (JobId::generate(), JobId::generate());
        assert!(stuck.note("complete", Some(a), "why".to_owned(), UntilCorrected, now));
        assert!(!stuck.note("complete", Some(b), "why".to_owned(), UntilCorrected, now));
        assert_eq!(stuck.list(now)[0].jobs, 2);
        // A page of other rows does not clear these.
        stuck.passed("complete", Some([JobId::generate()].into_iter()));
        stuck.passed("complete", Some([a].into_iter()));
        assert_eq!(stuck.list(now)[0].job, Some(b));
        assert!(stuck.list(now + FORGOTTEN).is_empty());
    }

    #[test]
    fn a_refused_row_is_passed_over_for_a_while() {
        let mut stuck = StuckBatches::default();
        let now = Instant::now();
        let row = JobId::generate();
        stuck.note(
            "move_due_timers",
            Some(row),
            "why".to_owned(),
            UntilCorrected,
            now,
        );
        stuck.note(
            "move_due_timers",
            None,
            "why".to_owned(),
            UntilCorrected,
            now,
        );
        let known = stuck.lately("move_due_timers", now);
        assert_eq!(known.keys().collect::<Vec<_>>(), [&row]);
        assert!(stuck.lately("orphans", now).is_empty());
        assert!(known[&row].is_passed_over(now + PASSED_OVER / 2));
        assert!(!known[&row].is_passed_over(now + PASSED_OVER));
        let later = now + FORGOTTEN;
        assert!(stuck.lately("move_due_timers", later).is_empty());
    }

    /// A temporary reason usually ends within twice its present duration.
    #[test]
    fn a_row_whose_reason_should_go_away_is_passed_over_for_as_long_as_it_was_refused() {
        let mut stuck = StuckBatches::default();
        let begin = Instant::now();
        let row = JobId::generate();
        for (refused_at, passed_over) in [(0, 5), (5, 5), (10, 10), (20, 20), (900, 240)] {
            let now = begin + Duration::from_secs(refused_at);
            stuck.note("fail", Some(row), "no memory".to_owned(), AWhile, now);
            let seen = stuck.lately("fail", now)[&row];
            let until = now + Duration::from_secs(passed_over);
            assert!(seen.is_passed_over(until - Duration::from_millis(1)));
            assert!(!seen.is_passed_over(until), "after {refused_at} s");
        }
    }

    /// Another statement may have freed it.
    #[test]
    fn a_row_whose_reason_should_go_away_is_soon_forgotten() {
        let mut stuck = StuckBatches::default();
        let begin = Instant::now();
        let row = JobId::generate();
        for refused_at in [0, 10] {
            let now = begin + Duration::from_secs(refused_at);
            stuck.note("release", Some(row), "locked".to_owned(), AWhile, now);
        }
        assert_eq!(stuck.list(begin + Duration::from_secs(49)).len(), 1);
        assert!(stuck.list(begin + Duration::from_secs(50)).is_empty());
    }

    #[test]
    fn a_page_without_a_list_clears_its_operation() {
        let mut stuck = StuckBatches::default();
        let now = Instant::now();
        stuck.note("unhinted", None, "no right".to_owned(), UntilCorrected, now);
        stuck.note(
            "unhinted",
            Some(JobId::generate()),
            "bad".to_owned(),
            UntilCorrected,
            now,
        );
        stuck.note("orphans", None, "no right".to_owned(), UntilCorrected, now);
        stuck.passed("unhinted", None::<std::iter::Empty<JobId>>);
        let left = stuck.list(now);
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].operation, left[0].jobs), ("orphans", 0));
    }
}
