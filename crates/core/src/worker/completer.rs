//! The completer: commits outcomes in batches. Each outcome is guarded by its fence.
//!
//! The next batch gathers while one is being committed, and commits begin some milliseconds apart
//! (`turn.rs`). At low load an outcome is committed at once; at high load hundreds are committed
//! together. The next job of an instance waits for the end of an exclusive job, so a batch with
//! such an outcome does not wait for another batch that is being committed, and gathers only while
//! the store asks for it ([`Store::gathers_for`](crate::Store::gathers_for)). A full batch does not
//! wait either. If the database does not accept a batch, the commit is retried for as long as the
//! node runs: an outcome is valid while its lease has this node and fence, even after a long
//! absence of the database.

mod committed;
mod stuck;
mod turn;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use metrics::{counter, histogram};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use crate::job::{JobId, LockToken};
use crate::producer::commit_hook::Cause;
use crate::runtime::supervisor::survived;
use crate::store::{BatchOutcome, Completion, Failure, Release, StoreError};
use crate::telemetry::metrics as m;
use crate::worker::attempt::{Attempt, AttemptFate};
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::finished::{Ending, Finished};
use crate::worker::held_instances::End;
use crate::worker::slot_pool::Slot;
use crate::worker::tell::Told;
use committed::{Committed, batch_outcome, end_of, next_instances};
use stuck::{Refused, keep_trying};
use turn::{Gathered, Turns};

/// The bounds of the batch size. A node with few slots has smaller batches, so that it holds no
/// more jobs than necessary while outcomes cannot be committed.
const BATCH: usize = 512;
const SMALL_BATCH: usize = 64;
/// The bounds of the pause between two attempts to commit a batch. It is at most a sixth of the
/// lease.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Outcomes that arrive, gather and are committed. Kept while the completer's task is restarted.
pub(crate) struct Batcher {
    queue: mpsc::Receiver<Finished>,
    /// The maximum number of outcomes in one batch.
    batch: usize,
    gathered: Vec<Finished>,
    /// Whether another job waits for a gathered outcome.
    awaited: bool,
    /// The number of gathered outcomes that were checked for `awaited`.
    looked_at: usize,
    commits: FuturesUnordered<BoxFuture<'static, ()>>,
    turns: Turns,
}

impl Batcher {
    /// Returns the batcher of a node with `slots` slots.
    pub(crate) fn new(queue: mpsc::Receiver<Finished>, slots: usize) -> Self {
        Self {
            queue,
            batch: slots.saturating_mul(2).clamp(SMALL_BATCH, BATCH),
            gathered: Vec::new(),
            awaited: false,
            looked_at: 0,
            commits: FuturesUnordered::new(),
            turns: Turns::default(),
        }
    }

    /// Commits the gathered outcomes if it is their turn, or if the node ends and no other batch is
    /// under way.
    fn commit_some(&mut self, node: &Arc<NodeContext>, ending: bool) {
        let mut new = self.gathered.iter().skip(self.looked_at);
        self.awaited |= new.any(Finished::is_awaited);
        self.looked_at = self.gathered.len();
        let turn = self.next_commit(node);
        let now = Instant::now();
        let ends = ending && self.commits.is_empty() && !self.gathered.is_empty();
        if ends || turn.is_some_and(|turn| turn <= now) {
            self.turns.begin(now);
            (self.awaited, self.looked_at) = (false, 0);
            let batch = std::mem::take(&mut self.gathered);
            self.commits
                .push(Box::pin(commit_or_leave(node.clone(), batch)));
        }
    }

    /// Returns when the gathered outcomes can be committed, unless another commit has to end first.
    fn next_commit(&self, node: &NodeContext) -> Option<Instant> {
        if self.gathered.is_empty() {
            return None;
        }
        let gathered = Gathered {
            is_awaited: self.awaited,
            is_full: self.gathered.len() >= self.batch,
            under_way: self.commits.len(),
        };
        self.turns.next(gathered, node.store.gathers_for())
    }
}

/// Commits outcomes until the node has ended.
pub(crate) async fn commit_all(node: Arc<NodeContext>, batcher: Arc<Mutex<Batcher>>) {
    let mut batcher = batcher.lock().await;
    let batcher = &mut *batcher;
    // Further outcomes may be refused until this function returns.
    let _refuses = node.refused.tasks.token();
    let mut ending = false;
    loop {
        batcher.commit_some(&node, ending);
        let idle = batcher.commits.is_empty();
        if ending && idle && batcher.gathered.is_empty() && batcher.queue.is_empty() {
            return;
        }
        let room = batcher.batch.saturating_sub(batcher.gathered.len());
        let next = batcher.next_commit(&node);
        tokio::select! {
            // Commits outcomes that have arrived, even if the node ends at the same moment.
            biased;
            count = batcher.queue.recv_many(&mut batcher.gathered, room), if room > 0 => if count == 0 { return },
            Some(()) = batcher.commits.next(), if !idle => {}
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            () = node.signals.ended.cancelled(), if !ending => ending = true,
        }
    }
}

/// Commits a batch. After a panic the result is unknown, and the remaining leases are found as lost
/// leases.
async fn commit_or_leave(node: Arc<NodeContext>, finished: Vec<Finished>) {
    let held: Vec<LockToken> = finished.iter().flat_map(Finished::holds).collect();
    if survived("commit", commit(&node, finished)).await.is_none() {
        // Siblings that the batch locked may run already.
        node.leases.lose(held.iter());
        for held in &held {
            node.ended(held, End::Unsure);
            node.may_have_lost(held.clone());
        }
    }
}

#[derive(Default)]
struct Batch {
    done: Vec<Completion>,
    failed: Vec<Failure>,
    released: Vec<Release>,
    /// The types of those released jobs for which no slot of their type was free.
    full: HashMap<JobId, String>,
    /// The slots of the jobs that are done.
    slots_of_done: Vec<Slot>,
    /// The slots of the other jobs.
    slots: Vec<Slot>,
    /// Attempts to count when the result of the commit is known.
    attempts: Vec<Attempt>,
}

async fn commit(node: &Arc<NodeContext>, finished: Vec<Finished>) {
    let mut batch = Batch::default();
    let now = Instant::now();
    for mut job in finished {
        let attempt = Attempt::of(job.job, &job.ending, job.finished_at);
        match job.ending {
            Ending::Done(completion) | Ending::Cancelled(completion) => {
                batch.done.push(completion);
                batch.slots_of_done.extend(job.slot.take());
            }
            Ending::Failed { failure, .. } => batch.failed.push(*failure),
            Ending::Release => batch.released.push(Release::of_attempt(job.held)),
            Ending::Unstarted => batch.released.push(Release::without_attempt(job.held)),
            Ending::Full => {
                let job_type = attempt.job.job_type.clone();
                batch.full.insert(job.held.id, job_type);
                batch.released.push(Release::without_attempt(job.held));
            }
            Ending::Committed { settled, sent } => {
                attempt.count(node, AttemptFate::Committed, now);
                node.ended(&job.held, end_of(&job.held, &next_instances(&settled)));
                let slots = job.slot.into_iter().collect();
                executor::follow_up(node, *settled, sent, slots).await;
                continue;
            }
            Ending::Parked { cancelled } => {
                if let Some(teller) = node.teller() {
                    teller.parked(&attempt.job, cancelled);
                }
                if cancelled {
                    node.departures.note(&attempt.job);
                }
                // A hint of its instance that came after the job was parked is tried again.
                node.ended(&job.held, End::Unsure);
                continue;
            }
            Ending::Left => {
                attempt.count(node, AttemptFate::Unknown, now);
                node.ended(&job.held, End::Unsure);
                node.may_have_lost(job.held);
                continue;
            }
            Ending::Lost => {
                tracing::warn!(
                    job = %job.held.id,
                    fence = %job.held.fence,
                    "the lock was lost while the job ran; its outcome was discarded"
                );
                counter!(m::FENCED, "operation" => "run").increment(1);
                attempt.count(node, AttemptFate::Lost, now);
                node.ended(&job.held, End::Unsure);
                node.may_have_lost(job.held);
                continue;
            }
        }
        batch.attempts.push(attempt);
        batch.slots.extend(job.slot);
    }
    let Batch {
        done,
        failed,
        released,
        full,
        slots_of_done,
        slots,
        attempts,
    } = batch;
    let told = Told::of(node, &attempts);
    let complete = send(node, "complete", done.iter().map(|d| &d.held), || async {
        let then = node.handoff(done.iter().map(|d| &d.held));
        node.store.complete(node.id, &done, &then).await
    });
    let fail = send(node, "fail", failed.iter().map(|f| &f.held), || async {
        let then = node.handoff(failed.iter().map(|f| &f.held));
        node.store.fail(node.id, &failed, &then).await
    });
    let release = send(
        node,
        "release",
        released.iter().map(|r| &r.held),
        || async { node.store.release(node.id, &released).await },
    );
    // The results of one part are acted on without waiting for the other parts.
    let (completed, moved, released_batch) = tokio::join!(
        async {
            let (mut completed, sent) = complete.await;
            told.completed(&done, &completed.outcome);
            executor::follow_up(node, completed.outcome.take_next(), sent, slots_of_done).await;
            completed
        },
        async {
            let (mut moved, sent) = fail.await;
            told.failed(&failed, &moved.outcome);
            executor::follow_up(node, moved.outcome.take_next(), sent, slots).await;
            moved
        },
        async {
            let (mut released_batch, _) = release.await;
            told.released(&released, &released_batch.outcome);
            let ready = std::mem::take(&mut released_batch.outcome.ready);
            let ready = node.keep_full(ready, &full);
            node.hook.publish(Cause::Requeue, ready);
            released_batch
        },
    );
    let parts = [&completed, &moved, &released_batch];
    let left: HashSet<JobId> = parts
        .iter()
        .flat_map(|part| &part.outcome.left)
        .copied()
        .collect();
    let mut attempts_left = HashMap::new();
    let ids = |of: fn(&Committed) -> &[JobId]| -> HashSet<JobId> {
        parts.iter().flat_map(|part| of(part)).copied().collect()
    };
    let (committed, unknown) = (ids(|part| &part.outcome.applied), ids(|part| &part.unknown));
    let cancelled = ids(|part| &part.outcome.cancelled);
    let now = Instant::now();
    for attempt in attempts {
        if left.contains(&attempt.job.id) {
            attempts_left.insert(attempt.job.id, attempt);
            continue;
        }
        let fate = if cancelled.contains(&attempt.job.id) {
            AttemptFate::Cancelled
        } else if committed.contains(&attempt.job.id) {
            AttemptFate::Committed
        } else if unknown.contains(&attempt.job.id) {
            AttemptFate::Unknown
        } else {
            AttemptFate::Lost
        };
        attempt.count(node, fate, now);
    }
    if left.is_empty() {
        return;
    }
    let refused = done.into_iter().map(Refused::Done);
    let refused = refused.chain(failed.into_iter().map(Refused::Failed));
    for refused in refused.chain(released.into_iter().map(Refused::Released)) {
        let id = refused.held().id;
        if left.contains(&id) {
            keep_trying(node, refused, attempts_left.remove(&id)).await;
        }
    }
}

/// Commits one kind of outcome and retries until the database has answered. When the node ends,
/// gives up once no lease of the batch is trusted. Also returns when the answered statement was sent: the
/// leases that it wrote count from then.
async fn send<'a, F, Fut>(
    node: &NodeContext,
    operation: &'static str,
    held: impl Iterator<Item = &'a LockToken>,
    commit: F,
) -> (Committed, Instant)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<BatchOutcome, StoreError>>,
{
    let held: Vec<&LockToken> = held.collect();
    if held.is_empty() {
        return (Committed::default(), Instant::now());
    }
    node.instances.end_soon(held.iter().copied());
    if operation == "complete" {
        histogram!(m::COMPLETE_BATCH).record(held.len() as f64);
    }
    let longest = LONGEST_PAUSE.min(node.options.lease / 6);
    let mut pause = FIRST_PAUSE;
    // Whether an earlier attempt may have been committed.
    let mut in_doubt = false;
    loop {
        let sent = Instant::now();
        match node.asks(commit()).await {
            Ok(outcome) => {
                if operation == "complete" {
                    crash_point!("completion-committed");
                }
                let committed = batch_outcome(node, operation, &held, outcome, in_doubt);
                return (committed, sent);
            }
            Err(error) => {
                in_doubt |= !error.changed_nothing();
                let alive = held.iter().any(|h| node.leases.trusts(h));
                tracing::warn!(
                    operation,
                    jobs = held.len(),
                    %error,
                    alive,
                    "could not commit outcomes; retrying"
                );
                if node.signals.ended.is_cancelled() && !alive {
                    for held in held {
                        node.ended(held, End::Unsure);
                    }
                    return (Committed::default(), sent);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        }
    }
}
