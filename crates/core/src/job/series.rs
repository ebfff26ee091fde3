//! The series of a repeating job.
//!
//! The next occurrence is a separate job with a new id and the same correlation id. The transaction
//! that completes an occurrence creates the next one (protocol rule 2), with the remaining count.

use chrono::{DateTime, Utc};

use crate::job::Job;
use crate::job::calendar::{CalendarFault, Calendars};
use crate::job::new_job::{InvalidJob, NewJob};
use crate::job::repeat::{BadRepeat, Repeat};

/// The wait before the next attempt to compute the date of an occurrence.
pub(crate) const LOOK_AGAIN: chrono::Duration = chrono::Duration::seconds(10);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Lane;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn none() -> Calendars {
        Calendars::default()
    }

    /// Returns the row of a job that plain SQL created, or that an older program created.
    fn row(repeat: &str, created: &str) -> Job {
        let created = at(created);
        let mut job = NewJob::of("work", &17);
        job.correlation_id = Some(job.id().uuid());
        let mut row = job.into_job(1, created, Lane::default()).unwrap();
        row.repeat = Some(repeat.to_owned());
        row
    }

    fn replaced(job: &Job, now: &str) -> Option<Option<NewJob>> {
        let repeat = repeat(job).unwrap().unwrap();
        match instead(job, &repeat, at(now), &none()).unwrap() {
            Instead::Runs => None,
            Instead::Replaced(next) => Some(next.map(|next| *next)),
            Instead::Waits(fault) | Instead::WaitsAs(_, fault) => panic!("{fault}"),
        }
    }

    #[test]
    fn a_schedule_without_a_due_date_begins_at_its_first_date() {
        let now = "2027-01-01T12:00:00Z";
        let row = row("R3/cron(0 2 * * *)[Europe/Berlin]", now);
        let first = replaced(&row, now).unwrap().unwrap();
        assert_eq!(first.due_at, Some(at("2027-01-02T01:00:00Z")));
        // It is the first occurrence, not the second.
        assert_eq!(first.repeat, row.repeat);
        assert_eq!(first.correlation_id, Some(row.correlation_id));
        // The library gives the date at once.
        let mut new = NewJob::of("work", &17).repeat_text("0 2 * * *");
        new.complete().unwrap();
        assert!(new.due_at.is_some_and(|due| due > Utc::now()));
        assert_eq!(new.due_at.unwrap().timestamp() % (24 * 3600), 2 * 3600);
        // A plain interval begins at once.
        let row = self::row("R3/PT10M", now);
        assert!(replaced(&row, now).is_none());
        let mut new = NewJob::of("work", &17).repeat_text("R3/PT10M");
        new.complete().unwrap();
        assert_eq!(new.due_at, None);
        // A schedule without a date left has no occurrence.
        let row = self::row("R/PT1H/2026-01-01T00:00:00Z", now);
        let repeat = repeat(&row).unwrap().unwrap();
        assert!(has_ended(&row, &repeat, at(now)));
        let over = "R/2025-01-01T00:00:00Z/PT1H/2026-01-01T00:00:00Z";
        assert!(matches!(replaced(&self::row(over, now), now), Some(None)));
        let new = NewJob::of("work", &17).repeat_text(over);
        let refused = new.validate().unwrap_err().to_string();
        assert!(refused.contains("no occurrence from now on"), "{refused}");
    }

    #[test]
    fn a_dead_letter_without_a_date_gets_one_and_does_not_run() {
        use crate::job::calendar::tests::office;
        // A Saturday.
        let now = "2026-01-10T12:00:00Z";
        let mut revived = row("R3/PT1H[calendar=office]", now);
        revived.failures = 1;
        revived.exception_message = Some("no working time".to_owned());
        let fate = |job: &Job| {
            let repeat = repeat(job).unwrap().unwrap();
            instead(job, &repeat, at(now), &office()).unwrap()
        };
        let Instead::Replaced(Some(next)) = fate(&revived) else {
            panic!("it runs");
        };
        assert_eq!(next.due_at, Some(at("2026-01-12T08:00:00Z")));
        let over = "R/2026-01-10T11:00:00Z/PT1H/2026-01-11T00:00:00Z[calendar=office]";
        revived.repeat = Some(over.to_owned());
        assert!(matches!(fate(&revived), Instead::Replaced(None)));
        // Without a calendar, an operator's retry runs it.
        revived.repeat = Some("0 2 * * *".to_owned());
        assert!(matches!(fate(&revived), Instead::Runs));
    }

    #[test]
    fn an_occurrence_without_a_date_ends_with_its_series() {
        let created = "2027-01-01T00:00:00Z";
        let mut job = row("R/PT1H/2027-01-01T03:30:00Z[calendar=unknown]", created);
        job.due_at = Some(at("2027-01-01T01:00:00Z"));
        let next = next_occurrence(&job, at("2027-01-01T01:00:00Z"), &none()).unwrap();
        let mut next = next.into_job(2, at(created), Lane::default()).unwrap();
        let repeat = repeat(&next).unwrap().unwrap();
        assert!(repeat.pending.is_some());
        // Each attempt moves the due date.
        for (now, ended) in [
            ("2027-01-01T03:29:00Z", false),
            ("2027-01-01T03:31:00Z", false),
            ("2027-01-01T03:31:01Z", true),
        ] {
            next.due_at = Some(at(now));
            assert_eq!(has_ended(&next, &repeat, at(now)), ended, "{now}");
        }
        // There is none whose date in the schedule lies behind the end.
        job.due_at = Some(at("2027-01-01T03:00:00Z"));
        let ended = "2027-01-01T03:00:01Z";
        assert!(next_occurrence(&job, at(ended), &none()).is_none());
        job.repeat = Some("R/PT1H[calendar=unknown]".to_owned());
        assert!(next_occurrence(&job, at(ended), &none()).is_some());
        job.repeat_until = Some(at("2027-01-01T03:59:59Z"));
        assert!(next_occurrence(&job, at(ended), &none()).is_none());
    }

    #[test]
    fn a_creator_writes_neither_the_suffix_nor_a_text_without_room_for_it() {
        let refused = |text: &str| {
            let new = NewJob::of("work", &17).repeat_text(text);
            new.validate().unwrap_err().to_string()
        };
        let said = refused("R/PT1H[calendar=a][pending=first@2027-01-01T00:00:00Z]");
        assert!(said.contains("leave it out: Jobwire writes it"), "{said}");
        let hours = vec!["1"; 480].join(",");
        let long = format!("0 {hours} * * *[calendar=a]");
        assert!((961..=1_024).contains(&long.len()), "{}", long.len());
        let said = refused(&long);
        assert!(said.contains("shorten it"), "{said}");
        assert!(repeat(&row(&long, "2027-01-01T00:00:00Z")).is_err());
        let without = NewJob::of("work", &17).repeat_text(format!("0 {hours} * * *"));
        without.validate().unwrap();
    }

    #[test]
    fn a_missed_occurrence_is_skipped_where_the_job_asks_for_it() {
        let created = "2027-01-01T00:00:00Z";
        let mut row = row("R3/PT1H[catch-up=skip]", created);
        row.due_at = Some(at("2027-01-01T01:00:00Z"));
        assert!(replaced(&row, "2027-01-01T01:59:59Z").is_none());
        let next = replaced(&row, "2027-01-01T05:20:00Z").unwrap().unwrap();
        assert_eq!(next.due_at, Some(at("2027-01-01T06:00:00Z")));
        assert_eq!(next.repeat.as_deref(), Some("R3/PT3600S[catch-up=skip]"));
        // An attempt that failed is not forgotten.
        row.failures = 1;
        assert!(replaced(&row, "2027-01-01T05:20:00Z").is_none());
        row.failures = 0;
        row.repeat = Some("R3/PT1H".to_owned());
        assert!(replaced(&row, "2027-01-01T05:20:00Z").is_none());
    }

    #[test]
    fn the_next_date_counts_from_the_last_one_and_keeps_the_zone() {
        let mut row = row("R/P1D[Europe/Berlin]", "2026-03-27T01:30:00Z");
        let mut dates = Vec::new();
        for _ in 0..3 {
            let due = row.due_at.unwrap_or(row.created_at);
            // Each occurrence runs for a minute.
            let ended = due + chrono::Duration::minutes(1);
            let next = next_occurrence(&row, ended, &none()).unwrap();
            row = next.into_job(2, due, Lane::default()).unwrap();
            dates.push(row.due_at.unwrap());
        }
        assert_eq!(
            dates,
            [
                at("2026-03-28T01:30:00Z"),
                at("2026-03-29T01:30:00Z"),
                at("2026-03-30T00:30:00Z")
            ]
        );
        assert_eq!(
            row.repeat.as_deref(),
            Some("R/2026-03-27T01:30:00Z/P1D[Europe/Berlin]")
        );
    }
}
