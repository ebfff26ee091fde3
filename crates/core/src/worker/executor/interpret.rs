//! The interpretation of an attempt: the ending that follows from the handler's result.

use tokio::time::Instant;

use super::completion::{DatabaseTime, complete_in_transaction, completion, completion_with};
use super::failure::{failure, storable_date};
use super::fault::Fault;
use super::invoke::AttemptResult;
use super::run::Run;
use super::stopped::{cancelled, cancelled_by_handler, was_cancelled};
use crate::job::LockToken;
use crate::store::{Completion, Destination, Failure};
use crate::worker::finished::Ending;
use crate::worker::handler::{HandlerError, HandlerResult, Outcome, Verdict};
use crate::worker::handler_transaction::HandlerTransaction;

/// Returns the ending that follows from an attempt, and ends its transaction. Returns a fault if
/// the database fails the attempt.
pub(super) async fn interpret(
    run: &Run<'_>,
    transaction: &HandlerTransaction,
    result: AttemptResult,
    started: Instant,
    time: DatabaseTime,
) -> Result<Ending, Fault> {
    let is_done = matches!(result, AttemptResult::Answered(Ok(Outcome::Done)));
    if is_done && run.registration.options.in_transaction {
        crash_point!("effect-done");
        let ran = started.elapsed();
        let mut completion = done(run, time);
        completion.attempt = run.attempt("done", ran);
        // Boxed because most handlers work without a transaction.
        return Box::pin(complete_in_transaction(run, transaction, completion)).await;
    }
    // Boxed because it is rare.
    if result.is_failure() && Box::pin(was_cancelled(run)).await {
        roll_back(run, transaction, &AttemptResult::Cancelled).await?;
        return Ok(cancelled(run));
    }
    let undone = roll_back(run, transaction, &result).await?;
    match result {
        AttemptResult::TimedOut(_) | AttemptResult::Silent(_)
            if !undone && run.node.stops.releases(run.job.id, started) =>
        {
            tracing::warn!(
                job = %run.job.id, job_type = %run.job.job_type,
                "the handler's time ended while its connection did not respond; the job is released \
                 without an attempt"
            );
            Ok(Ending::Release)
        }
        AttemptResult::Answered(answer) => Ok(answered(run, answer, started, time)),
        AttemptResult::Panicked { message, place } => {
            let job = run.job;
            tracing::error!(
                job = %job.id, job_type = %job.job_type, message, place, "the handler panicked"
            );
            let mut error = HandlerError::retry(format!("the handler panicked: {message}"));
            error.stack = place;
            Ok(failure(run, error, "panic"))
        }
        AttemptResult::TimedOut(limit) => {
            let message = format!("the handler ran longer than its timeout of {limit:?}");
            Ok(failure(run, HandlerError::retry(message), "timeout"))
        }
        AttemptResult::Silent(limit) => {
            let message = format!(
                "the handler gave no heartbeat for {limit:?}, the heartbeat timeout of its type"
            );
            Ok(failure(run, HandlerError::retry(message), "timeout"))
        }
        AttemptResult::LostLease => Ok(Ending::Lost),
        AttemptResult::Cancelled => Ok(cancelled(run)),
        AttemptResult::LostLine => {
            let error = "the connection of the job's transaction does not respond";
            Err(Fault::of_connection(error.to_owned()))
        }
        AttemptResult::Stopped => Ok(Ending::Release),
    }
}

/// Returns the completion of a job whose handler is done. No occurrence follows a job that was
/// cancelled.
fn done(run: &Run<'_>, time: DatabaseTime) -> Completion {
    let mut done = if run.lease.cancelled.is_given() {
        completion_with(run.held, run.job, None)
    } else {
        completion(run, time)
    };
    done.has_traces |= run.lease.has_row();
    done
}

/// Rolls back the transaction of an attempt that does not complete its job. Returns whether the
/// database has answered.
///
/// # Errors
/// Returns a fault if the handler failed because of a broken connection.
async fn roll_back(
    run: &Run<'_>,
    transaction: &HandlerTransaction,
    result: &AttemptResult,
) -> Result<bool, Fault> {
    // If the handler leaked the guard, the transaction is rolled back when the guard is dropped.
    let undone = match transaction.take() {
        Some(transaction) => transaction.rollback().await,
        None => Ok(()),
    };
    // An error that follows from a broken connection is not a failure of the job.
    let failed = match result {
        AttemptResult::Answered(Err(error)) => Some(&error.message),
        AttemptResult::Panicked { message, .. } => Some(message),
        _ => None,
    };
    match (failed, undone) {
        (Some(message), Err(error))
            if !run.node.signals.stop_jobs.is_cancelled() && !run.lease.cancelled.is_given() =>
        {
            Err(Fault::of_connection(format!("{error} ({message})")))
        }
        (_, undone) => Ok(undone.is_ok()),
    }
}

/// Returns the ending that follows from an answer of the handler.
fn answered(
    run: &Run<'_>,
    answer: HandlerResult<Outcome>,
    started: Instant,
    time: DatabaseTime,
) -> Ending {
    let (job, held) = (run.job, run.held);
    match answer {
        Ok(Outcome::Done) => {
            crash_point!("effect-done");
            Ending::Done(done(run, time))
        }
        // The job ends with its cancel, whatever else the handler has answered.
        _ if run.lease.cancelled.is_given() => cancelled(run),
        Ok(Outcome::Snooze(delay)) => snoozed(
            held,
            Destination::Retry {
                delay,
                since: None,
                retries: job.retries,
                failures: job.failures,
            },
        ),
        Ok(Outcome::SnoozeUntil(at)) => snoozed(
            held,
            Destination::RetryAt {
                due_at: storable_date(at),
                retries: job.retries,
                failures: job.failures,
            },
        ),
        Err(error) if error.verdict == Verdict::Cancel => cancelled_by_handler(run, error.message),
        // A handler that a shutdown stopped may return an error. No attempt is spent.
        Err(_) if run.node.signals.stop_jobs.is_cancelled() => Ending::Release,
        // So may one that was asked to stop because its lease could not be renewed, or by a message of a cancel
        // that the database does not confirm.
        Err(error)
            if run.lease.stop.is_given()
                && !matches!(error.verdict, Verdict::Unrecoverable)
                && (run.lease.is_told_to_stop() || run.node.stops.releases(job.id, started)) =>
        {
            Ending::Release
        }
        Err(error) => {
            let outcome = match error.verdict {
                Verdict::Conflict => "conflict",
                Verdict::Unrecoverable | Verdict::Cancel => "dead-letter",
                Verdict::Retry(_) | Verdict::RetryAt(_) if job.retries <= 1 => "dead-letter",
                Verdict::Retry(_) | Verdict::RetryAt(_) => "retry",
            };
            failure(run, error, outcome)
        }
    }
}

/// Returns the ending of a job that waits without an attempt.
fn snoozed(held: &LockToken, to: Destination) -> Ending {
    Ending::Failed {
        failure: Box::new(Failure {
            held: held.clone(),
            to,
            message: None,
            stack: None,
            attempt: None,
        }),
        outcome: "snooze",
    }
}
