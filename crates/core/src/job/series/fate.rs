//! The fate of an occurrence that is about to run: it runs, another one replaces it, or it waits for its
//! date.

use chrono::{DateTime, Utc};

use super::occurrence;
use crate::job::Job;
use crate::job::calendar::{CalendarFault, Calendars};
use crate::job::new_job::{InvalidJob, NewJob};
use crate::job::repeat::{BadRepeat, Repeat};

/// The wait before the next attempt to compute the date of an occurrence.
const LOOK_AGAIN: chrono::Duration = chrono::Duration::seconds(10);

/// The time by which an occurrence may become ready after its due date and still counts as on time.
/// Timers are moved a moment after their dates.
const ON_TIME: chrono::Duration = chrono::Duration::minutes(1);

/// Returns whether the series of `job` had ended when the job became ready, at `now`, so that it does
/// not run. An occurrence on time runs: none is due after the end. The due date of an occurrence
/// [without a date](crate::job::repeat::Pending) is that of the next attempt, so only the end counts.
pub(crate) fn has_ended(job: &Job, repeat: &Repeat, now: DateTime<Utc>) -> bool {
    let mut ends = [job.repeat_until, repeat.end].into_iter().flatten();
    if repeat.pending.is_some() {
        return ends.any(|end| now.signed_duration_since(end) > ON_TIME);
    }
    let is_late = job
        .due_at
        .is_none_or(|due| now.signed_duration_since(due) > ON_TIME);
    is_late && ends.any(|end| now > end)
}

/// The fate of an occurrence that is about to run.
pub(crate) enum Instead {
    /// The handler runs.
    Runs,
    /// Another occurrence replaces it, or none if the series ends: the first occurrence of a schedule,
    /// for a job of plain SQL without a due date; or the next one, for an occurrence that was missed
    /// and is skipped; or the same one with its date, if it had none.
    Replaced(Option<Box<NewJob>>),
    /// It has no date, and its calendar gives none here: it waits for another node, or the same one
    /// later.
    Waits(CalendarFault),
    /// The same, for a job of plain SQL: it is replaced by an occurrence that can wait.
    WaitsAs(Box<NewJob>, CalendarFault),
}

/// Returns the fate of `job`, which is about to run. `now` is the database's clock.
///
/// # Errors
/// The schedule of a job without a due date has no occurrence, although it has no end.
pub(crate) fn instead(
    job: &Job,
    repeat: &Repeat,
    now: DateTime<Utc>,
    calendars: &Calendars,
) -> Result<Instead, InvalidJob> {
    let replaced = |next: Option<NewJob>| Instead::Replaced(next.map(Box::new));
    let ends = job.repeat_until.is_some() || repeat.end.is_some();
    if let Some(pending) = repeat.pending {
        return match repeat.resolve(pending, job.created_at, calendars) {
            Ok(dated) => Ok(replaced(
                dated.and_then(|(repeat, due)| occurrence(job, &repeat, due)),
            )),
            Err(BadRepeat::Fault(fault)) if fault.may_pass() => Ok(Instead::Waits(fault)),
            Err(BadRepeat::Never(_)) if ends => Ok(replaced(None)),
            Err(error) => Err(InvalidJob::repeat(&error)),
        };
    }
    let never_failed = job.failures == 0 && job.exception_message.is_none();
    let Some(due) = job.due_at else {
        // A job on a calendar has not run without a date, whatever it failed of.
        let is_dated = never_failed || repeat.calendar.is_some();
        return match repeat.first(job.created_at, calendars) {
            Ok(Some(first)) if is_dated => Ok(replaced(occurrence(job, repeat, first))),
            Ok(_) => Ok(Instead::Runs),
            Err(BadRepeat::Fault(fault)) if fault.may_pass() => {
                let first = repeat.first_pending(job.created_at);
                Ok(match occurrence(job, &first, now + LOOK_AGAIN) {
                    Some(first) => Instead::WaitsAs(Box::new(first), fault),
                    None => replaced(None),
                })
            }
            Err(BadRepeat::Never(_)) if ends && is_dated => Ok(replaced(None)),
            Err(BadRepeat::Never(_)) if ends => Ok(Instead::Runs),
            Err(error) => Err(InvalidJob::repeat(&error)),
        };
    };
    if !never_failed || !repeat.skips(due, now, calendars) {
        return Ok(Instead::Runs);
    }
    // An occurrence that does not run is not counted.
    let mut same = repeat.clone();
    same.times = None;
    // The calendar has just given a date.
    let next = same.next(due, now, calendars);
    Ok(next.map_or(Instead::Runs, |next| {
        replaced(next.and_then(|(mut next, due)| {
            next.times = repeat.times;
            occurrence(job, &next, due)
        }))
    }))
}
