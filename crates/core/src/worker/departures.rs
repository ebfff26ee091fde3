//! Departures: members of batches that have ended on this node.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::job::{BatchId, Job, JobId};

/// Maximum number of departures that wait. The leader finds those beyond.
const MOST: usize = 200_000;
/// The bounds of the pause after a failure.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(2);

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

/// The departures from one batch, and the place of the batch among those that wait.
#[derive(Default)]
struct Entry {
    left: Left,
    /// The number of batches that were added before.
    place: u64,
}

/// The batches with departures, and the number of these.
#[derive(Default)]
struct Waiting {
    batches: HashMap<BatchId, Entry>,
    /// The new batches, in the order of their first departure.
    new: BTreeMap<u64, BatchId>,
    /// The batches that pause, in the order in which they are due.
    pausing: BTreeSet<(Instant, BatchId)>,
    jobs: usize,
    /// The number of batches that were added.
    added: u64,
}

impl Waiting {
    /// Removes a batch.
    fn remove(&mut self, batch: BatchId) -> Option<Left> {
        let Entry { left, place } = self.batches.remove(&batch)?;
        if let Some(from) = left.from {
            self.pausing.remove(&(from, batch));
        } else {
            self.new.remove(&place);
        }
        self.jobs = self.jobs.saturating_sub(left.jobs.len());
        Some(left)
    }
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
        let waiting = &mut *waiting;
        if waiting.jobs >= MOST || more.jobs.is_empty() {
            return;
        }
        let entry = waiting.batches.entry(batch).or_insert_with(|| {
            waiting.added += 1;
            waiting.new.insert(waiting.added, batch);
            Entry {
                left: Left::default(),
                place: waiting.added,
            }
        });
        let left = &mut entry.left;
        for job in more.jobs {
            if waiting.jobs >= MOST {
                break;
            }
            waiting.jobs += usize::from(left.jobs.insert(job));
        }
        left.attempts = left.attempts.max(more.attempts);
        left.tries = left.tries.max(more.tries);
        if let Some(from) = more.from.filter(|from| left.from < Some(*from)) {
            if let Some(before) = left.from.replace(from) {
                waiting.pausing.remove(&(before, batch));
            } else {
                waiting.new.remove(&entry.place);
            }
            waiting.pausing.insert((from, batch));
        }
    }

    /// Takes up to `at_most` batches that are due at this time, or of all without a time: new ones
    /// before those that pause. Passes over those that are under way.
    pub(super) fn take(
        &self,
        at_most: usize,
        now: Option<Instant>,
        under_way: &HashSet<BatchId>,
    ) -> Vec<(BatchId, Left)> {
        let mut waiting = self.waiting();
        let due = waiting.pausing.iter();
        let due = due.take_while(|(from, _)| now.is_none_or(|now| *from <= now));
        let all = waiting.new.values().chain(due.map(|(_, batch)| batch));
        let batches: Vec<BatchId> = all
            .filter(|batch| !under_way.contains(*batch))
            .take(at_most)
            .copied()
            .collect();
        let taken = batches
            .into_iter()
            .filter_map(|batch| Some((batch, waiting.remove(batch)?)));
        taken.collect()
    }

    /// Returns the time at which the first of the batches that pause is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiting = self.waiting();
        waiting.pausing.first().map(|(from, _)| *from)
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

    fn take(departures: &Departures, now: Option<Instant>) -> Vec<(BatchId, Left)> {
        departures.take(usize::MAX, now, &HashSet::new())
    }

    #[test]
    fn new_batches_are_taken_in_their_order_before_those_that_pause() {
        let departures = Departures::default();
        let now = Instant::now();
        let [slow, first, second, third] = [(); 4].map(|()| BatchId::generate());
        departures.add(slow, left(1, Some(now)));
        for batch in [first, second, third, first] {
            departures.add(batch, left(1, None));
        }
        let under_way = HashSet::from([second]);
        let taken = |at_most| -> Vec<BatchId> {
            let taken = departures.take(at_most, Some(now), &under_way);
            taken.into_iter().map(|(batch, _)| batch).collect()
        };
        assert_eq!(taken(0), []);
        assert_eq!(taken(1), [first]);
        assert_eq!(taken(2), [third, slow]);
        assert_eq!(taken(1), []);
        assert_eq!(departures.next(), None);
        assert_eq!(take(&departures, Some(now))[0].0, second);
        assert!(departures.is_empty() && departures.waiting().new.is_empty());
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
        let due = take(&departures, Some(now));
        assert_eq!(due.len(), 1);
        assert_eq!((due[0].0, due[0].1.jobs.len()), (other, 2));
        assert_eq!(departures.next(), Some(later));
        assert_eq!(take(&departures, Some(later))[0].1.jobs.len(), 2);
        departures.add(busy, left(1, Some(later)));
        assert_eq!(take(&departures, None).len(), 1, "the farewell takes all");
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
        let mut taken = take(&departures, None);
        taken.sort_by_key(|(_, left)| left.jobs.len());
        let taken: Vec<_> = taken
            .iter()
            .map(|(id, left)| (*id, left.jobs.len()))
            .collect();
        assert_eq!(taken, [(second, 1), (first, MOST - 1)], "no empty entry");
        assert_eq!(departures.waiting().jobs, 0);
    }
}
