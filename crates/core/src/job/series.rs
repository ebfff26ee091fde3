//! The series of a repeating job.
//!
//! The next occurrence is a separate job with a new id and the same correlation id. The transaction
//! that completes an occurrence creates the next one (protocol rule 2), with the remaining count.

pub(crate) mod fate;
#[cfg(test)]
mod tests;

use chrono::{DateTime, Utc};

use crate::job::Job;
use crate::job::calendar::{CalendarFault, Calendars};
use crate::job::new_job::{InvalidJob, NewJob};
use crate::job::repeat::Repeat;

/// The maximum size of a repetition on a calendar, in bytes. It leaves room in the column for the
/// suffix of an occurrence [without a date](crate::job::repeat::Pending).
const MOST_ON_CALENDAR: usize = 960;

/// Reads the job's repetition. Without this check, a wrong one would end the series unnoticed.
pub(crate) fn repeat(job: &Job) -> Result<Option<Repeat>, InvalidJob> {
    let Some(text) = &job.repeat else {
        return Ok(None);
    };
    let repeat = Repeat::parse(text).map_err(|error| InvalidJob::repeat(&error))?;
    fits(&repeat, text)?;
    Ok(Some(repeat))
}

/// Checks that the text of a repetition has room for the suffix of an occurrence without a date.
/// Otherwise the database would refuse the completion of an occurrence.
pub(crate) fn fits(repeat: &Repeat, text: &str) -> Result<(), InvalidJob> {
    let may_grow = repeat.calendar.is_some() && repeat.pending.is_none();
    if !may_grow || text.len() <= MOST_ON_CALENDAR {
        return Ok(());
    }
    let problem = format!(
        "has {} bytes, more than {MOST_ON_CALENDAR}, and names a calendar",
        text.len()
    );
    Err(InvalidJob::new("repeat", problem, "shorten it"))
}

/// Returns the occurrence after `job`, if there is one. The new job is a copy of the row, so its
/// values are valid. Its due date counts from that of `job`. If that date has passed, the
/// [policy](crate::job::repeat::CatchUp) decides. `now` is the database's clock, as far as it is
/// known.
///
/// If the calendar of the series gives no date here, the next occurrence is one
/// [without a date](crate::job::repeat::Pending), which another node may replace.
#[must_use]
pub fn next_occurrence(job: &Job, now: DateTime<Utc>, calendars: &Calendars) -> Option<NewJob> {
    following(job, now, calendars).next
}

/// The occurrence after a job.
#[derive(Default)]
pub(crate) struct Following {
    pub(crate) next: Option<NewJob>,
    /// The reason why it has no date.
    pub(crate) fault: Option<CalendarFault>,
}

/// Returns the occurrence after `job`, and the reason if it has no date.
pub(crate) fn following(job: &Job, now: DateTime<Utc>, calendars: &Calendars) -> Following {
    let Some(Ok(repeat)) = job.repeat.as_deref().map(Repeat::parse) else {
        return Following::default();
    };
    let due = job.due_at.unwrap_or(job.created_at);
    match repeat.next(due, now, calendars) {
        Ok(next) => Following {
            next: next.and_then(|(repeat, due)| occurrence(job, &repeat, due)),
            fault: None,
        },
        Err(fault) => {
            // No occurrence is due before its date in the schedule.
            let date = repeat.after(repeat.start.unwrap_or(due), due);
            if date.is_none_or(|date| job.repeat_until.is_some_and(|until| date > until)) {
                return Following::default();
            }
            Following {
                next: repeat
                    .next_pending(due)
                    .and_then(|repeat| occurrence(job, &repeat, now)),
                fault: Some(fault),
            }
        }
    }
}

/// Returns an occurrence of the series of `job`, unless the series ends before it.
fn occurrence(job: &Job, repeat: &Repeat, due: DateTime<Utc>) -> Option<NewJob> {
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
    next.priority = Some(job.priority);
    next.exclusive = Some(job.exclusive);
    next.retry_policy = job.retry_policy.clone();
    // All attempts of the job, used and left.
    next.retries = Some(job.retries.saturating_add(job.failures));
    next.due_at = Some(due);
    next.repeat = Some(repeat.to_string());
    next.repeat_until = job.repeat_until;
    next.correlation_id = Some(job.correlation_id);
    next.lane = Some(job.lane.clone());
    next.lane_named = job.lane_named;
    next.custom_values = job.custom_values.clone();
    next.trace_parent = job.trace_parent.clone();
    next.is_copy = true;
    Some(next)
}
