//! The executor: runs one locked job and reports its outcome.
//!
//! ```text
//! quarantine ─► admit ─► open ─► invoke ─► interpret ─► Finished ─► completer or row batch
//!                         ▲                    │
//!                         └────── again ◄──────┘ a fault of the database
//! ```
//!
//! Each job ends in exactly one [`Finished`], even if its handler fails, panics, exceeds its
//! timeout or ignores a stop signal.

mod admit;
mod again;
mod completion;
mod failure;
mod fault;
mod interpret;
mod invoke;
mod open;
mod run;
mod stopped;

use std::pin::pin;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use metrics::counter;
use tokio::time::Instant;

use self::admit::{Given, admit, given_of, permit_again};
use self::again::Faults;
use self::completion::DatabaseTime;
use self::fault::Fault;
use self::interpret::interpret;
use self::invoke::invoke;
use self::open::{Opened, open};
use self::run::Run;
use crate::job::{Job, LockToken, LockedJob};
use crate::producer::commit_hook::Cause;
use crate::runtime::supervisor::survived;
use crate::store::BatchOutcome;
use crate::telemetry::metrics as m;
use crate::worker::cached_metrics::TypeMetrics;
use crate::worker::context::NodeContext;
use crate::worker::finished::{Ending, Finished, Outcomes};
use crate::worker::lease_book::Lease;
use crate::worker::quarantine::{self, Admission};
use crate::worker::release;
use crate::worker::slot_pool::Slot;
use crate::worker::stages::Stages;

/// Starts a locked job on a slot.
pub(crate) fn start(
    node: &Arc<NodeContext>,
    locked: LockedJob,
    sent: Instant,
    stages: Stages,
    slot: Slot,
) {
    if let Some(lease) = hold(node, &locked, sent) {
        start_under(node, locked, lease, stages, slot, Outcomes::OfNode);
    }
}

/// Starts jobs that were locked without a hint, each on its own slot. `source` is the kind of
/// statement that locked them.
pub(crate) fn start_unhinted(
    node: &Arc<NodeContext>,
    jobs: Vec<LockedJob>,
    source: &'static str,
    sent: Instant,
    slots: impl Iterator<Item = Slot>,
) {
    counter!(m::JOBS_LOCKED, "source" => source).increment(jobs.len() as u64);
    let stages = Stages::locked_now();
    // The statement locks at most as many jobs as there are slots.
    for (job, slot) in jobs.into_iter().zip(slots) {
        start(node, job, sent, stages, slot);
    }
}

/// Starts a job that was locked alone, like [`start`]. If its handler usually keeps the thread only
/// briefly, this task polls the job first, and spawns a task only if the job does not end in its
/// first poll.
pub(crate) fn start_at_once(
    node: &Arc<NodeContext>,
    locked: LockedJob,
    sent: Instant,
    stages: Stages,
    slot: Slot,
) {
    let Some(lease) = hold(node, &locked, sent) else {
        return;
    };
    // A shutdown waits for this job as for a task.
    let _counted = node.jobs.token();
    let handler = node.served.handler(&locked.job.job_type);
    let inline_starts = handler.map(|handler| handler.inline_starts.clone());
    let (_, mut life) = life(node, locked, lease, stages, slot, Outcomes::OfNode);
    if let Some(starts) = inline_starts.filter(|starts| starts.are_short()) {
        let began = Instant::now();
        let ended = (&mut life).now_or_never();
        starts.note_whole(began.elapsed());
        if ended.is_some() {
            return;
        }
    }
    node.jobs.spawn(life);
}

fn hold(node: &NodeContext, locked: &LockedJob, sent: Instant) -> Option<Arc<Lease>> {
    let held = locked.held();
    let lease = node.leases.hold(held.clone(), locked.strikes, sent)?;
    node.instances.hold(&held);
    Some(lease)
}

/// Starts a job under a lock that is already held. Its outcome goes to `outcomes`.
pub(crate) fn start_under(
    node: &Arc<NodeContext>,
    locked: LockedJob,
    lease: Arc<Lease>,
    stages: Stages,
    slot: Slot,
    outcomes: Outcomes,
) -> Arc<Job> {
    let (job, life) = life(node, locked, lease, stages, slot, outcomes);
    node.jobs.spawn(life);
    job
}

/// Returns the job, and the future that runs it and reports its outcome.
fn life(
    node: &Arc<NodeContext>,
    locked: LockedJob,
    lease: Arc<Lease>,
    stages: Stages,
    slot: Slot,
    outcomes: Outcomes,
) -> (Arc<Job>, BoxFuture<'static, ()>) {
    let held = locked.held();
    let node = node.clone();
    let LockedJob {
        job,
        strikes,
        locked_at,
        ..
    } = locked;
    let time = DatabaseTime {
        locked_at,
        answered: stages.answered,
    };
    let started = job.clone();
    if let Some(teller) = node.teller() {
        teller.locked(&job, held.fence);
    }
    // Boxed because the runtime moves a future several times, and this one has kilobytes.
    let life = Box::pin(async move {
        // Boxed when it is needed, so that it does not enlarge the future of each job.
        let limits = async |slot| Box::pin(given_of(&node, &job, &held, &lease, slot)).await;
        let admission = quarantine::admit(&node, &job, strikes, &held, &lease, slot, limits).await;
        let (ending, slot, suspect) = match admission {
            Admission::Start(mut slot, suspect, given) => {
                let given = given.unwrap_or_else(|| Given {
                    type_slot: slot.of_type.take(),
                    ..Given::default()
                });
                // Pinned here, because every call that takes this future by value copies it, and it
                // has a kilobyte.
                let running = pin!(run(&node, &job, &held, &lease, stages, time, given));
                // Without an ending the lease would be renewed forever.
                let ending = survived("job", running).await.unwrap_or(Ending::Left);
                lease.ends(true);
                (ending, Some(slot), suspect)
            }
            Admission::End(ending, slot) => {
                lease.ends(true);
                (ending.without_attempt(), slot, None)
            }
        };
        // The slot of an exclusive job passes to the next job of its instance. A suspect keeps all
        // slots until its outcome is committed: if the next suspect ended the node before that,
        // this job would get the strike.
        let (passed_on, kept) = if job.exclusive || suspect.is_some() {
            (slot, None)
        } else {
            (None, slot)
        };
        let finished = Finished {
            held,
            ending,
            finished_at: Instant::now(),
            slot: passed_on,
            kept,
            job,
        };
        match outcomes {
            Outcomes::OfNode => node.accept(finished).await,
            // The channel has room for every job of the batch. The message carries the slot.
            Outcomes::OfBatch(batch) => drop(batch.send(finished).await),
        }
    });
    (started, life)
}

/// Runs a job to its ending: admits it, and repeats the attempt after faults of the database.
async fn run(
    node: &Arc<NodeContext>,
    job: &Arc<Job>,
    held: &LockToken,
    lease: &Arc<Lease>,
    stages: Stages,
    time: DatabaseTime,
    given: Given,
) -> Ending {
    let mut run = match admit(node, job, held, lease, given).await {
        Ok(run) => run,
        Err(ending) => return ending.without_attempt(),
    };
    let metrics = node.cached_metrics.job_type(&job.job_type);
    let starts = Utc::now();
    tracing::debug!(job = %job.id, job_type = %job.job_type, fence = %held.fence, "job starts");
    let started = Instant::now();
    let mut faults = Faults::of(&run);
    let mut told = false;
    let mut ending = loop {
        if let Some(ending) = faults.failed_before(&run) {
            break ending;
        }
        let permit = run.permit.as_ref();
        let first_poll = || {
            if let Some(permit) = permit {
                permit.started();
            }
            // The waiting time of the job ended with its first attempt.
            if !std::mem::replace(&mut told, true) {
                run.registration.inline_starts.note(started.elapsed());
                record_start(node, &metrics, job, stages, starts);
                if let Some(teller) = node.teller() {
                    teller.started(job);
                }
            }
        };
        let fault = match run_once(&run, time, first_poll).await {
            Ok(ending) => break ending,
            Err(fault) => fault,
        };
        // Rare futures are boxed, so that they do not enlarge the future of each job.
        if let Some(ending) = Box::pin(faults.one_more(&run, fault)).await {
            break ending;
        }
        if let Err(ending) = Box::pin(permit_again(&mut run)).await {
            break ending;
        }
    };
    faults.keep(&run, &ending);
    if !told {
        ending = ending.without_attempt();
    }
    let (outcome, took) = (ending.outcome(), started.elapsed());
    metrics.executed(outcome, took);
    run.record(&mut ending, took);
    if outcome == "done" {
        tracing::debug!(
            job = %job.id, job_type = %job.job_type, seconds = took.as_secs_f64(), "job done"
        );
    }
    ending
}

/// Makes one attempt: opens it, calls the handler and interprets the answer. Returns a fault if the
/// database fails the attempt.
async fn run_once(
    run: &Run<'_>,
    time: DatabaseTime,
    first_poll: impl FnOnce(),
) -> Result<Ending, Fault> {
    let Opened {
        transaction,
        stop,
        line_ends,
    } = open(run).await?;
    crash_point!("before-handler");
    if run
        .permit
        .as_ref()
        .is_some_and(|permit| !permit.may_start())
    {
        return Ok(Ending::Release);
    }
    if run.node.signals.stop_jobs.is_cancelled() {
        // It waited for its permit or its connection until now.
        return Ok(Ending::Release);
    }
    let started = Instant::now();
    let result = invoke(run, &transaction, &stop, line_ends, first_poll).await;
    interpret(run, &transaction, result, started, time).await
}

/// Records the waiting time of the job before its first attempt.
fn record_start(
    node: &NodeContext,
    metrics: &TypeMetrics,
    job: &Job,
    stages: Stages,
    now: DateTime<Utc>,
) {
    let lane = node.cached_metrics.lane(&job.lane);
    m::latency(&lane.lock_to_start, "lock_to_start", stages.locked_at, now);
    // A retry or a timer becomes ready long after its commit. Its waiting time starts when it is
    // ready.
    let ready = stages.committed_at.unwrap_or(job.ready_at);
    m::latency(&lane.commit_to_start, "commit_to_start", ready, now);
    let wanted = job
        .due_at
        .map_or(ready, |due| due.max(ready.min(job.ready_at)));
    m::latency(&metrics.queue_wait, "queue_wait", wanted, now);
}

/// Acts on the results of a committed batch: starts jobs, publishes hints and reports a timer.
pub(crate) async fn follow_up(
    node: &Arc<NodeContext>,
    settled: BatchOutcome,
    sent: Instant,
    mut slots: Vec<Slot>,
) {
    let ready = settled.ready;
    node.hook
        .announce(&*node.store, Cause::Handoff, ready)
        .await;
    node.hook.timer_set(settled.timer);
    if node.signals.draining.is_cancelled() {
        // The statement that locked these jobs was sent before the drain.
        let taken = settled.next.iter().map(LockedJob::held);
        return release::release(node, taken.collect()).await;
    }
    let stages = Stages::locked_now();
    for next in settled.next {
        crash_point!("hand-over-taken");
        // Each of these jobs follows one that ended, which normally left its slot. A suspect left
        // all slots of the process.
        let slot = match slots.pop() {
            Some(slot) => slot.into_one(),
            None => node.slots.of_node.take().await,
        };
        counter!(m::JOBS_LOCKED, "source" => "hand-over").increment(1);
        start(node, next, sent, stages, slot);
    }
}
