//! Jobs whose rows cannot be read (protocol rule 37).
//!
//! Another program may have written a value that cannot be read. It fails neither the statement
//! that locks the job nor the other jobs of the batch. The job is locked like any other
//! ([`Job::unreadable`]), runs no handler, and becomes a dead letter that names the column. After
//! 100 such jobs within a minute the fault may be in this program: further ones wait in the timer
//! table, and no attempt is spent.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use metrics::counter;

use crate::job::{Job, LockToken};
use crate::store::{Destination, Failure};
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;

/// The time for which an unreadable job waits before it is read again.
const WAIT: Duration = Duration::from_secs(60);

/// Returns the ending of a job whose row cannot be read because of `fault`.
pub(crate) fn end(node: &NodeContext, job: &Job, held: &LockToken, fault: &str) -> Ending {
    let now = Instant::now();
    let allowance = node.unreadable.lock();
    let mut allowance = allowance.unwrap_or_else(PoisonError::into_inner);
    let to = if allowance.has_room(now) {
        allowance.went(now);
        counter!(m::SET_ASIDE, "operation" => "read").increment(1);
        tracing::error!(
            job = %held.id, job_type = %job.job_type, fault,
            "a job was set aside as a dead letter: its row can't be read; correct the column in \
             the database, then retry or delete it with `Client` (`jobwire jobs`)"
        );
        Destination::DeadLetter
    } else {
        if let Some(more) = node.reports.throttled_lines.now("put off") {
            tracing::error!(
                job = %held.id, job_type = %job.job_type, fault, more,
                "100 jobs whose rows can't be read were set aside within a minute; this job waits \
                 in the timer table; check that the schema has this program's version"
            );
        }
        Destination::Retry {
            delay: WAIT,
            since: None,
            retries: job.retries,
            failures: job.failures,
        }
    };
    let outcome = match to {
        Destination::DeadLetter => "dead-letter",
        Destination::Retry { .. } | Destination::RetryAt { .. } => "snooze",
    };
    Ending::Failed {
        failure: Box::new(Failure {
            held: held.clone(),
            to,
            message: Some(format!("the job's row can't be read: {fault}")),
            stack: None,
            attempt: None,
        }),
        outcome,
    }
}
