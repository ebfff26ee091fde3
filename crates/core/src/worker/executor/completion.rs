//! The completion of a job, and its commit in the transaction of the handler.

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::failure::failure;
use super::fault::Fault;
use super::run::Run;
use crate::job::calendar::CalendarFault;
use crate::job::new_job::NewJob;
use crate::job::{Job, LockToken, series};
use crate::store::{Completion, StoreError};
use crate::worker::finished::Ending;
use crate::worker::handler::HandlerError;
use crate::worker::handler_transaction::HandlerTransaction;

/// The time of the database, counted from the lock of a job.
#[derive(Clone, Copy)]
pub(super) struct DatabaseTime {
    /// The time of the lock by the database's clock.
    pub(super) locked_at: DateTime<Utc>,
    /// The arrival of the answer to the lock.
    pub(super) answered: Instant,
}

impl DatabaseTime {
    /// Returns the present time, without the time that the answer took.
    fn now(self) -> DateTime<Utc> {
        let since = chrono::Duration::from_std(self.answered.elapsed()).unwrap_or_default();
        self.locked_at
            .checked_add_signed(since)
            .unwrap_or(self.locked_at)
    }
}

/// Returns the completion of a job, with the next occurrence of its series.
pub(super) fn completion(run: &Run<'_>, time: DatabaseTime) -> Completion {
    let Run {
        node, job, held, ..
    } = *run;
    if job.repeat.is_none() {
        return completion_with(held, job, None);
    }
    // Uses the database's clock, which set `due_at` and `ready_at`. This machine's clock may be wrong
    // by hours, and would delay the next occurrence by as much. The job may have waited long since it
    // became ready, so the time counts from the lock. The lock tells it: a statement more would take
    // time from each occurrence.
    let now = time.now();
    let following = series::following(job, now, node.store.calendars());
    if let Some(fault) = following.fault {
        say_no_date(run, &fault);
    }
    completion_with(held, job, following.next)
}

/// Reports that a calendar gives no date here.
pub(super) fn say_no_date(run: &Run<'_>, fault: &CalendarFault) {
    let Some(more) = run.node.reports.throttled_lines.now("no date") else {
        return;
    };
    let (job, job_type) = (run.job.id, &run.job.job_type);
    if fault.may_pass() {
        tracing::warn!(
            %job, job_type, %fault, more,
            "this node can't compute the date of an occurrence; it leaves the date to a node that can"
        );
    } else {
        tracing::warn!(
            %job, job_type, %fault, more,
            "the next occurrence of a series has no date, and becomes a dead letter; correct the \
             calendar or the repetition, then retry it"
        );
    }
}

/// Returns the completion of a job that `next` follows.
pub(super) fn completion_with(held: &LockToken, job: &Job, next: Option<NewJob>) -> Completion {
    Completion {
        held: held.clone(),
        next: next.map(Box::new),
        cancelled: false,
        attempt: None,
        has_traces: job.failures > 0 || job.exception_message.is_some(),
    }
}

/// Completes the job in the transaction of its handler.
pub(super) async fn complete_in_transaction(
    run: &Run<'_>,
    transaction: &HandlerTransaction,
    completion: Completion,
) -> Result<Ending, Fault> {
    let Some(open) = transaction.take() else {
        let error = HandlerError::unrecoverable(
            "the handler returned while it still held the guard of its transaction; drop the guard \
             before the handler returns",
        );
        return Ok(failure(run, error, "dead-letter"));
    };
    let (node, job) = (run.node, run.job);
    node.instances.end_soon(std::iter::once(&completion.held));
    let handoff = node.handoff(std::iter::once(&completion.held));
    // Nothing in between may take long: the lease of the next job counts from here.
    let sent = Instant::now();
    run.lease.ends(true);
    let completes = open.complete(node.id, &completion, &handoff);
    Ok(match node.asks(completes).await {
        Ok(settled) => {
            crash_point!("completion-committed");
            if let Some(teller) = node.teller() {
                teller.completed(job, &completion, &settled);
            }
            Ending::Committed {
                settled: Box::new(settled),
                sent,
            }
        }
        Err(error) if error.is_lost_lock() => Ending::Lost,
        // Only the database has the result. If the job was not completed, its lease is found as a
        // lost lease.
        Err(StoreError::CommitUnknown(error)) => {
            tracing::warn!(
                job = %job.id,
                %error,
                "the result of the job's commit is unknown; the job runs again if it was not \
                 committed"
            );
            Ending::Left
        }
        // The database refused the job's data, or a statement of the handler failed.
        Err(error) if error.is_row_fault() || matches!(error, StoreError::TransactionFailed) => {
            failure(run, error.into(), "retry")
        }
        // The job did not cause a missing privilege or table, a trigger that raises, or a server
        // that is away.
        Err(error) => {
            run.lease.ends(false);
            return Err(Fault::after_handler(&error));
        }
    })
}
