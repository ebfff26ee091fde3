//! The ending of a job that was asked to stop.

use super::completion::completion_with;
use super::run::Run;
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

/// Returns the ending of a job that an operator has cancelled.
pub(super) fn cancelled(run: &Run<'_>) -> Ending {
    tracing::info!(
        job = %run.job.id, job_type = %run.job.job_type,
        "the running job was cancelled by an operator"
    );
    let mut completion = completion_with(run.held, run.job, None);
    completion.has_traces |= run.lease.has_row();
    completion.cancelled = true;
    Ending::Cancelled(completion)
}
