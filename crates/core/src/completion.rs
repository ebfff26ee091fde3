//! Completion: outcomes are committed in batches, each guarded by its fence.
//!
//! While one batch is being committed the next one gathers, and commits keep a distance of [`GATHER`]: at low
//! load an outcome is committed at once, at high load hundreds at a time. Somebody waits for the end of an
//! exclusive job, so nothing gathers behind that one. A batch that the database could not take is tried again
//! until the leases in it have run out; then the jobs are left to whoever takes them over.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, histogram};
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::commit_hook::Cause;
use crate::confession::confess;
use crate::created::earliest;
use crate::executor;
use crate::finished::{Ending, Finished};
use crate::job::{Held, Job, JobId};
use crate::metrics as m;
use crate::shared::Shared;
use crate::store::{Completion, Failure, Settled, StoreError};

/// The most outcomes in one batch.
const BATCH: usize = 512;

/// Between the beginnings of two commits, where nobody waits for what the second one says. At a thousand short jobs
/// a second this makes one commit of four.
const GATHER: Duration = Duration::from_millis(4);

/// Commit outcomes until every sender is gone.
pub(crate) async fn commit_all(node: Arc<Shared>, queue: Arc<Mutex<mpsc::Receiver<Finished>>>) {
    let mut queue = queue.lock().await;
    let mut batch = Vec::with_capacity(BATCH);
    let mut not_before = Instant::now();
    loop {
        tokio::select! {
            // What has arrived is committed, although the end has come in the same moment.
            biased;
            count = queue.recv_many(&mut batch, BATCH) => if count == 0 { return },
            () = node.ended.cancelled() => return,
        }
        gather(&node, &mut queue, &mut batch, not_before).await;
        not_before = Instant::now() + GATHER;
        commit(&node, std::mem::take(&mut batch)).await;
    }
}

/// What ends until then is committed along.
async fn gather(
    node: &Shared,
    queue: &mut mpsc::Receiver<Finished>,
    batch: &mut Vec<Finished>,
    until: Instant,
) {
    while batch.len() < BATCH && !batch.iter().any(Finished::is_awaited) {
        let room = BATCH - batch.len();
        tokio::select! {
            biased;
            () = node.ended.cancelled() => return,
            () = tokio::time::sleep_until(until) => return,
            count = queue.recv_many(batch, room) => if count == 0 { return },
        }
    }
}

#[derive(Default)]
struct Batch {
    done: Vec<Completion>,
    failed: Vec<Failure>,
    released: Vec<Held>,
    slots: Vec<OwnedSemaphorePermit>,
    /// What is counted once it is known to be committed.
    attempts: Vec<Attempt>,
}

/// An attempt that ended, to be counted.
pub(crate) struct Attempt {
    job: Arc<Job>,
    outcome: &'static str,
    finished_at: Instant,
}

impl Attempt {
    pub(crate) fn of(job: Arc<Job>, ending: &Ending, finished_at: Instant) -> Self {
        Self {
            job,
            outcome: ending.outcome(),
            finished_at,
        }
    }

    pub(crate) fn count(self, node: &Shared, committed: bool) {
        let outcome = if committed { self.outcome } else { "lost-lock" };
        node.meters.job_type(&self.job.job_type).finished(outcome);
        let took = self.finished_at.elapsed().as_secs_f64();
        node.meters.finish_to_complete.record(took);
    }
}

async fn commit(node: &Arc<Shared>, finished: Vec<Finished>) {
    let mut batch = Batch::default();
    let mut lost = Vec::new();
    for job in finished {
        let attempt = Attempt::of(job.job, &job.ending, job.finished_at);
        match job.ending {
            Ending::Done(completion) => batch.done.push(completion),
            Ending::Failed { failure, .. } => batch.failed.push(failure),
            Ending::Release => batch.released.push(job.held),
            Ending::Committed(settled) => {
                attempt.count(node, true);
                node.leases.forget(&job.held);
                let slots = job.slot.into_iter().collect();
                executor::follow_up(node, *settled, Instant::now(), slots).await;
                continue;
            }
            Ending::Left => {
                tracing::warn!(job = %job.held.id, fence = %job.held.fence, "the job's lease is left to end");
                attempt.count(node, false);
                node.leases.forget(&job.held);
                continue;
            }
            Ending::Lost => {
                tracing::warn!(job = %job.held.id, fence = %job.held.fence, "the lock was lost while the job ran; nothing was changed");
                counter!(m::FENCED, "operation" => "run").increment(1);
                attempt.count(node, false);
                node.leases.forget(&job.held);
                lost.push(job.held);
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
        slots,
        attempts,
    } = batch;
    let then = &node.hand_over();
    let sent = Instant::now();
    let (completed, moved, given_back) = tokio::join!(
        settle(node, "complete", done.iter().map(|d| &d.held), || node
            .store
            .complete(node.id, &done, then)),
        settle(node, "fail", failed.iter().map(|f| &f.held), || node
            .store
            .fail(node.id, &failed, then)),
        settle(node, "release", released.iter(), || node
            .store
            .release(node.id, &released)),
    );
    let parts = [&completed, &moved, &given_back];
    let committed: HashSet<JobId> = parts.iter().flat_map(|p| &p.applied).copied().collect();
    for attempt in attempts {
        let committed = committed.contains(&attempt.job.id);
        attempt.count(node, committed);
    }
    let held = done.iter().map(|d| &d.held);
    let held = held.chain(failed.iter().map(|f| &f.held)).chain(&released);
    lost.extend(held.filter(|h| !committed.contains(&h.id)).cloned());
    confess(node, lost);
    let mut next = Settled::default();
    for part in [completed, moved] {
        next.next.extend(part.next);
        next.ready.extend(part.ready);
        next.timer = earliest(next.timer, part.timer);
    }
    node.hook.publish(Cause::GiveBack, given_back.ready);
    executor::follow_up(node, next, sent, slots).await;
}

/// Commit one kind of outcome, again and again until it is committed or every lease in it has ended.
async fn settle<'a, F, Fut>(
    node: &Shared,
    operation: &'static str,
    held: impl Iterator<Item = &'a Held>,
    commit: F,
) -> Settled
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Settled, StoreError>>,
{
    let held: Vec<&Held> = held.collect();
    if held.is_empty() {
        return Settled::default();
    }
    if operation == "complete" {
        histogram!(m::COMPLETE_BATCH).record(held.len() as f64);
    }
    let mut pause = Duration::from_millis(20);
    loop {
        match commit().await {
            Ok(settled) => {
                if operation == "complete" {
                    crash_point!("completion-committed");
                }
                let applied: std::collections::HashSet<_> = settled.applied.iter().collect();
                for held in held {
                    if !applied.contains(&held.id) {
                        counter!(m::FENCED, "operation" => operation).increment(1);
                        tracing::warn!(job = %held.id, fence = %held.fence, operation, "the lock was lost; nothing was changed");
                    }
                    node.leases.forget(held);
                }
                return settled;
            }
            Err(error) => {
                let alive = held.iter().any(|h| node.leases.trusts(h));
                tracing::warn!(operation, jobs = held.len(), %error, alive, "outcomes could not be committed");
                if !alive {
                    // Another node takes them over; whoever is first to complete wins.
                    for held in held {
                        node.leases.forget(held);
                    }
                    return Settled::default();
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}
