//! The failure of an attempt, and the time of the next one.

use std::time::Duration;

use super::run::Run;
use crate::job::JobKind;
use crate::job::new_job::MAX_COUNT;
use crate::job::retry::RetryPolicy;
use crate::job::text::storable;
use crate::store::{Destination, Failure};
use crate::worker::finished::Ending;
use crate::worker::handler::{HandlerError, Verdict};

/// The wait before the next attempt after a conflict.
const CONFLICT_WAIT: Duration = Duration::from_millis(100);
/// The maximum number of bytes of a stored message. A stack may have sixteen times as many.
const MESSAGE_BYTES: usize = 4_000;

/// Returns the ending of a failed attempt. The error's verdict and the retry policy of the job, or
/// that of its type, decide it.
pub(super) fn failure(run: &Run<'_>, error: HandlerError, outcome: &'static str) -> Ending {
    let job = run.job;
    let to = destination(run, &error.verdict);
    let outcome = match &to {
        Destination::DeadLetter => {
            tracing::warn!(
                job = %job.id, job_type = %job.job_type, outcome, error = %error.message,
                "the job failed and becomes a dead letter; fix the cause named in the error, then \
                 retry it with `Client::retry` (`jobwire jobs retry`)"
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
            held: run.held.clone(),
            to,
            message: Some(storable(error.message, MESSAGE_BYTES)),
            stack: error.stack.map(|s| storable(s, MESSAGE_BYTES * 16)),
            attempt: None,
        },
        outcome,
    }
}

/// Returns the destination of a failed job.
fn destination(run: &Run<'_>, verdict: &Verdict) -> Destination {
    let job = run.job;
    let own = own_policy(run);
    let policy = own.as_ref().unwrap_or_else(|| policy_of_type(run));
    match *verdict {
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
    }
}

/// Returns the policy of the handler, or that of the node for a history job whose handler has the
/// default one.
fn policy_of_type<'r>(run: &'r Run<'_>) -> &'r RetryPolicy {
    let of_handler = &run.registration.options.retry;
    let is_history = run.job.kind == JobKind::History;
    if is_history && *of_handler == RetryPolicy::default() {
        &run.node.options.history_retry
    } else {
        of_handler
    }
}

/// Returns the job's own retry policy, if it can be read.
fn own_policy(run: &Run<'_>) -> Option<RetryPolicy> {
    let job = run.job;
    match RetryPolicy::parse(job.retry_policy.as_deref()?) {
        Ok(own) => Some(own),
        Err(bad) => {
            if let Some(more) = run.node.reports.throttled_lines.now("retry policy") {
                tracing::warn!(
                    job = %job.id, job_type = %job.job_type, %bad, more,
                    "the job's retry policy can't be read; using the policy of its type"
                );
            }
            None
        }
    }
}
