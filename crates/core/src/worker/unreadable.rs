//! Jobs whose rows can't be read (protocol rule 37).
//!
//! A value that no program can read, written by other hands, fails neither the statement that locks the job nor the
//! other jobs of its batch: the job is locked like any other ([`Job::unreadable`]), runs no handler, and ends as a dead
//! letter that names the column. Where 100 went that way within a minute, the fault may be this program's: the job
//! waits in the timer table, and no attempt is spent.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use metrics::counter;

use crate::job::{Job, LockToken};
use crate::store::{Destination, Failure};
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;

/// Until an unreadable job is looked at again.
const WAIT: Duration = Duration::from_secs(60);

/// How a job ends whose row can't be read, because of `fault`.
pub(crate) fn end(node: &NodeContext, job: &Job, held: &LockToken, fault: &str) -> Ending {
    let now = Instant::now();
    let allowance = node.unreadable.lock();
    let mut allowance = allowance.unwrap_or_else(PoisonError::into_inner);
    let to = if allowance.has_room(now) {
        allowance.went(now);
        counter!(m::SET_ASIDE, "operation" => "read").increment(1);
        tracing::error!(
            job = %held.id, job_type = %job.job_type, fault,
            "a job was set aside as a dead letter: its row can't be read; correct the column in the database, then \
             `jobwire jobs retry` the job or delete it"
        );
        Destination::DeadLetter
    } else {
        if let Some(more) = node.throttled_lines.now("put off") {
            tracing::error!(
                job = %held.id, job_type = %job.job_type, fault, more,
                "100 jobs whose rows can't be read were set aside within a minute; this one is put off. \
                 Is the schema that of another version?"
            );
        }
        Destination::Retry {
            delay: WAIT,
            retries: job.retries,
            failures: job.failures,
        }
    };
    let outcome = match to {
        Destination::DeadLetter => "dead-letter",
        Destination::Retry { .. } => "snooze",
    };
    Ending::Failed {
        failure: Failure {
            held: held.clone(),
            to,
            message: Some(format!("the job's row can't be read: {fault}")),
            stack: None,
        },
        outcome,
    }
}
