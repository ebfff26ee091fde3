//! Departures: members of batches that have ended on this node, and the task that asks for the end of
//! their batches.
//!
//! It runs after the commit of an outcome, so it delays no outcome and fails none. While a batch is
//! asked for, the departures of its other members gather. A node without batches sends nothing. What
//! is lost with the node is found by the leader (`leader/batches.rs`).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    attempts: u32,
}

/// The departures that wait.
#[derive(Default)]
pub(crate) struct Departures {
    waiting: Mutex<HashMap<BatchId, Left>>,
    news: Notify,
}

impl Departures {
    /// Notes that a job may have ended, if it is the member of a batch.
    pub(crate) fn note(&self, job: &Job) {
        if let Some(batch) = job.batch() {
            self.add(batch, [job.id], 0);
            self.news.notify_one();
        }
    }

    fn add(&self, batch: BatchId, jobs: impl IntoIterator<Item = JobId>, attempts: u32) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST.saturating_sub(waiting.values().map(|left| left.jobs.len()).sum());
        let left = waiting.entry(batch).or_default();
        left.jobs.extend(jobs.into_iter().take(room));
        left.attempts = left.attempts.max(attempts);
    }

    fn take(&self) -> HashMap<BatchId, Left> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }

    fn is_empty(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.is_empty()
    }
}

/// Asks for the ends of batches until the node has ended.
pub(crate) async fn end_batches(node: Arc<NodeContext>) {
    let ended = &node.signals.ended;
    let mut pause = FIRST_PAUSE;
    loop {
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            () = node.departures.news.notified() => {}
        }
        if round(&node).await {
            pause = FIRST_PAUSE;
            continue;
        }
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        node.departures.news.notify_one();
    }
}

/// Asks for the batches that are left when all outcomes of the node are committed.
pub(crate) async fn say_farewell(node: &Arc<NodeContext>) {
    let left = async {
        while !node.departures.is_empty() {
            if !round(node).await {
                tokio::time::sleep(FIRST_PAUSE).await;
            }
        }
    };
    let _ = tokio::time::timeout(FAREWELL, left).await;
}

/// Asks for each batch with departures. Returns false if one of them is to be asked for again.
async fn round(node: &Arc<NodeContext>) -> bool {
    let waiting = futures_util::stream::iter(node.departures.take());
    let asked = waiting.map(|(batch, left)| ask(node, batch, left));
    let mut answers = asked.buffer_unordered(AT_ONCE);
    let mut all = true;
    while let Some(answered) = answers.next().await {
        all &= answered;
    }
    all
}

async fn ask(node: &Arc<NodeContext>, batch: BatchId, left: Left) -> bool {
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
                let rest = jobs.iter().skip(n * SLICE).copied();
                node.departures.add(batch, rest, attempts);
            }
            return !again;
        }
    }
    true
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
