//! The executor: runs one locked job and says what became of it.
//!
//! A job ends in exactly one [`Finished`], whatever its handler does: answers, fails, panics, overruns
//! its timeout, ignores a stop. A handler that was asked to stop gets [`GRACE`] to come to an end; then
//! its future is dropped.

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

/// How long a handler may take to obey.
const GRACE: Duration = Duration::from_secs(2);
/// Wait after a conflict before the next attempt.
const CONFLICT_WAIT: Duration = Duration::from_millis(100);
/// Stored messages are cut to this many bytes, stacks to sixteen times that.
const MESSAGE_BYTES: usize = 4_000;

/// When a job passed which stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    pub(crate) committed_at: Option<DateTime<Utc>>,
    pub(crate) locked_at: DateTime<Utc>,
}

/// Where the outcome of a job goes.
pub(crate) enum Outcomes {
    /// To be committed with others.
    OfNode,
    /// To the batch that holds its row.
    OfBatch(mpsc::Sender<Finished>),
}

/// Start a locked job on a slot.
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

/// The same for jobs that no hint led to, each on a slot of its own; `source` says who locked them.
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
    // No more jobs come back than were asked for, each with its slot.
    for (job, slot) in jobs.into_iter().zip(slots) {
        start(node, job, sent, stages, slot);
    }
}

/// As [`start`] for a job that came alone: where its handler will not keep this thread for long, it has its first turn
/// here and now, and a task only if that is not its last.
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
    // A shutdown waits for it as for a task.
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

/// Start a job under a lock that is held; its outcome goes where it is said.
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

/// The job, and what happens to it from here to where its outcome is passed on.
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
    // Boxed, since the runtime moves what it is given several times, and this is kilobytes large.
    let life = Box::pin(async move {
        let admission = quarantine::admit(&node, &job, strikes, &held, &lease, slot).await;
        let (ending, slot, suspect) = match admission {
            Admission::Start(slot, suspect) => {
                let running = run(&node, &job, &held, &lease, stages);
                // The lease would be renewed for ever if the job had no end.
                let ending = survived("job", running).await.unwrap_or(Ending::Left);
                (ending, Some(slot), suspect)
            }
            Admission::End(ending, slot) => (ending, slot, None),
        };
        // An exclusive job's slot passes to the next one of its instance. A suspect keeps all of them until its outcome
        // is committed: if the next suspect took the node down before, this one would be blamed for it.
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
            // There is room for every job of the batch. It keeps the slot for us.
            Outcomes::OfBatch(batch) => drop(batch.send(finished).await),
        }
    });
    (started, life)
}

/// A suspect had all slots of the node; what comes after it needs one.
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
        // The lock statement asks only for types that are served.
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
                "the job can't run"
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
            // What its users waited for ended with the first attempt.
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
                    "the database failed the job's transaction again and again, and answers others: {error}"
                );
                let error = HandlerError::retry(message);
                failure(node, held, job, &registration, error, "retry")
            }
        };
        metrics.executed(ending.outcome(), started.elapsed());
        return ending;
    }
}

/// Nothing was committed, and the job is not to blame.
struct Fault {
    error: String,
    /// Two transactions met.
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

/// One attempt, unless the database fails it.
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
        // Another attempt may follow this one, and is not to be stopped with it.
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
    // On a guard that leaked it is rolled back when that drops.
    let undone = match transaction.take() {
        Some(transaction) => transaction.rollback().await,
        None => Ok(()),
    };
    // What a handler makes of a broken connection says nothing of the job.
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
        // Stopped because of a shutdown, it says so with an error: no attempt is spent.
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
                error: "the connection of the job's transaction says nothing any more".to_owned(),
                is_conflict: false,
                ran: Ran::TheHandler,
            });
        }
        Ended::Stopped => Ending::Release,
    })
}

/// Wait for a slot of the type, where it has a limit of its own.
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
        // What cannot start is given back, not held until the end of the shutdown.
        () = node.draining.cancelled() => None,
    }
}

fn interrupted(node: &NodeContext, lease: &Lease) -> Ending {
    if lease.lost.is_given() {
        Ending::Lost
    } else {
        tracing::debug!(node = %node.id, "a job is given back before it started");
        Ending::Release
    }
}

enum Ended {
    Answered(HandlerResult),
    Panicked(String),
    TimedOut(Duration),
    LostLease,
    /// The connection of its transaction says nothing any more.
    LostLine,
    Stopped,
}

/// Run the handler; whatever happens, come back.
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
    // Most short jobs end at once: nothing else is made ready to be waited for.
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
            // It came to an end in time, and its outcome counts. Where the lease may be gone, its guard decides.
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

/// `ran` for so long, or not at all: then its time is over and nothing follows.
fn completion(held: &LockToken, job: &Job, ran: Option<Duration>) -> Completion {
    // By the database's clock, which said when the job became ready: this machine's may be wrong by hours,
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
            "the handler kept its transaction beyond its own end; drop the guard before answering",
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
        // Committed or not, the database knows: the next lock finds the job, or does not.
        Err(StoreError::CommitUnknown(error)) => {
            tracing::warn!(job = %job.id, %error, "it is unknown whether the job completed; it runs again if its lease is still there");
            Ending::Left
        }
        // What the job holds is refused, or a statement of its handler had failed.
        Err(error) if error.is_row_fault() || matches!(error, StoreError::TransactionFailed) => {
            let held = &completion.held;
            failure(node, held, job, registration, error.into(), "retry")
        }
        // A right or a table is missing, a trigger raises, the server is away: that is not the job's.
        Err(error) => return Err(Fault::of(&error, Ran::TheHandler)),
    })
}

fn conflict(message: String) -> HandlerError {
    HandlerError::conflict(message)
}

/// Where a failed attempt leads: the verdict, the job's own policy, else its type's.
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
                    "the job's retry policy can't be read; its type's is used"
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
                "the job failed and becomes a dead letter; correct what the error names, then `jobwire jobs retry` it"
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

/// NUL can't be stored as text; very long texts need not be.
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
    // A retry or a timer became ready long after its commit: what its users wait for starts there.
    let ready = stages.committed_at.unwrap_or(job.ready_at);
    m::latency(&lane.commit_to_start, "commit_to_start", ready, now);
    let wanted = job
        .due_at
        .map_or(ready, |due| due.max(ready.min(job.ready_at)));
    m::latency(&metrics.queue_wait, "queue_wait", wanted, now);
}

/// What a committed batch led to: jobs to be started, hints to leave, a timer to be known.
pub(crate) async fn follow_up(
    node: &Arc<NodeContext>,
    settled: Settled,
    sent: Instant,
    mut slots: Vec<OwnedSemaphorePermit>,
) {
    node.hook.publish(Cause::Handoff, settled.ready);
    node.hook.timer_set(settled.timer);
    if node.draining.is_cancelled() {
        // Taken by a statement that was sent before.
        let taken = settled.next.iter().map(LockedJob::held);
        return lost_leases::release(node, taken.collect()).await;
    }
    let locked_at = Utc::now();
    for next in settled.next {
        crash_point!("hand-over-taken");
        // As many were released as were taken, so there is a slot for each.
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
