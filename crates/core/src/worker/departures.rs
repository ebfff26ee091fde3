//! Departures: members of batches that have ended on this node, and the task that asks for the end of
//! their batches.
//!
//! It runs after the commit of an outcome, so it delays no outcome and fails none. While a batch is
//! asked for, the departures of its other members gather. A batch that gives no answer pauses for
//! itself, and the others go on. A node without batches sends nothing. What is lost with the node is
//! found by the leader (`leader/batches.rs`).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::Notify;

use crate::job::{BatchId, Job, JobId};
use crate::producer::commit_hook::Cause;
use crate::store::StoreError;
use crate::store::batches::EndedBatch;
use crate::worker::context::NodeContext;

/// Maximum number of departures that wait. The leader finds those beyond.
const MOST: usize = 200_000;
/// Maximum number of departures in one transaction.
const SLICE: usize = 5_000;
/// Maximum number of batches that are asked for at once.
const AT_ONCE: usize = 4;
/// The bounds of the pause after a failure, and the number of attempts for one batch. After that the
/// leader asks.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 10;
/// The time for which a node that ends asks for the batches that are left.
const FAREWELL: Duration = Duration::from_secs(5);

/// The departures from one batch.
#[derive(Default)]
struct Left {
    jobs: HashSet<JobId>,
    /// The failures, without those of a busy batch.
    attempts: u32,
    /// All questions without an answer. They make the pause longer.
    tries: u32,
    /// The earliest time of the next question. A new batch has none: it is asked for at once.
    from: Option<Instant>,
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
    news: Notify,
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
    fn add(&self, batch: BatchId, more: Left) {
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
    fn take(&self, now: Option<Instant>) -> Vec<(BatchId, Left)> {
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
    fn next(&self) -> Option<Instant> {
        let waiting = self.waiting();
        waiting.batches.values().filter_map(|left| left.from).min()
    }

    fn is_empty(&self) -> bool {
        self.waiting().batches.is_empty()
    }
}

/// Asks for the ends of batches until the node has ended.
pub(crate) async fn end_batches(node: Arc<NodeContext>) {
    let ended = &node.signals.ended;
    loop {
        let due = node.departures.next();
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            () = node.departures.news.notified() => {}
            () = due => {}
        }
        round(&node, node.departures.take(Some(Instant::now()))).await;
    }
}

/// Asks for the batches that are left when all outcomes of the node are committed.
pub(crate) async fn say_farewell(node: &Arc<NodeContext>) {
    let left = async {
        while !node.departures.is_empty() {
            round(node, node.departures.take(None)).await;
            if !node.departures.is_empty() {
                tokio::time::sleep(FIRST_PAUSE).await;
            }
        }
    };
    let _ = tokio::time::timeout(FAREWELL, left).await;
}

/// Asks for these batches. Those without an answer wait again.
async fn round(node: &Arc<NodeContext>, due: Vec<(BatchId, Left)>) {
    futures_util::stream::iter(due)
        .for_each_concurrent(AT_ONCE, |(batch, left)| ask(node, batch, left))
        .await;
}

async fn ask(node: &Arc<NodeContext>, batch: BatchId, left: Left) {
    let jobs: Vec<JobId> = left.jobs.into_iter().collect();
    for (n, slice) in jobs.chunks(SLICE).enumerate() {
        if let Err(error) = end_batch(node, batch, slice).await {
            // A creator of members may keep the batch open for long.
            let is_busy = error.is_conflict();
            let attempts = left.attempts + u32::from(!is_busy);
            let again = attempts < ATTEMPTS;
            if is_busy {
                tracing::debug!(%batch, %error, "a batch is busy; looking again whether it has ended");
            } else {
                tracing::warn!(
                    %batch, %error, again,
                    "could not look whether a batch has ended; the leader looks, too"
                );
            }
            if again {
                let rest = Left {
                    jobs: jobs.iter().skip(n * SLICE).copied().collect(),
                    attempts,
                    tries: left.tries.saturating_add(1),
                    from: Some(Instant::now() + pause(left.tries)),
                };
                node.departures.add(batch, rest);
            }
            return;
        }
    }
}

/// Returns the pause after this number of earlier questions without an answer.
fn pause(tries: u32) -> Duration {
    FIRST_PAUSE
        .saturating_mul(2_u32.saturating_pow(tries))
        .min(LONGEST_PAUSE)
}

/// Ends a batch if it is over, and hints the job at its end.
pub(crate) async fn end_batch(
    node: &NodeContext,
    batch: BatchId,
    left: &[JobId],
) -> Result<bool, StoreError> {
    let Some(EndedBatch { end, ready, job }) = node.store.end_batch(batch, left).await? else {
        return Ok(false);
    };
    tracing::debug!(
        %batch, name = crate::telemetry::plain::one_line(&end.name, 256), members = end.members,
        dead_letters = end.dead_letters, ?job, "a batch has ended"
    );
    if let Some(teller) = node.teller() {
        teller.created(&ready);
    }
    node.hook.publish(Cause::Handoff, ready);
    Ok(true)
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
