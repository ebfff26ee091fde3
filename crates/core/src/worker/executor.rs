//! The executor: runs one locked job and reports how it ended.
//!
//! A job ends in exactly one [`Finished`], whether its handler answers, fails, panics, exceeds its
//! timeout or ignores a stop. A handler that was asked to stop has [`GRACE`] to end; then its
//! future is dropped.

mod again;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use metrics::counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use self::again::{Faults, Next, Ran};
use crate::job::new_job::MAX_COUNT;
use crate::job::repeat;
use crate::job::retry::RetryPolicy;
use crate::job::{Job, LockToken, LockedJob};
use crate::producer::commit_hook::Cause;
use crate::runtime::supervisor::{panic_message, survived};
use crate::store::{Completion, Destination, Failure, Settled, StoreError};
use crate::telemetry::metrics as m;
use crate::worker::cached_metrics::TypeMetrics;
use crate::worker::context::NodeContext;
use crate::worker::finished::{Ending, Finished};
use crate::worker::handler::{
    HandlerError, HandlerResult, Outcome, Registration, Running, Stop, StopSignal, Verdict,
};
use crate::worker::handler_transaction::HandlerTransaction;
use crate::worker::lease_book::Lease;
use crate::worker::lost_leases;
use crate::worker::quarantine::{self, Admission};
use crate::worker::unreadable;

/// How long a handler may take to end after it was asked to stop.
const GRACE: Duration = Duration::from_secs(2);
/// The delay of the next attempt after a conflict.
const CONFLICT_WAIT: Duration = Duration::from_millis(100);
/// The maximum number of bytes of a stored message. A stack may have sixteen times as many.
const MESSAGE_BYTES: usize = 4_000;

/// The times at which a job passed its stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    pub(crate) committed_at: Option<DateTime<Utc>>,
    pub(crate) locked_at: DateTime<Utc>,
}

/// The destination of a job's outcome.
pub(crate) enum Outcomes {
    /// The completer, which commits it with others.
    OfNode,
    /// The batch that holds the job's row.
    OfBatch(mpsc::Sender<Finished>),
}

/// Starts a locked job on a slot.
pub(crate) fn start(
    node: &Arc<NodeContext>,
    locked: LockedJob,
    sent: Instant,
    stages: Stages,
    slot: OwnedSemaphorePermit,
) {
    if let Some(lease) = hold(node, &locked, sent) {
        start_under(node, locked, lease, stages, slot, Outcomes::OfNode);
    }
}

/// Starts jobs that were locked without a hint, each on its own slot. `source` names the kind of
/// statement that locked them.
pub(crate) fn start_unhinted(
    node: &Arc<NodeContext>,
    jobs: Vec<LockedJob>,
    source: &'static str,
    sent: Instant,
    slots: impl Iterator<Item = OwnedSemaphorePermit>,
) {
    counter!(m::JOBS_LOCKED, "source" => source).increment(jobs.len() as u64);
    let stages = Stages {
        committed_at: None,
        locked_at: Utc::now(),
    };
    // The statement locks at most as many jobs as there are slots.
    for (job, slot) in jobs.into_iter().zip(slots) {
        start(node, job, sent, stages, slot);
    }
}

/// Starts a job that was locked alone, like [`start`]. If its handler is expected to keep this
/// thread only briefly, the job has its first turn here. A task is spawned only if the job needs
/// more turns.
pub(crate) fn start_at_once(
    node: &Arc<NodeContext>,
    locked: LockedJob,
    sent: Instant,
    stages: Stages,
    slot: OwnedSemaphorePermit,
) {
    let Some(lease) = hold(node, &locked, sent) else {
        return;
    };
    // A shutdown waits for this job as it does for a task.
    let _counted = node.jobs.token();
    let handler = node.served.handler(&locked.job.job_type);
    let turns = handler.map(|handler| handler.first_turns);
    let (_, mut life) = life(node, locked, lease, stages, slot, Outcomes::OfNode);
    if let Some(turns) = turns.filter(|turns| turns.are_short()) {
        let began = Instant::now();
        let ended = (&mut life).now_or_never();
        turns.note_whole(began.elapsed());
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
    slot: OwnedSemaphorePermit,
    outcomes: Outcomes,
) -> Arc<Job> {
    let (job, life) = life(node, locked, lease, stages, slot, outcomes);
    node.jobs.spawn(life);
    job
}

/// Returns the job, and the future that runs it and passes its outcome on.
fn life(
    node: &Arc<NodeContext>,
    locked: LockedJob,
    lease: Arc<Lease>,
    stages: Stages,
    slot: OwnedSemaphorePermit,
    outcomes: Outcomes,
) -> (Arc<Job>, BoxFuture<'static, ()>) {
    let held = locked.held();
    let node = node.clone();
    let LockedJob { job, strikes, .. } = locked;
    let job = Arc::new(job);
    let started = job.clone();
    // Boxed because the runtime moves a future several times, and this one has kilobytes.
    let life = Box::pin(async move {
        let admission = quarantine::admit(&node, &job, strikes, &held, &lease, slot).await;
        let (ending, slot, suspect) = match admission {
            Admission::Start(slot, suspect) => {
                let running = run(&node, &job, &held, &lease, stages);
                // Without an ending the lease would be renewed forever.
                let ending = survived("job", running).await.unwrap_or(Ending::Left);
                (ending, Some(slot), suspect)
            }
            Admission::End(ending, slot) => (ending, slot, None),
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

/// Returns one of the slots. A suspect had all slots of the node; the next job needs one.
fn one_of(mut slots: OwnedSemaphorePermit) -> OwnedSemaphorePermit {
    slots.split(1).unwrap_or(slots)
}

async fn run(
    node: &Arc<NodeContext>,
    job: &Arc<Job>,
    held: &LockToken,
    lease: &Arc<Lease>,
    stages: Stages,
) -> Ending {
    let Some(registration) = node.served.handler(&job.job_type) else {
        // The lock statement asks only for types that this node serves.
        return Ending::Release;
    };
    let _type_slot = match type_slot(node, job, &registration, lease).await {
        Some(permit) => permit,
        None => return interrupted(node, lease),
    };
    if !node.leases.trusts(held) {
        return Ending::Lost;
    }
    if let Some(fault) = &job.unreadable {
        return unreadable::end(node, job, held, fault);
    }
    if job.repeat_until.is_some_and(|until| job.ready_at > until) && job.repeat.is_some() {
        // A repeating timer that fires after its end is removed without running.
        return Ending::Done(completion(held, job, None));
    }
    if let Err(invalid) = repeat::check(job) {
        if let Some(more) = node.throttled_lines.now("can't run") {
            tracing::warn!(
                job = %job.id, job_type = %job.job_type, %invalid, more,
                "the job can't run and becomes a dead letter"
            );
        }
        let error = HandlerError::unrecoverable(format!("{invalid}; the job did not run"));
        return failure(node, held, job, &registration, error, "dead-letter");
    }
    let metrics = node.cached_metrics.job_type(&job.job_type);
    let starts = Utc::now();
    tracing::debug!(job = %job.id, job_type = %job.job_type, fence = %held.fence, "job starts");
    let started = Instant::now();
    let mut faults = Faults::none();
    let mut told = false;
    loop {
        let first_turn = || {
            // The waiting time of the job ended with its first attempt.
            if !std::mem::replace(&mut told, true) {
                registration.first_turns.note(started.elapsed());
                record_start(node, &metrics, job, stages, starts);
            }
        };
        let fault = match run_once(node, job, held, lease, &registration, first_turn).await {
            Ok(ending) => {
                metrics.executed(ending.outcome(), started.elapsed());
                return ending;
            }
            Err(fault) => fault,
        };
        let Fault {
            error,
            is_conflict,
            ran,
        } = fault;
        let next = faults.one_more(node, held, lease, &registration, &error, ran);
        let ending = match next.await {
            Next::Again => continue,
            Next::End(ending) => ending,
            Next::Spent if is_conflict => {
                failure(node, held, job, &registration, conflict(error), "conflict")
            }
            Next::Spent => {
                let message = format!(
                    "the database repeatedly failed the job's transaction while it answered other statements: {error}"
                );
                let error = HandlerError::retry(message);
                failure(node, held, job, &registration, error, "retry")
            }
        };
        metrics.executed(ending.outcome(), started.elapsed());
        return ending;
    }
}

/// A fault of the database: nothing was committed, and the job is not to blame.
struct Fault {
    error: String,
    /// Whether two transactions were in conflict.
    is_conflict: bool,
    ran: Ran,
}

impl Fault {
    fn of(error: &StoreError, ran: Ran) -> Self {
        Self {
            is_conflict: error.is_conflict(),
            error: error.to_string(),
            ran,
        }
    }
}

/// Runs one attempt. Returns a fault if the database fails it.
async fn run_once(
    node: &Arc<NodeContext>,
    job: &Arc<Job>,
    held: &LockToken,
    lease: &Arc<Lease>,
    registration: &Registration,
    first_turn: impl FnOnce(),
) -> Result<Ending, Fault> {
    let mut line_ends: BoxFuture<'static, ()> = Box::pin(std::future::pending());
    let mut stop = Stop(StopSignal::OfLease(lease.clone()));
    let transaction = if registration.options.in_transaction {
        let transaction = node
            .store
            .begin_completing(Arc::new(node.hook.clone()))
            .await;
        let transaction = transaction.map_err(|error| Fault::of(&error, Ran::NotAtAll))?;
        line_ends = transaction.line_ends();
        // Another attempt may follow this one and must not be stopped with it.
        stop = Stop(StopSignal::OfAttempt(lease.stop.token().child_token()));
        HandlerTransaction::holding(transaction)
    } else {
        HandlerTransaction::default()
    };
    let running = Running {
        payload: (),
        job: job.clone(),
        fence: held.fence,
        node: node.id,
        stop: stop.clone(),
        transaction: transaction.clone(),
    };
    crash_point!("before-handler");
    let started = Instant::now();
    let ended = attempt(
        node,
        registration,
        running,
        lease,
        &stop,
        line_ends,
        first_turn,
    );
    let ended = ended.await;
    if let (Ended::Answered(Ok(Outcome::Done)), true) =
        (&ended, registration.options.in_transaction)
    {
        crash_point!("effect-done");
        let completion = completion(held, job, Some(started.elapsed()));
        return complete_in_transaction(node, &transaction, completion, job, registration).await;
    }
    // If the handler leaked the guard, the transaction is rolled back when the guard drops.
    let undone = match transaction.take() {
        Some(transaction) => transaction.rollback().await,
        None => Ok(()),
    };
    // An error that follows from a broken connection is not a failure of the job.
    let failed = match &ended {
        Ended::Answered(Err(error)) => Some(&error.message),
        Ended::Panicked(message) => Some(message),
        _ => None,
    };
    if let (Some(message), Err(error), false) = (failed, undone, node.stop_jobs.is_cancelled()) {
        return Err(Fault {
            error: format!("{error} ({message})"),
            is_conflict: false,
            ran: Ran::TheHandler,
        });
    }
    Ok(match ended {
        Ended::Answered(Ok(Outcome::Done)) => {
            crash_point!("effect-done");
            Ending::Done(completion(held, job, Some(started.elapsed())))
        }
        Ended::Answered(Ok(Outcome::Snooze(delay))) => Ending::Failed {
            failure: Failure {
                held: held.clone(),
                to: Destination::Retry {
                    delay,
                    retries: job.retries,
                    failures: job.failures,
                },
                message: None,
                stack: None,
            },
            outcome: "snooze",
        },
        // A handler that a shutdown stopped ends with an error. No attempt is spent.
        Ended::Answered(Err(_)) if node.stop_jobs.is_cancelled() => Ending::Release,
        Ended::Answered(Err(error)) => {
            let outcome = match error.verdict {
                Verdict::Conflict => "conflict",
                Verdict::Unrecoverable => "dead-letter",
                Verdict::Retry(_) if job.retries <= 1 => "dead-letter",
                Verdict::Retry(_) => "retry",
            };
            failure(node, held, job, registration, error, outcome)
        }
        Ended::Panicked(message) => {
            tracing::error!(job = %job.id, job_type = %job.job_type, message, "the handler panicked");
            let error = HandlerError::retry(format!("the handler panicked: {message}"));
            failure(node, held, job, registration, error, "panic")
        }
        Ended::TimedOut(limit) => {
            let error = HandlerError::retry(format!(
                "the handler ran longer than its timeout of {limit:?}"
            ));
            failure(node, held, job, registration, error, "timeout")
        }
        Ended::LostLease => Ending::Lost,
        Ended::LostLine => {
            return Err(Fault {
                error: "the connection of the job's transaction does not respond".to_owned(),
                is_conflict: false,
                ran: Ran::TheHandler,
            });
        }
        Ended::Stopped => Ending::Release,
    })
}

/// Waits for a slot of the type, if the type has a limit of its own.
async fn type_slot(
    node: &NodeContext,
    job: &Job,
    registration: &Registration,
    lease: &Lease,
) -> Option<Option<OwnedSemaphorePermit>> {
    let Some(limit) = registration.options.concurrency else {
        return Some(None);
    };
    let slots = node.type_slots(&job.job_type, || Arc::new(Semaphore::new(limit)));
    tokio::select! {
        biased;
        () = lease.stop.token().cancelled() => None,
        permit = slots.acquire_owned() => permit.ok().map(Some),
        // A job that cannot start is released now, not at the end of the shutdown.
        () = node.draining.cancelled() => None,
    }
}

fn interrupted(node: &NodeContext, lease: &Lease) -> Ending {
    if lease.lost.is_given() {
        Ending::Lost
    } else {
        tracing::debug!(node = %node.id, "releasing a job without an outcome");
        Ending::Release
    }
}

enum Ended {
    Answered(HandlerResult),
    Panicked(String),
    TimedOut(Duration),
    LostLease,
    /// The connection of its transaction does not respond.
    LostLine,
    Stopped,
}

/// Runs the handler and returns how it ended.
async fn attempt(
    node: &NodeContext,
    registration: &Registration,
    running: Running,
    lease: &Lease,
    stop: &Stop,
    line_ends: BoxFuture<'static, ()>,
    first_turn: impl FnOnce(),
) -> Ended {
    let handler = AssertUnwindSafe(registration.handler.run(running)).catch_unwind();
    tokio::pin!(handler);
    // Most short jobs end at once and need no timer and no signals.
    let first = futures_util::poll!(&mut handler);
    first_turn();
    if let Poll::Ready(ended) = first {
        return answer(ended);
    }
    let limit = registration.options.timeout;
    let timeout = after(limit);
    tokio::pin!(timeout);
    let reason = tokio::select! {
        biased;
        ended = &mut handler => return answer(ended),
        () = &mut timeout => Ended::TimedOut(limit.unwrap_or_default()),
        () = lease.lost.token().cancelled() => Ended::LostLease,
        () = line_ends => Ended::LostLine,
        () = node.stop_jobs.cancelled() => Ended::Stopped,
    };
    stop.cancel();
    tokio::select! {
        biased;
        ended = &mut handler => match reason {
            // The handler ended in time, so its outcome counts. If the lease may be lost, the guard
            // of the completion decides.
            Ended::Stopped => answer(ended),
            Ended::LostLease if matches!(ended, Ok(Ok(Outcome::Done))) => answer(ended),
            other => other,
        },
        () = tokio::time::sleep(GRACE) => reason,
    }
}

async fn after(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

fn answer(ended: std::thread::Result<HandlerResult>) -> Ended {
    match ended {
        Ok(result) => Ended::Answered(result),
        Err(panic) => Ended::Panicked(panic_message(&*panic)),
    }
}

/// Returns the completion of a job that ran for `ran`. None means that the end of its series is
/// past: no occurrence follows.
fn completion(held: &LockToken, job: &Job, ran: Option<Duration>) -> Completion {
    // By the database's clock, which set `ready_at`. This machine's clock may be wrong by hours,
    // and the next occurrence would be late by as much.
    let now = |ran| {
        let ran = chrono::Duration::from_std(ran).unwrap_or_default();
        job.ready_at.checked_add_signed(ran).unwrap_or(job.ready_at)
    };
    Completion {
        held: held.clone(),
        next: ran
            .and_then(|ran| repeat::next_occurrence(job, now(ran)))
            .map(Box::new),
        failed_before: job.failures > 0 || job.exception_message.is_some(),
    }
}

async fn complete_in_transaction(
    node: &Arc<NodeContext>,
    transaction: &HandlerTransaction,
    completion: Completion,
    job: &Job,
    registration: &Registration,
) -> Result<Ending, Fault> {
    let Some(open) = transaction.take() else {
        let error = HandlerError::unrecoverable(
            "the handler returned while it still held the guard of its transaction; drop the guard before the handler returns",
        );
        let failure = failure(
            node,
            &completion.held,
            job,
            registration,
            error,
            "dead-letter",
        );
        return Ok(failure);
    };
    node.instances.end_soon(std::iter::once(&completion.held));
    let handoff = node.handoff();
    let completes = open.complete(node.id, &completion, &handoff);
    Ok(match node.asks(completes).await {
        Ok(settled) => {
            crash_point!("completion-committed");
            Ending::Committed(Box::new(settled))
        }
        Err(error) if error.is_lost_lock() => Ending::Lost,
        // Only the database has the result: the next lock finds the job if it was not committed.
        Err(StoreError::CommitUnknown(error)) => {
            tracing::warn!(job = %job.id, %error, "the result of the job's commit is unknown; the job runs again if its lease is still there");
            Ending::Left
        }
        // The database refused the job's data, or a statement of the handler had failed.
        Err(error) if error.is_row_fault() || matches!(error, StoreError::TransactionFailed) => {
            let held = &completion.held;
            failure(node, held, job, registration, error.into(), "retry")
        }
        // A missing right or table, a trigger that raises or a server that is away is no fault of
        // the job.
        Err(error) => return Err(Fault::of(&error, Ran::TheHandler)),
    })
}

fn conflict(message: String) -> HandlerError {
    HandlerError::conflict(message)
}

/// Returns the ending of a failed attempt: by the error's verdict, and by the retry policy of the
/// job or else of its type.
fn failure(
    node: &NodeContext,
    held: &LockToken,
    job: &Job,
    registration: &Registration,
    error: HandlerError,
    outcome: &'static str,
) -> Ending {
    let own = job.retry_policy.as_deref().map(RetryPolicy::parse);
    let policy = match &own {
        Some(Ok(own)) => own,
        Some(Err(bad)) => {
            if let Some(more) = node.throttled_lines.now("retry policy") {
                tracing::warn!(
                    job = %job.id, job_type = %job.job_type, %bad, more,
                    "the job's retry policy can't be read; using the policy of its type"
                );
            }
            &registration.options.retry
        }
        None => &registration.options.retry,
    };
    let to = match error.verdict {
        Verdict::Conflict => Destination::Retry {
            delay: CONFLICT_WAIT,
            retries: job.retries,
            failures: job.failures,
        },
        Verdict::Retry(wait) if job.retries > 1 => Destination::Retry {
            delay: wait.unwrap_or_else(|| policy.wait(job.failures.saturating_add(1))),
            retries: job.retries - 1,
            failures: job.failures.saturating_add(1).min(MAX_COUNT),
        },
        Verdict::Retry(_) | Verdict::Unrecoverable => Destination::DeadLetter,
    };
    let outcome = match &to {
        Destination::DeadLetter => {
            tracing::warn!(
                job = %job.id, job_type = %job.job_type, outcome, error = %error.message,
                "the job failed and becomes a dead letter; fix the cause named in the error, then run `jobwire jobs retry`"
            );
            "dead-letter"
        }
        Destination::Retry { retries, .. } => {
            tracing::info!(
                job = %job.id, job_type = %job.job_type, outcome, attempts_left = retries, error = %error.message,
                "the attempt failed"
            );
            outcome
        }
    };
    Ending::Failed {
        failure: Failure {
            held: held.clone(),
            to,
            message: Some(cut(error.message, MESSAGE_BYTES)),
            stack: error.stack.map(|s| cut(s, MESSAGE_BYTES * 16)),
        },
        outcome,
    }
}

/// Replaces NUL, which cannot be stored as text, and cuts the text to `bytes`.
fn cut(text: String, bytes: usize) -> String {
    let mut text = text.replace('\0', "\u{fffd}");
    if text.len() > bytes {
        let end = (0..=bytes)
            .rev()
            .find(|i| text.is_char_boundary(*i))
            .unwrap_or(0);
        text.truncate(end);
    }
    text
}

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
    settled: Settled,
    sent: Instant,
    mut slots: Vec<OwnedSemaphorePermit>,
) {
    node.hook.publish(Cause::Handoff, settled.ready);
    node.hook.timer_set(settled.timer);
    if node.draining.is_cancelled() {
        // The statement that locked these jobs was sent before the drain.
        let taken = settled.next.iter().map(LockedJob::held);
        return lost_leases::release(node, taken.collect()).await;
    }
    let locked_at = Utc::now();
    for next in settled.next {
        crash_point!("hand-over-taken");
        // Each of these jobs follows one that ended, which normally left its slot.
        let slot = match slots.pop() {
            Some(slot) => one_of(slot),
            None => match node.slots.clone().acquire_owned().await {
                Ok(slot) => slot,
                Err(_) => return,
            },
        };
        counter!(m::JOBS_LOCKED, "source" => "hand-over").increment(1);
        let stages = Stages {
            committed_at: None,
            locked_at,
        };
        start(node, next, sent, stages, slot);
    }
}
