//! Periodic jobs: schedules with a name, each of which exists once for a fleet.
//!
//! A program declares its periodic jobs at each start ([`NodeBuilder::periodic`]), and so does each
//! node of the fleet. The first declaration of a name creates the schedule. The leader creates a job
//! at each due date, in one transaction with the advance to the next date: a leader that dies
//! neither loses nor doubles an occurrence.
//!
//! # Deploys
//! Nodes of two releases may declare a name differently while a new release is rolled out. The
//! declaration with the larger [version](PeriodicJob::version) is kept, so nodes of the old release
//! that start late change nothing. Of two declarations with the same version, the later one is
//! kept. A schedule that is paused stays paused.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use jobwire_core::{NewJob, Node, PeriodicJob, Store, Transport};
//! # async fn example(store: Arc<dyn Store>, transport: Arc<dyn Transport>) -> Result<(), jobwire_core::Error> {
//! let clean_up = NewJob::of("clean-up", &());
//! let node = Node::on(store, transport)
//!     .periodic(PeriodicJob::new("clean-up", "0 2 * * *[Europe/Berlin]", clean_up))
//!     .start()
//!     .await?;
//! # node.stop().await;
//! # Ok(()) }
//! ```
//!
//! [`NodeBuilder::periodic`]: crate::node::NodeBuilder::periodic

use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};
use chrono_tz::Tz;

use crate::job::calendar::{CalendarFault, Calendars};
use crate::job::new_job::{InvalidJob, MAX_FIELD_BYTES, NewJob};
use crate::job::repeat::{BadRepeat, CatchUp, Repeat};
use crate::job::sealed::Encryption;
use crate::job::template;

/// The shortest interval of a schedule: the leader creates its jobs one after another.
const SHORTEST: Duration = Duration::from_secs(1);

/// The maximum length of a name, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Maximum number of missed occurrences that one transaction creates.
const PAGE: usize = 100;
/// Maximum number of missed occurrences that are counted one by one.
const MOST_COUNTED: usize = 1_000;

/// The declaration of a periodic job.
///
/// ```
/// use jobwire_core::{NewJob, PeriodicJob};
///
/// let clean_up = NewJob::of("clean-up", &());
/// let nightly = PeriodicJob::new("clean-up", "0 2 * * *[Europe/Berlin]", clean_up).version(2);
/// assert!(nightly.validate().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct PeriodicJob {
    pub(crate) name: String,
    pub(crate) schedule: String,
    pub(crate) job: NewJob,
    pub(crate) version: u32,
}

/// The error for an invalid declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("periodic job `{name}`: {invalid}")]
pub struct InvalidPeriodicJob {
    /// The name of the periodic job.
    pub name: String,
    /// The invalid field.
    pub invalid: InvalidJob,
}

/// A valid declaration in the form of the database, for implementations of
/// [`Store`](crate::Store).
#[derive(Clone, Debug)]
pub struct Declaration {
    /// The name.
    pub name: String,
    /// The schedule, as text.
    pub schedule: String,
    /// The fields of the job, as a JSON object.
    pub template: String,
    /// The version.
    pub version: i64,
    timing: Repeat,
}

impl PeriodicJob {
    /// Creates a declaration.
    ///
    /// - `name`: 1 to 256 bytes, unique in the database.
    /// - `schedule`: a [repetition](crate::job::repeat) without a count, for example `R/PT10M` or
    ///   `0 2 * * *[Europe/Berlin]`. Periods without a start count from 1 January 2001, 0:00, in
    ///   the time zone of the schedule, so `R/PT10M` is due at each full ten minutes.
    /// - `job`: the job that is created at each due date. It has no date of its own.
    #[must_use]
    pub fn new(name: impl Into<String>, schedule: impl Into<String>, job: NewJob) -> Self {
        Self {
            name: name.into(),
            schedule: schedule.into(),
            job,
            version: 0,
        }
    }

    /// Sets the version of the declaration. A declaration never replaces one with a larger version.
    /// Increase it with each change. Default: 0.
    #[must_use]
    pub const fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Encrypts the job. If the template in the database has the same one in plaintext, keeps its
    /// ciphertext: the declaration changes nothing then.
    pub(crate) fn sealed(
        &self,
        encryption: &Encryption,
        template: Option<&str>,
    ) -> Result<Self, InvalidPeriodicJob> {
        let known = template.and_then(|template| template::read(template).ok());
        let job = self.job.clone();
        let sealed = match known {
            Some(known) => encryption.seal_again(job, &known),
            None => encryption.seal_job(job),
        };
        let job = sealed.map_err(|invalid| InvalidPeriodicJob {
            name: self.name.clone(),
            invalid,
        })?;
        Ok(Self {
            job,
            ..self.clone()
        })
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`InvalidPeriodicJob`] for the first invalid field, with the remedy.
    pub fn validate(&self) -> Result<(), InvalidPeriodicJob> {
        self.declare().map(drop)
    }

    /// Returns the declaration in the form of the database.
    ///
    /// # Errors
    /// The same as those of [`validate`](Self::validate).
    pub fn declare(&self) -> Result<Declaration, InvalidPeriodicJob> {
        let invalid = |invalid| InvalidPeriodicJob {
            name: self.name.clone(),
            invalid,
        };
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES || self.name.contains('\0') {
            return Err(invalid(InvalidJob::new(
                "name",
                "is empty, too long, or contains a NUL character",
                "give 1 to 256 bytes of text",
            )));
        }
        let timing = Repeat::parse(&self.schedule).map_err(|bad| invalid(wrong(&bad)))?;
        if timing.times.is_some() || self.schedule.len() > MAX_FIELD_BYTES {
            return Err(invalid(InvalidJob::new(
                "schedule",
                "has a count, or more than 1,024 bytes",
                "bound it by an end: `R/PT1H/2027-12-31T00:00:00Z`",
            )));
        }
        if timing.pending.is_some() {
            return Err(invalid(InvalidJob::new(
                "schedule",
                "has the suffix `[pending=…]`",
                "leave it out: Jobwire writes it for single jobs",
            )));
        }
        not_short(&timing).map_err(invalid)?;
        let template = template::write(&self.job).map_err(invalid)?;
        Ok(Declaration {
            name: self.name.clone(),
            schedule: timing.to_string(),
            template,
            version: i64::from(self.version),
            timing,
        })
    }
}

/// Checks that an interval is not too short.
fn not_short(timing: &Repeat) -> Result<(), InvalidJob> {
    if timing.interval().is_some_and(|every| every < SHORTEST) {
        return Err(InvalidJob::new(
            "schedule",
            "has an interval of less than a second",
            "use at least `R/PT1S`",
        ));
    }
    Ok(())
}

fn wrong(bad: &BadRepeat) -> InvalidJob {
    if let BadRepeat::Fault(fault) = bad {
        return InvalidJob::fault("schedule", fault, fault.remedy());
    }
    let (problem, remedy) = bad.parts();
    let remedy = remedy.unwrap_or("use for example `R/PT10M` or `0 2 * * *[Europe/Berlin]`");
    InvalidJob::new("schedule", problem, remedy)
}

/// The effect of a declaration on the schedule of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// The name was new.
    Created,
    /// The schedule or its job has changed.
    Changed,
    /// Nothing has changed.
    Same,
    /// A declaration with a larger version is kept.
    Outdated,
}

/// The columns of a schedule that decide what happens to it, for implementations of
/// [`Store`](crate::Store).
#[derive(Clone, Debug)]
pub struct Row {
    /// The version of the declaration.
    pub version: i64,
    /// The schedule, as text.
    pub schedule: String,
    /// The fields of the job, as a JSON object.
    pub template: String,
    /// The next due date; `None` if the schedule has ended.
    pub next_due: Option<DateTime<Utc>>,
}

/// The occurrences of a schedule that one transaction creates.
#[derive(Debug)]
pub struct Firing {
    /// The jobs to create.
    pub jobs: Vec<NewJob>,
    /// The last due date that has passed, even if no job was created for it. `None` if none was
    /// due.
    pub last: Option<DateTime<Utc>>,
    /// The next due date.
    pub next: Option<DateTime<Utc>>,
    /// The dates that have passed and wait for a later transaction.
    pub missed: Option<Missed>,
}

/// Missed due dates of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The earliest of them.
    pub since: DateTime<Utc>,
    /// Their number. Those of a cron expression and of calendar periods are counted up to 1,000.
    pub number: u64,
}

impl Declaration {
    /// Returns what this declaration does to the row of its name, and the next due date of the row.
    ///
    /// # Errors
    /// [`InvalidJob`] if the calendar of the schedule gives no date.
    pub fn against(
        &self,
        row: &Row,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<(Declared, Option<DateTime<Utc>>), InvalidJob> {
        if row.version > self.version {
            return Ok((Declared::Outdated, row.next_due));
        }
        let same_text = row.schedule == self.schedule;
        // A schedule without a date has ended, or was stopped by another program.
        let next = if same_text && row.next_due.is_some() {
            row.next_due
        } else {
            match self.first(now, calendars) {
                Err(_) if same_text => None,
                first => first?,
            }
        };
        let same_dates = same_text && next == row.next_due;
        let same = same_dates && row.template == self.template && row.version == self.version;
        let declared = if same {
            Declared::Same
        } else {
            Declared::Changed
        };
        Ok((declared, next))
    }

    /// Returns the first due date after `now`.
    ///
    /// # Errors
    /// [`InvalidJob`] if the calendar of the schedule gives no date.
    pub fn first(
        &self,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<DateTime<Utc>>, InvalidJob> {
        after(&self.timing, now, calendars)
    }
}

impl Row {
    /// Returns the first due date after `now`, for a schedule that is resumed: what it missed while
    /// it was paused is not caught up.
    ///
    /// # Errors
    /// [`InvalidJob`] if the row can't be read, or the calendar of the schedule gives no date.
    pub fn resumed(
        &self,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<DateTime<Utc>>, InvalidJob> {
        after(&self.timing()?, now, calendars)
    }

    /// Returns the job of one occurrence.
    ///
    /// # Errors
    /// [`InvalidJob`] if the row can't be read.
    pub fn job(&self) -> Result<NewJob, InvalidJob> {
        let job = template::read(&self.template).map_err(|error| {
            InvalidJob::new(
                "template",
                format!("can't be read: {error}"),
                "declare the periodic job again",
            )
        })?;
        job.validate()?;
        Ok(job)
    }

    /// Returns the occurrences that are due at `now`.
    ///
    /// # Errors
    /// [`InvalidJob`] if the row can't be read, or the calendar of the schedule gives no date.
    pub fn fire(&self, now: DateTime<Utc>, calendars: &Calendars) -> Result<Firing, InvalidJob> {
        let timing = self.timing()?;
        let (mut dates, mut last, mut next) = (Vec::new(), None, self.next_due);
        let is_due = |next: &Option<DateTime<Utc>>| next.filter(|due| *due <= now);
        while let Some(due) = is_due(&next).filter(|_| dates.len() < PAGE) {
            last = Some(due);
            next = after(&timing, due, calendars)?;
            match timing.catch_up {
                CatchUp::All => dates.push(due),
                CatchUp::Skip if is_due(&next).is_some() => {
                    next = from_now(&timing, due, now, calendars)?;
                }
                CatchUp::Once | CatchUp::Skip => {
                    dates.push(due);
                    if is_due(&next).is_some() {
                        next = from_now(&timing, due, now, calendars)?;
                    }
                }
            }
        }
        let job = |due| {
            let mut job = self.job()?;
            job.due_at = Some(due);
            Ok(job)
        };
        let missed = is_due(&next).map(|since| Self::missed(&timing, since, now, calendars));
        Ok(Firing {
            missed,
            jobs: dates.into_iter().map(job).collect::<Result<_, _>>()?,
            last,
            next,
        })
    }

    /// Returns why this program can't read the row: its schedule, or the fields of its job.
    #[must_use]
    pub fn fault(&self) -> Option<InvalidJob> {
        self.timing().and_then(|_| self.job()).err()
    }

    /// Returns the dates that have passed at `now`, the earliest of which is `since`.
    fn missed(
        timing: &Repeat,
        since: DateTime<Utc>,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Missed {
        let every = timing.interval().filter(|_| timing.calendar.is_none());
        let until = timing.end.map_or(now, |end| end.min(now));
        let number = if let Some(every) = every {
            let passed = (until - since).to_std().unwrap_or_default();
            u64::try_from(passed.as_micros() / every.as_micros().max(1))
                .unwrap_or(u64::MAX)
                .saturating_add(1)
        } else {
            let following = |date: &DateTime<Utc>| after(timing, *date, calendars).ok().flatten();
            let dates = std::iter::successors(Some(since), following);
            let passed = dates.take_while(|date| *date <= now).take(MOST_COUNTED);
            passed.count() as u64
        };
        Missed { since, number }
    }

    fn timing(&self) -> Result<Repeat, InvalidJob> {
        let timing = Repeat::parse(&self.schedule).map_err(|bad| wrong(&bad))?;
        // Another program may have written the row.
        not_short(&timing)?;
        Ok(timing)
    }
}

/// Returns the first due date after a moment, if the schedule has one.
fn after(
    timing: &Repeat,
    moment: DateTime<Utc>,
    calendars: &Calendars,
) -> Result<Option<DateTime<Utc>>, InvalidJob> {
    let next = timing.dated(start(timing), moment, calendars);
    bounded(timing, next)
}

/// Returns the first due date after `now` that is not one of those until `due`.
fn from_now(
    timing: &Repeat,
    due: DateTime<Utc>,
    now: DateTime<Utc>,
    calendars: &Calendars,
) -> Result<Option<DateTime<Utc>>, InvalidJob> {
    let next = timing.dated_from_now(start(timing), due, now, calendars);
    bounded(timing, next)
}

fn start(timing: &Repeat) -> DateTime<Utc> {
    timing.start.unwrap_or_else(|| anchor(timing.zone))
}

fn bounded(
    timing: &Repeat,
    next: Result<Option<DateTime<Utc>>, CalendarFault>,
) -> Result<Option<DateTime<Utc>>, InvalidJob> {
    let next = next.map_err(|fault| wrong(&BadRepeat::Fault(fault)))?;
    Ok(next.filter(|next| timing.end.is_none_or(|end| *next <= end)))
}

/// The date from which periods without a start count: the first day of a week, a month and a year.
fn anchor(zone: Option<Tz>) -> DateTime<Utc> {
    let midnight = NaiveDate::from_ymd_opt(2001, 1, 1).and_then(|day| day.and_hms_opt(0, 0, 0));
    let local = midnight.and_then(|midnight| {
        let zoned = midnight.and_local_timezone(zone.unwrap_or(Tz::UTC));
        zoned.earliest()
    });
    local.map_or(DateTime::UNIX_EPOCH, |at| at.with_timezone(&Utc))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn none() -> Calendars {
        Calendars::default()
    }

    fn declared(schedule: &str) -> Declaration {
        let job = PeriodicJob::new("n", schedule, NewJob::of("work", &17));
        job.declare().unwrap_or_else(|bad| panic!("{bad}"))
    }

    fn row(schedule: &str, next_due: &str) -> Row {
        let declared = declared(schedule);
        Row {
            version: declared.version,
            schedule: declared.schedule,
            template: declared.template,
            next_due: Some(at(next_due)),
        }
    }

    #[test]
    fn periods_without_a_start_are_due_at_round_times() {
        let now = at("2027-03-27T10:17:03Z");
        for (schedule, first) in [
            ("R/PT10M", "2027-03-27T10:20:00Z"),
            ("R/P1D", "2027-03-28T00:00:00Z"),
            ("R/P1D[Europe/Berlin]", "2027-03-27T23:00:00Z"),
            ("R/P1W[Europe/Berlin]", "2027-03-28T22:00:00Z"),
            ("R/P1M[America/New_York]", "2027-04-01T04:00:00Z"),
            ("R/P1Y", "2028-01-01T00:00:00Z"),
            ("R/2027-03-27T10:00:30Z/PT10M", "2027-03-27T10:20:30Z"),
            ("R/2028-01-01T00:00:00Z/PT10M", "2028-01-01T00:00:00Z"),
            ("*/5 * * * *", "2027-03-27T10:20:00Z"),
        ] {
            assert_eq!(
                declared(schedule).first(now, &none()),
                Ok(Some(at(first))),
                "{schedule}"
            );
        }
        let ended = declared("R/PT10M/2027-03-27T10:19:59Z");
        assert_eq!(ended.first(now, &none()), Ok(None));
    }

    #[test]
    fn a_bad_declaration_names_the_job_and_the_field() {
        let work = || NewJob::of("work", &17);
        for (job, part) in [
            (PeriodicJob::new("", "R/PT1H", work()), "`name`"),
            (
                PeriodicJob::new("x".repeat(257), "R/PT1H", work()),
                "`name`",
            ),
            (PeriodicJob::new("n", "hourly", work()), "`schedule`"),
            (PeriodicJob::new("n", "R3/PT1H", work()), "has a count"),
            (
                PeriodicJob::new("n", "R/PT1H", NewJob::of("", &())),
                "`type`",
            ),
            (
                PeriodicJob::new("n", "R/PT1H", work().repeat_text("R/PT1H")),
                "`repeat`",
            ),
        ] {
            let said = job.validate().unwrap_err().to_string();
            assert!(
                said.contains("periodic job") && said.contains(part),
                "{said}"
            );
        }
    }

    #[test]
    fn a_declaration_of_a_smaller_version_changes_nothing() {
        let now = at("2027-01-01T00:30:00Z");
        let row = row("R/PT1H", "2027-01-01T01:00:00Z");
        let declared = |schedule: &str, payload: i32, version| {
            let job = PeriodicJob::new("n", schedule, NewJob::of("work", &payload));
            let declared = job.version(version).declare().unwrap();
            declared.against(&row, now, &none()).unwrap()
        };
        assert_eq!(declared("R/PT1H", 17, 0), (Declared::Same, row.next_due));
        assert_eq!(declared("R/PT1H", 18, 0), (Declared::Changed, row.next_due));
        assert_eq!(declared("R/PT1H", 17, 1), (Declared::Changed, row.next_due));
        assert_eq!(
            declared("R/PT20M", 17, 0),
            (Declared::Changed, Some(at("2027-01-01T00:40:00Z")))
        );
        // One that was stopped gets its next date, and one that has ended has none.
        let stopped = Row {
            next_due: None,
            ..row.clone()
        };
        let same = PeriodicJob::new("n", "R/PT1H", NewJob::of("work", &17));
        let same = same.declare().unwrap();
        let again = same.against(&stopped, now, &none()).unwrap();
        assert_eq!(again, (Declared::Changed, row.next_due));
        let over = at("2027-01-01T00:00:00Z");
        let ended = PeriodicJob::new("n", format!("R/PT1H/{over:?}"), NewJob::of("work", &17));
        let ended = ended.declare().unwrap();
        let of_it = Row {
            schedule: ended.schedule.clone(),
            ..stopped
        };
        let again = ended.against(&of_it, now, &none()).unwrap();
        assert_eq!(again, (Declared::Same, None));
        let row = Row { version: 2, ..row };
        let late = PeriodicJob::new("n", "R/PT5M", NewJob::of("work", &1)).version(1);
        let late = late.declare().unwrap().against(&row, now, &none()).unwrap();
        assert_eq!(late, (Declared::Outdated, row.next_due));
    }

    #[test]
    fn missed_occurrences_follow_the_policy_of_the_schedule() {
        let now = at("2027-01-01T05:20:00Z");
        for (schedule, dates, next) in [
            ("R/PT1H", &["01"][..], "06"),
            (
                "0 * * * *[catch-up=all]",
                &["01", "02", "03", "04", "05"],
                "06",
            ),
            ("R/PT1H[catch-up=skip]", &[], "06"),
        ] {
            let firing = row(schedule, "2027-01-01T01:00:00Z")
                .fire(now, &none())
                .unwrap();
            let hour = |hour: &&str| at(&format!("2027-01-01T{hour}:00:00Z"));
            let fired: Vec<_> = firing.jobs.iter().filter_map(|job| job.due_at).collect();
            assert_eq!(
                fired,
                dates.iter().map(hour).collect::<Vec<_>>(),
                "{schedule}"
            );
            assert_eq!(firing.next, Some(hour(&next)), "{schedule}");
        }
        // One that is late by less than a period is not missed.
        for schedule in ["R/PT1H", "R/PT1H[catch-up=all]", "R/PT1H[catch-up=skip]"] {
            let firing = row(schedule, "2027-01-01T05:00:00Z")
                .fire(now, &none())
                .unwrap();
            assert_eq!(firing.jobs.len(), 1, "{schedule}");
            assert_eq!(firing.last, Some(at("2027-01-01T05:00:00Z")));
            let firing = row(schedule, "2027-01-01T06:00:00Z")
                .fire(now, &none())
                .unwrap();
            assert!(firing.jobs.is_empty() && firing.last.is_none());
        }
        let many = row("R/PT1S[catch-up=all]", "2027-01-01T05:00:00Z")
            .fire(now, &none())
            .unwrap();
        assert_eq!(many.jobs.len(), PAGE);
        assert_eq!(many.next, Some(at("2027-01-01T05:01:40Z")));
        let since = at("2027-01-01T05:01:40Z");
        let missed = |number| Some(Missed { since, number });
        assert_eq!(many.missed, missed(1_101));
        let many = row("* * * * * *[catch-up=all]", "2027-01-01T05:00:00Z")
            .fire(now, &none())
            .unwrap();
        assert_eq!(many.missed, missed(1_000));
        let last = row("R/PT1H/2027-01-01T05:00:00Z", "2027-01-01T05:00:00Z");
        assert_eq!(last.fire(now, &none()).unwrap().next, None);
        for schedule in ["a form of a later program", "R/PT0.001S"] {
            let foreign = Row {
                schedule: schedule.to_owned(),
                ..last.clone()
            };
            assert!(foreign.fire(now, &none()).is_err(), "{schedule}");
            assert!(foreign.resumed(now, &none()).is_err(), "{schedule}");
        }
    }

    /// The databases count microseconds: a part of one would make each date a little later than the
    /// stored one, and so due again.
    #[test]
    fn a_part_of_a_microsecond_creates_no_occurrence_twice() {
        let now = at("2027-01-01T05:00:05Z");
        let firing = row(
            "R/2027-01-01T05:00:00Z/PT1.0000005S[catch-up=all]",
            "2027-01-01T05:00:01Z",
        )
        .fire(now, &none())
        .unwrap();
        let fired: Vec<_> = firing.jobs.iter().filter_map(|job| job.due_at).collect();
        let seconds = ["01", "02", "03", "04", "05"];
        let dates = seconds.map(|second| at(&format!("2027-01-01T05:00:{second}Z")));
        assert_eq!(fired, dates);
    }
}
