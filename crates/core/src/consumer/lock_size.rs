//! How many hints one lock statement asks for: its answer holds their payloads, of up to a megabyte each.

use super::LOCK_BATCH;
use crate::store::Locked;

/// An answer is expected to stay below this.
const ANSWER_BYTES: usize = 16 << 20;

/// Follows the size of payloads: up at once, down by and by.
#[derive(Default)]
pub(super) struct LockSize {
    /// Bytes of a job's payload.
    expected: usize,
}

impl LockSize {
    /// The most hints to ask for.
    pub(super) fn limit(&self) -> usize {
        (ANSWER_BYTES / self.expected.max(1)).clamp(1, LOCK_BATCH)
    }

    pub(super) fn saw(&mut self, locked: &Locked) {
        let by_row = locked.rows.iter().flat_map(|rows| &rows.jobs);
        let jobs = locked.jobs.iter().chain(by_row);
        let (count, bytes) = jobs.fold((0, 0), |(count, bytes), locked| {
            (count + 1, bytes + locked.job.payload.get().len())
        });
        self.note(count, bytes);
    }

    fn note(&mut self, jobs: usize, bytes: usize) {
        let Some(average) = bytes.checked_div(jobs) else {
            return;
        };
        self.expected = average.max(self.expected - self.expected / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_payloads_are_locked_in_full_batches() {
        let mut size = LockSize::default();
        assert_eq!(size.limit(), LOCK_BATCH);
        size.note(512, 512 * 1_000);
        assert_eq!(size.limit(), LOCK_BATCH);
    }

    #[test]
    fn large_payloads_make_small_batches_and_small_ones_large_again() {
        let mut size = LockSize::default();
        size.note(512, 512 << 20);
        assert_eq!(size.limit(), 16);
        // A statement that locked nothing says nothing.
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
