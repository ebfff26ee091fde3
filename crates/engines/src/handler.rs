//! The handler of every job of an engine: lets the engine execute the job, over REST or the
//! execution endpoint.
//!
//! | answer | effect |
//! | --- | --- |
//! | executed | the rows are read again, and the lock is released; if they are unchanged, the job's next execution waits like after an error |
//! | an error, and the row has moved | the engine has counted a failure, by its own rules |
//! | an error, and the row is unchanged | a conflict, or a failure that the engine can't record: after a wait that grows the job is ready again |
//! | the job was given back | the same; or another job of its instance runs |
//! | its failure could not be recorded | the same as after an error; over the endpoint alone the lock stays until it expires |
//! | none, or that of a gateway | the lock stays until the row moves, or the execution has ended without a trace; over the endpoint alone the engine extends it |
//! | not begun: too many executions are under way for a second | the job is ready again, for any node |
//! | the engine can't be reached | the job waits for the engine under its lock, then for another node; no attempt is spent |
//!
//! After any answer, the [store](crate::EngineStore) determines the fate of the job by its rows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::job::scope::Needs;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::{
    Handler, HandlerError, HandlerOptions, HandlerResult, Handlers, Outcome, Running, StoreError,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::EngineStore;
use crate::activity::Activity;
use crate::executing::Executing;
use crate::fate::Ended;
use crate::http::Answer;
use crate::id::engine_id;
use crate::owner::owner;
use crate::pace::GIVE_BACK;
use crate::routing::{Choice, Route};
use crate::traceless::Wait;

/// The time that a job waits for an engine that can't be reached, before it is released.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two tries of a job that an address could not execute. The job keeps its lock
/// meanwhile.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// The bounds of the pause between two looks at a job without an answer.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// The time within which an execution begins whose request the engine has taken up. Before that, the
/// absence of a transaction does not prove the end of the execution.
const BEGINS_WITHIN: Duration = Duration::from_secs(35);
/// The same time after a request whose connection broke: the engine's process has ended, or drops the
/// request.
const BEGINS_AFTER_BREAK: Duration = Duration::from_secs(3);

static LEFT: Mutex<Option<LogThrottle>> = Mutex::new(None);

/// Executes jobs through the engine. See the [module](self).
struct Execute {
    store: Arc<dyn Executing>,
}

/// Returns the handlers of all types of an engine's jobs, for [`NodeBuilder::handlers`].
///
/// [`NodeBuilder::handlers`]: jobwire_core::node::NodeBuilder::handlers
///
/// # Errors
/// Fails if the engine's URL or path can't be used.
pub fn handlers(store: &EngineStore) -> Result<Handlers, StoreError> {
    executing(Arc::new(store.clone()), store.types())
}

/// Returns handlers of these types.
pub(crate) fn executing(store: Arc<dyn Executing>, types: &[&str]) -> Result<Handlers, StoreError> {
    let execute: Arc<dyn Handler> = Arc::new(Execute { store });
    let mut handlers = Handlers::default();
    for job_type in types {
        handlers.register(*job_type, HandlerOptions::default(), execute.clone());
    }
    Ok(handlers)
}

#[async_trait]
impl Handler for Execute {
    async fn run(&self, job: Running) -> HandlerResult<Outcome> {
        self.execute(&job).await
    }
}

/// A request of an execution that has no answer.
struct Unanswered<'a> {
    route: &'a Route,
    sent: Instant,
    /// Whether the request may still wait, in the engine or before it.
    may_wait: bool,
    reason: String,
}

impl Execute {
    /// Lets the engine execute the job, and returns its result.
    async fn execute(&self, job: &Running) -> HandlerResult<Outcome> {
        let Some(id) = engine_id(job.job.id) else {
            return Err(HandlerError::unrecoverable(
                "the job's id is none of the engine",
            ));
        };
        let parts = self.store.parts();
        let began = Instant::now();
        if let Some(wait) = parts.traceless.owed(job.job.id) {
            let said = "the engine answered that it had executed the job, and the job is as before";
            if !self.waits(job, wait, said).await {
                return Err(HandlerError::conflict(said));
            }
        }
        let mut failed = None;
        loop {
            let most = match parts.takes_lists() {
                true => parts.pace.within_engine(),
                false => parts.options.concurrency,
            };
            // The pass comes first: a job that waits is bound to no address, which may stop
            // answering meanwhile.
            let pass = parts.gate.enter(most);
            let Ok(pass) = tokio::time::timeout(GIVE_BACK, pass).await else {
                return Ok(self.give_back(job));
            };
            let sending = match parts.routes.choose(&needs(job), failed) {
                Choice::Go(sending) => sending,
                other => {
                    drop(pass);
                    if self.wait(job, began, other).await {
                        continue;
                    }
                    // No address takes the job now. It is ready again, perhaps for a node that
                    // reaches one.
                    parts.calls.gave_back(job.fence);
                    return Ok(Outcome::Snooze(PATIENCE));
                }
            };
            let route = sending.route();
            let within = self.store.send_within();
            if within.is_some_and(|within| began.elapsed() >= within) {
                // The lock can't be renewed, and would end during the execution.
                parts.calls.gave_back(job.fence);
                return Ok(Outcome::Snooze(PATIENCE));
            }
            if job.stop.is_cancelled() || !job.is_held() {
                // The job has waited, and this node may have been frozen meanwhile. Another node may
                // have the lock, which the engine does not check over REST.
                parts.calls.gave_back(job.fence);
                return Ok(Outcome::Snooze(PATIENCE));
            }
            let owner = owner(job.node, job.fence);
            let calls = &parts.calls;
            let sent = Instant::now();
            calls.sent(job.fence);
            let (execution, paced) = (parts.meter.execution(), parts.pace.begin());
            let said = self.store.execute(route, &id, &owner, &pass).await;
            execution.answered(&said.answer, said.took);
            paced.end(said.took);
            drop((pass, sending));
            failed = Some(route);
            let (answer, fault) = (said.answer, said.fault);
            if !answer.is_unanswered() {
                calls.answered(job.fence);
            }
            match answer {
                Answer::Executed => {
                    route.answered();
                    return Ok(Outcome::Done);
                }
                Answer::Refused(said) => {
                    route.answered();
                    return self.refused(job, &owner, said).await;
                }
                Answer::GivenBack => {
                    route.answered();
                    let said = "the engine gave the job back: another job of its instance runs, it met \
                                another transaction, or its failure could not be recorded";
                    return self.without_trace(job, said.to_owned()).await;
                }
                Answer::Unrecorded => {
                    route.answered();
                    let said = "the engine could not record the failure of the job; its log has the reason";
                    if self.store.engine_renews() {
                        // Perhaps another execution under this lock is under way.
                        calls.leave(job.fence);
                        return Err(HandlerError::conflict(said));
                    }
                    return self.refused(job, &owner, said.to_owned()).await;
                }
                Answer::NotBegun => {
                    route.answered();
                    return Ok(self.give_back(job));
                }
                Answer::Missing(said) if self.store.is_refusal(&said) => {
                    route.answered();
                    return self.refused(job, &owner, said).await;
                }
                Answer::Missing(said) => {
                    if !self.still_ours(job, &owner).await {
                        route.answered();
                        return Ok(Outcome::Done);
                    }
                    let reason = format!(
                        "the engine answers 404 for jobs that exist; check `engine_url` ({said})"
                    );
                    route.at_fault(&fault, &reason);
                }
                Answer::OtherMethod => {
                    let reason = "the path of the engine takes no POST; check `engine_url`";
                    route.at_fault(&fault, reason);
                }
                Answer::Unusable(reason) => {
                    // A gateway may have changed the answer of an execution.
                    if !self.still_ours(job, &owner).await {
                        route.answered();
                        return Ok(Outcome::Done);
                    }
                    route.at_fault(&fault, &reason);
                }
                Answer::Unsent(reason) => route.at_fault(&fault, &reason),
                Answer::Unanswered(reason) => {
                    let timed_out = sent.elapsed() >= parts.options.answer_within;
                    if !timed_out {
                        route.at_fault(&fault, &reason);
                    }
                    let request = Unanswered {
                        route,
                        sent,
                        may_wait: timed_out,
                        reason,
                    };
                    return self.unanswered(job, &owner, request).await;
                }
                Answer::ByGateway(reason) => {
                    route.at_fault(&fault, &reason);
                    let request = Unanswered {
                        route,
                        sent,
                        may_wait: true,
                        reason,
                    };
                    return self.unanswered(job, &owner, request).await;
                }
            }
            if !may_try_again(began, &job.stop).await {
                parts.calls.gave_back(job.fence);
                return Ok(Outcome::Snooze(PATIENCE));
            }
        }
    }
}

/// Waits for a moment after an address that did not execute the job. Returns whether to choose
/// again. The breaker alone does not end the tries: an answer about another job closes it.
async fn may_try_again(began: Instant, stop: &CancellationToken) -> bool {
    if began.elapsed() >= PATIENCE {
        return false;
    }
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(TRY_AGAIN) => true,
    }
}

/// Returns what an address must have for this job.
fn needs(job: &Running) -> Needs {
    Needs {
        deployment: job.job.deployment.clone(),
        category: job.job.category.clone(),
        ..Needs::of(job.job.job_type.clone())
    }
}

impl Execute {
    /// Releases a job that has waited for its execution for too long: other jobs have become long,
    /// and another node may be free.
    fn give_back(&self, job: &Running) -> Outcome {
        let parts = self.store.parts();
        parts.pace.look();
        parts.calls.gave_back(job.fence);
        Outcome::Snooze(PATIENCE)
    }

    /// Waits after a choice that gave no address. Returns whether to choose again: the trial of an
    /// address comes soon enough.
    async fn wait(&self, job: &Running, began: Instant, choice: Choice<'_>) -> bool {
        let patience = began + PATIENCE;
        let (until, again) = match choice {
            Choice::Wait(trial) if trial <= patience => (trial, true),
            Choice::Wait(_) => return false,
            // Not at once, or the job would go round and round.
            _ => (patience, false),
        };
        tokio::select! {
            () = job.stop.cancelled() => false,
            () = tokio::time::sleep_until(until) => again,
        }
    }

    /// Returns the result of an execution that the engine ended with an error.
    async fn refused(&self, job: &Running, owner: &str, said: String) -> HandlerResult<Outcome> {
        let ended = self.store.ended(&job.job, owner).await;
        self.store
            .parts()
            .meter
            .failed(ended.as_ref().ok().copied());
        match ended {
            Ok(Ended::Conflict) => self.without_trace(job, said).await,
            Ok(Ended::Suspended) => {
                self.moved(job);
                Err(HandlerError::conflict(said))
            }
            Ok(Ended::Gone) => Ok(Outcome::Done),
            Ok(Ended::Counted) => {
                self.moved(job);
                Err(HandlerError::retry(said))
            }
            Err(error) => {
                tracing::debug!(
                    job = %job.job.id,
                    %error,
                    "could not look at the job after its execution"
                );
                Err(HandlerError::retry(said))
            }
        }
    }

    /// Records that the row of a job has moved.
    fn moved(&self, job: &Running) {
        self.store.parts().traceless.moved(job.job.id);
    }

    /// Returns the result of an execution after which the rows are as before. The wait passes under
    /// the lock, so no sibling meets the same transaction.
    async fn without_trace(&self, job: &Running, said: String) -> HandlerResult<Outcome> {
        let wait = self.store.parts().traceless.ended(job.job.id);
        self.waits(job, wait, &said).await;
        Err(HandlerError::conflict(said))
    }

    /// Waits after an execution without a trace. Returns whether the job may run now in this slot:
    /// otherwise it must stop, or its lock is left to expire.
    async fn waits(&self, job: &Running, wait: Wait, said: &str) -> bool {
        let parts = self.store.parts();
        tokio::select! {
            // The job is ready for another node.
            () = job.stop.cancelled() => return false,
            () = tokio::time::sleep(wait.for_) => {}
        }
        // A lock that can't be renewed is too long to be left.
        if wait.leaves_lock && self.store.send_within().is_none() {
            parts.calls.leave(job.fence);
            let mut throttle = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(more) = throttle.get_or_insert_default().now() {
                tracing::warn!(
                    job = %job.job.id, executions = wait.times, said, more,
                    "the engine has rolled the job back each time without a trace; it runs again when \
                     its lock has expired; the engine's log has the reason why the failure could not \
                     be recorded"
                );
            }
            return false;
        }
        true
    }

    /// Returns whether the rows are unchanged since before the execution. Returns false also if the
    /// database does not answer; then the store determines the fate later.
    async fn still_ours(&self, job: &Running, owner: &str) -> bool {
        match self.store.still_ours(job.job.id, owner).await {
            Ok(ours) => ours,
            Err(error) => {
                tracing::debug!(
                    job = %job.job.id,
                    %error,
                    "could not look at the job after its execution"
                );
                false
            }
        }
    }

    /// Waits until an execution without an answer has ended, as the rows or the engine's
    /// transactions show. The lock is renewed meanwhile.
    ///
    /// A request that may wait has surely been taken up when its address has answered a later one.
    /// Until then the absence of a transaction proves nothing.
    async fn unanswered(
        &self,
        job: &Running,
        owner: &str,
        request: Unanswered<'_>,
    ) -> HandlerResult<Outcome> {
        let id = job.job.id;
        let Unanswered {
            route,
            sent,
            may_wait,
            reason,
        } = request;
        if self.store.engine_renews() {
            // The fence stays open, so the lock is left to the engine, or to its expiry.
            return Err(HandlerError::conflict(format!(
                "the engine gave no answer; it keeps the lock while it runs the job: {reason}"
            )));
        }
        let parts = self.store.parts();
        let _shown = parts.meter.unanswered();
        tracing::warn!(
            job = %id, reason,
            "the engine gave no answer; the job stays locked until its row moves or its \
             transaction has ended"
        );
        let sent_at = self.store.clock_at(sent).await.ok();
        let (mut taken, begins) = match may_wait {
            true => (None, BEGINS_WITHIN),
            false => (Some(sent), BEGINS_AFTER_BREAK),
        };
        let (mut pause, mut quiet) = (FIRST_LOOK, 0);
        while sent.elapsed() < parts.options.unknown_for {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_LOOK);
            match self.store.still_ours(id, owner).await {
                Ok(false) => {
                    parts.calls.answered(job.fence);
                    return Ok(Outcome::Done);
                }
                Ok(true) => {}
                Err(_) => continue,
            }
            let Some(taken) = taken else {
                if self.store.hears(route).await {
                    taken = Some(Instant::now());
                }
                continue;
            };
            let Some(sent_at) = sent_at else { continue };
            if taken.elapsed() < begins {
                continue;
            }
            match self.store.activity(sent_at, sent_at + (taken - sent)).await {
                Ok(Activity::Quiet) => quiet += 1,
                _ => quiet = 0,
            }
            if quiet >= 2 {
                // The row was read after the transactions.
                if !self.still_ours(job, owner).await {
                    parts.calls.answered(job.fence);
                    return Ok(Outcome::Done);
                }
                parts.calls.answered(job.fence);
                let said = format!("the engine ended the execution without a trace: {reason}");
                return self.without_trace(job, said).await;
            }
        }
        // The fence stays open, so the lock is left to expire.
        Err(HandlerError::conflict(format!(
            "the engine gave no answer, and its transaction is open: {reason}"
        )))
    }
}

#[cfg(test)]
mod tests;
