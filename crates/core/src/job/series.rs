//! The series of a repeating job.
//!
//! The next occurrence is a separate job with a new id and the same correlation id. The transaction
//! that completes an occurrence creates the next one (protocol rule 2), with the remaining count.

use chrono::{DateTime, Utc};

use crate::job::Job;
use crate::job::new_job::{InvalidJob, NewJob};
use crate::job::repeat::Repeat;

/// Checks that the job's interval can be read. Without this check, a wrong interval would end the
/// series unnoticed.
pub(crate) fn check(job: &Job) -> Result<(), InvalidJob> {
    match job.repeat.as_deref().map(Repeat::parse) {
        Some(Err(error)) => Err(InvalidJob::repeat(&error)),
        _ => Ok(()),
    }
}

/// Returns the occurrence after `job`, if there is one. The new job is a copy of the row, so its
/// values are valid. It is due one interval after the last due date, or one interval after `now` if
/// that date has passed. So the missed occurrences of a long outage do not come in a burst. `now`
/// is the database's clock, as far as it is known.
#[must_use]
pub fn next_occurrence(job: &Job, now: DateTime<Utc>) -> Option<NewJob> {
    let repeat = Repeat::parse(job.repeat.as_deref()?).ok()?;
    let left = match repeat.times {
        Some(n) if n <= 1 => return None,
        Some(n) => Some(n - 1),
        None => None,
    };
    let every = chrono::Duration::from_std(repeat.every).ok()?;
    let mut due = job
        .due_at
        .unwrap_or(job.created_at)
        .checked_add_signed(every)?;
    if due < now {
        due = now.checked_add_signed(every)?;
    }
    if job.repeat_until.is_some_and(|until| due > until) {
        return None;
    }
    let mut next = NewJob::with_json(&job.job_type, job.payload.clone());
    next.process_instance = job.process_instance.clone();
    next.execution = job.execution.clone();
    next.process_definition = job.process_definition.clone();
    next.element = job.element.clone();
    next.tenant = job.tenant.clone();
    next.category = job.category.clone();
    next.deployment = job.deployment.clone();
    next.priority = job.priority;
    next.exclusive = Some(job.exclusive);
    next.retry_policy = job.retry_policy.clone();
    // All attempts of the job, used and left.
    next.retries = Some(job.retries.saturating_add(job.failures));
    next.due_at = Some(due);
    next.repeat = Some(
        Repeat {
            times: left,
            every: repeat.every,
        }
        .to_string(),
    );
    next.repeat_until = job.repeat_until;
    next.correlation_id = Some(job.correlation_id);
    next.lane = Some(job.lane.clone());
    next.custom_values = job.custom_values.clone();
    next.trace_parent = job.trace_parent.clone();
    next.is_copy = true;
    Some(next)
}
