//! The number of jobs that one statement locks. Its answer holds their payloads and custom values,
//! of up to some megabytes each.

use crate::job::{Job, LockedJob};
use crate::store::Locked;

/// The maximum number of hints in one lock statement.
pub(super) const LOCK_BATCH: usize = 512;
/// The expected maximum size of an answer.
const ANSWER_BYTES: usize = 16 << 20;
/// The size of a job that is expected before any is known, in bytes. The first statement asks for
/// at most 64 jobs.
const FIRST_EXPECTED: usize = 256 << 10;

/// Computes the number from the size of payloads and custom values. It adapts to larger ones at
/// once, and to smaller ones gradually. After a refused statement the next one asks for half as
/// many jobs, down to the single hint that is refused. Each accepted statement doubles the number
/// again.
pub(crate) struct LockSize {
    /// The expected size of a job, in bytes. `None` before any is known.
    expected: Option<usize>,
    at_most: usize,
}

impl Default for LockSize {
    fn default() -> Self {
        Self {
            expected: None,
            at_most: LOCK_BATCH,
        }
    }
}

impl LockSize {
    /// Returns the maximum number of jobs to ask for.
    pub(crate) fn limit(&self) -> usize {
        let expected = self.expected.unwrap_or(FIRST_EXPECTED).max(1);
        (ANSWER_BYTES / expected).clamp(1, self.at_most)
    }

    /// Records that a statement for `hints` hints was refused.
    pub(super) fn was_refused(&mut self, hints: usize) {
        self.at_most = (hints / 2).max(1);
    }

    pub(super) fn saw(&mut self, locked: &Locked) {
        self.at_most = (self.at_most * 2).min(LOCK_BATCH);
        let by_row = locked.rows.iter().flat_map(|rows| &rows.jobs);
        self.saw_jobs(locked.jobs.iter().chain(by_row));
    }

    /// Records the sizes of other locked jobs.
    pub(crate) fn saw_jobs<'a>(&mut self, jobs: impl IntoIterator<Item = &'a LockedJob>) {
        let sizes = jobs.into_iter().map(|locked| bytes_of(&locked.job));
        let (count, bytes) = sizes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        self.note(count, bytes);
    }

    fn note(&mut self, jobs: usize, bytes: usize) {
        let Some(average) = bytes.checked_div(jobs) else {
            return;
        };
        let expected = self.expected.map_or(0, |before| before - before / 8);
        self.expected = Some(average.max(expected));
    }
}

/// Returns the size of the payload and the custom values, in bytes.
fn bytes_of(job: &Job) -> usize {
    let custom = job.custom_values.as_ref();
    job.payload.get().len() + custom.map_or(0, |custom| custom.get().len())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::Utc;

    use super::*;
    use crate::job::new_job::NewJob;
    use crate::job::{Fence, Lane};

    fn knows_small_jobs() -> LockSize {
        let mut size = LockSize::default();
        size.note(64, 64 * 1_000);
        size
    }

    #[test]
    fn small_payloads_are_locked_in_full_batches() {
        assert_eq!(LockSize::default().limit(), 64, "no size is known yet");
        assert_eq!(knows_small_jobs().limit(), LOCK_BATCH);
    }

    #[test]
    fn a_refused_statement_is_followed_by_half_of_it() {
        let mut size = knows_small_jobs();
        for (refused, next) in [(512, 256), (256, 128), (3, 1), (1, 1)] {
            size.was_refused(refused);
            assert_eq!(size.limit(), next);
        }
        for next in [2, 4, 8] {
            size.saw(&Locked::default());
            assert_eq!(size.limit(), next);
        }
    }

    #[test]
    fn large_custom_values_make_small_batches_as_payloads_do() {
        let job = |payload: usize, custom: usize| {
            let text = |bytes: usize| "x".repeat(bytes);
            let custom = serde_json::value::to_raw_value(&text(custom)).unwrap();
            let job = NewJob::of("note", &text(payload)).custom_values(custom);
            LockedJob {
                job: Arc::new(job.into_job(1, Utc::now(), Lane::default()).unwrap()),
                fence: Fence(1),
                strikes: 0,
                locked_at: Utc::now(),
            }
        };
        for locked in [job(1 << 19, 0), job(0, 1 << 19)] {
            let mut size = LockSize::default();
            size.saw_jobs([&locked; 512]);
            assert_eq!(size.limit(), 31);
        }
    }

    #[test]
    fn large_payloads_make_small_batches_and_small_ones_large_again() {
        let mut size = LockSize::default();
        size.note(512, 512 << 20);
        assert_eq!(size.limit(), 16);
        // A statement that locked no job does not change the size.
        size.note(0, 0);
        assert_eq!(size.limit(), 16);
        for _ in 0..40 {
            size.note(16, 16 * 100);
        }
        assert_eq!(size.limit(), LOCK_BATCH);
        size.note(1, usize::MAX);
        assert_eq!(size.limit(), 1);
    }
}
