//! The ending of a job that was asked to stop or was cancelled.

use std::time::Duration;

use super::completion::completion_with;
use super::failure::MESSAGE_BYTES;
use super::run::Run;
use crate::job::query::JobQuery;
use crate::job::text::storable;
use crate::store::{CANCELLED, Completion};
use crate::worker::finished::Ending;

/// Returns the ending of a job that was asked to stop before its handler had an outcome.
pub(super) fn interrupted(run: &Run<'_>) -> Ending {
    if run.lease.lost.is_given() {
        Ending::Lost
    } else if run.lease.cancelled.is_given() {
        cancelled(run)
    } else {
        tracing::debug!(node = %run.node.id, "releasing a job without an outcome");
        Ending::Release
    }
}

/// Returns whether an operator has cancelled the job whose handler failed. The message of a cancel stops
/// the handler before the next renewal brings the word of the database, so the database is asked. At a
/// shutdown it is not: the release of a cancelled job deletes it.
pub(super) async fn was_cancelled(run: &Run<'_>) -> bool {
    let lease = run.lease;
    if lease.cancelled.is_given() {
        return true;
    }
    let is_shutdown = run.node.signals.stop_jobs.is_cancelled();
    if is_shutdown || !lease.stop.is_given() || lease.lost.is_given() {
        return false;
    }
    let this = JobQuery::default().id(run.job.id).limit(1);
    // Without an answer the error of the handler counts. The release of a cancelled job deletes it.
    let found = run.node.store.find(&this).await.unwrap_or_default();
    let marked = found.iter().any(|view| view.cancelled_at.is_some());
    if marked {
        lease.cancelled.give();
    }
    marked
}

/// Returns the ending of a job that an operator has cancelled.
pub(super) fn cancelled(run: &Run<'_>) -> Ending {
    tracing::info!(
        job = %run.job.id, job_type = %run.job.job_type,
        "the running job was cancelled by an operator"
    );
    Ending::Cancelled(deletion(run))
}

/// Returns the ending of a job that its handler has cancelled.
pub(super) fn cancelled_by_handler(run: &Run<'_>, reason: String) -> Ending {
    let reason = storable(reason, MESSAGE_BYTES);
    tracing::info!(
        job = %run.job.id, job_type = %run.job.job_type, reason, "the job was cancelled by its handler"
    );
    let mut completion = deletion(run);
    // The end of the run writes how long it took.
    completion.attempt = run.attempt(CANCELLED, Duration::ZERO);
    if let Some(attempt) = &mut completion.attempt {
        attempt.reason = Some(reason);
    }
    Ending::Cancelled(completion)
}

/// Returns the completion that deletes a cancelled job.
fn deletion(run: &Run<'_>) -> Completion {
    let mut completion = completion_with(run.held, run.job, None);
    completion.has_traces |= run.lease.has_row();
    completion.cancelled = true;
    completion
}
