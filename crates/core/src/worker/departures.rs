//! Departures: members of batches that have ended on this node.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::job::{BatchId, Job, JobId};

/// Maximum number of departures that wait. The leader finds those beyond.
const MOST: usize = 200_000;
/// The bounds of the pause after a failure.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The departures from one batch.
#[derive(Default)]
pub(super) struct Left {
    pub(super) jobs: HashSet<JobId>,
    /// The failures, without those of a busy batch.
    pub(super) attempts: u32,
    /// All questions without an answer. They make the pause longer.
    pub(super) tries: u32,
    /// The earliest time of the next question. A new batch has none: it is asked for at once.
    pub(super) from: Option<Instant>,
}

/// The batches with departures, and the number of these.
#[derive(Default)]
struct Waiting {
    batches: HashMap<BatchId, Left>,
    jobs: usize,
}

/// The departures that wait.
#[derive(Default)]
pub(crate) struct Departures {
    waiting: Mutex<Waiting>,
    pub(super) news: Notify,
}

impl Departures {
    /// Notes that a job may have ended, if it is the member of a batch.
    pub(crate) fn note(&self, job: &Job) {
        if let Some(batch) = job.batch() {
            let jobs = HashSet::from([job.id]);
            self.add(
                batch,
                Left {
                    jobs,
                    ..Left::default()
                },
            );
            self.news.notify_one();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds departures as far as there is room for them.
    pub(super) fn add(&self, batch: BatchId, more: Left) {
        let mut waiting = self.waiting();
        let Waiting { batches, jobs } = &mut *waiting;
        if *jobs >= MOST || more.jobs.is_empty() {
            return;
        }
        let left = batches.entry(batch).or_default();
        for job in more.jobs {
            if *jobs >= MOST {
                break;
            }
            *jobs += usize::from(left.jobs.insert(job));
        }
        left.attempts = left.attempts.max(more.attempts);
        left.tries = left.tries.max(more.tries);
        left.from = left.from.max(more.from);
    }

    /// Takes the batches that are due at this time, or all without a time.
    pub(super) fn take(&self, now: Option<Instant>) -> Vec<(BatchId, Left)> {
        let mut waiting = self.waiting();
        let Waiting { batches, jobs } = &mut *waiting;
        let is_due = |left: &Left| now.is_none_or(|now| left.from.is_none_or(|from| from <= now));
        let due: Vec<BatchId> = batches
            .iter()
            .filter(|(_, left)| is_due(left))
            .map(|(batch, _)| *batch)
            .collect();
        let taken: Vec<_> = due
            .into_iter()
            .filter_map(|batch| batches.remove_entry(&batch))
            .collect();
        let gone: usize = taken.iter().map(|(_, left)| left.jobs.len()).sum();
        *jobs = jobs.saturating_sub(gone);
        taken
    }

    /// Returns the time at which the first of the batches that pause is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiting = self.waiting();
        waiting.batches.values().filter_map(|left| left.from).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting().batches.is_empty()
    }
}

/// Returns the pause after this number of earlier questions without an answer.
pub(super) fn pause(tries: u32) -> Duration {
    FIRST_PAUSE
        .saturating_mul(2_u32.saturating_pow(tries))
        .min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(jobs: usize, from: Option<Instant>) -> Left {
        Left {
            jobs: (0..jobs).map(|_| JobId::generate()).collect(),
            from,
            ..Left::default()
        }
    }

    #[test]
    fn a_batch_that_pauses_holds_back_no_other() {
        let departures = Departures::default();
        let (busy, other) = (BatchId::generate(), BatchId::generate());
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        departures.add(busy, left(1, Some(later)));
        departures.add(other, left(2, None));
        // News of the busy one do not end its pause.
        departures.add(busy, left(1, None));
        let due = departures.take(Some(now));
        assert_eq!(due.len(), 1);
        assert_eq!((due[0].0, due[0].1.jobs.len()), (other, 2));
        assert_eq!(departures.next(), Some(later));
        assert_eq!(departures.take(Some(later))[0].1.jobs.len(), 2);
        departures.add(busy, left(1, Some(later)));
        assert_eq!(departures.take(None).len(), 1, "the farewell takes all");
        assert!(departures.is_empty());
        assert_eq!(departures.next(), None);
        assert_eq!(pause(0), FIRST_PAUSE);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn the_departures_are_bounded_over_all_batches() {
        let departures = Departures::default();
        let (first, second) = (BatchId::generate(), BatchId::generate());
        departures.add(first, left(MOST - 1, None));
        departures.add(second, left(2, None));
        departures.add(BatchId::generate(), left(1, None));
        assert_eq!(departures.waiting().jobs, MOST);
        let mut taken = departures.take(None);
        taken.sort_by_key(|(_, left)| left.jobs.len());
        let taken: Vec<_> = taken
            .iter()
            .map(|(id, left)| (*id, left.jobs.len()))
            .collect();
        assert_eq!(taken, [(second, 1), (first, MOST - 1)], "no empty entry");
        assert_eq!(departures.waiting().jobs, 0);
    }
}
