//! The repetition of a job: an ISO 8601 interval or a cron expression.
//!
//! ```text
//! R3/PT10M                                          three occurrences, ten minutes apart
//! R/PT10M                                           for ever
//! R/2027-01-01T00:00:00Z/P1D                        from a date on
//! R/PT1H/2027-12-31T00:00:00Z                       until a date
//! R/2027-01-31T08:00:00Z/P1M[Europe/Berlin]         on the last day of each month, 9:00 in Berlin
//! 0 2 * * *[Europe/Berlin]                          each night at 2:00 in Berlin
//! R5/cron(0 2 * * *)/2027-12-31T00:00:00Z           at most five nights, until a date
//! R/PT10M[catch-up=all]                             missed occurrences run, too
//! R/PT1H[calendar=berlin-office][closed=skip]       in the working time of a business calendar
//! ```
//!
//! Weeks and days are 168 and 24 hours, unless the text names a time zone, which makes them
//! calendar days. Years and months always follow the calendar, in UTC without a time zone. The
//! suffix in brackets is that of RFC 9557.

mod catch_up;
mod closed;
mod cron;
mod dated;
mod parse;
mod period;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;

use crate::job::calendar::{CalendarFault, Calendars};
use crate::job::duration::{self, BadDuration};
pub use catch_up::CatchUp;
pub use closed::{Closed, Pending};
pub use cron::Cron;
pub use period::Period;

/// The repetition of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The number of occurrences left, the next one included; `None` for no limit.
    pub times: Option<u32>,
    /// The date from which periods are counted, and before which a cron expression has no
    /// occurrence. `None`: the due date of the first occurrence.
    pub start: Option<DateTime<Utc>>,
    /// The distance of the occurrences.
    pub schedule: Schedule,
    /// The date after which there is no occurrence.
    pub end: Option<DateTime<Utc>>,
    /// The time zone of calendar periods and cron expressions; `None` for UTC.
    pub zone: Option<Tz>,
    /// The policy for missed occurrences.
    pub catch_up: CatchUp,
    /// The name of the [business calendar](crate::calendar) in whose working time the occurrences are
    /// due; `None` for all times.
    pub calendar: Option<String>,
    /// The rule for a date outside of the working time of the calendar.
    pub closed: Closed,
    /// The occurrence has no date yet, because the program that created it has no such calendar.
    pub pending: Option<Pending>,
}

/// When the occurrences of a series are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// After a time of fixed length.
    Every(Duration),
    /// After a period of the calendar.
    Calendar(Period),
    /// By a cron expression.
    Cron(Cron),
}

/// The error for a text that is not a valid repetition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRepeat {
    /// The text is neither an interval nor a cron expression.
    #[error(
        "`{0}` is neither an interval of the form R3/PT10M or R/PT10M nor a cron expression of five \
         or six fields"
    )]
    Form(String),
    /// The count is invalid.
    #[error("the count in `{0}` is not a number of 1 or more")]
    Count(String),
    /// The interval is invalid.
    #[error(transparent)]
    Every(#[from] BadDuration),
    /// The interval is too short.
    #[error("the interval `{0}` is shorter than a millisecond")]
    Short(String),
    /// The cron expression is invalid.
    #[error("`{0}` is not a cron expression: {1}")]
    Cron(String, String),
    /// A start or an end is invalid.
    #[error("`{0}` is not a date with a time zone; write for example 2027-01-31T08:00:00Z")]
    Date(String),
    /// The time zone is unknown.
    #[error("`{0}` is not a time zone; write a name such as Europe/Berlin")]
    Zone(String),
    /// The policy for missed occurrences is unknown.
    #[error("`{0}` is not a policy for missed occurrences; write once, all or skip")]
    CatchUp(String),
    /// The name of a calendar has a wrong form.
    #[error("`{0}` is not the name of a calendar: 1 to 64 letters, digits, `-`, `_` or `.`")]
    Calendar(String),
    /// The rule for dates outside of working time is unknown, or has no calendar.
    #[error(
        "`{0}` is not a rule for dates outside of working time; write closed=move or closed=skip, \
         beside a calendar"
    )]
    Closed(String),
    /// The calendar gave no date.
    #[error(transparent)]
    Fault(#[from] CalendarFault),
    /// A suffix in brackets is unknown, or occurs twice.
    #[error(
        "the suffix `[{0}]` is unknown or occurs twice; write a time zone, catch-up=…, calendar=… \
         or closed=…"
    )]
    Suffix(String),
    /// No occurrence is left.
    #[error("`{0}` has no occurrence from now on")]
    Never(String),
}

impl BadRepeat {
    /// Returns the problem, and the remedy if that of another repetition would not help. Texts that
    /// `jobwire.create_job` refuses, too, have the same message there.
    pub(crate) fn parts(&self) -> (String, Option<&'static str>) {
        let text = self.to_string();
        let remedy = match self {
            Self::Cron(..) => {
                let remedy = "use for example `0 2 * * *`, at 2 o'clock each day: minute (0 to 59), \
                              hour (0 to 23), day, month, day of the week";
                return (text, Some(remedy));
            }
            Self::Zone(_) => "write a name such as Europe/Berlin",
            Self::CatchUp(_) => "write once, all or skip",
            Self::Closed(_) => "write closed=move or closed=skip, beside a calendar",
            Self::Suffix(_) => "write a time zone, catch-up=…, calendar=… or closed=…",
            _ => return (text, None),
        };
        let problem = text.strip_suffix(remedy).and_then(|t| t.strip_suffix("; "));
        match problem {
            Some(problem) => (problem.to_owned(), Some(remedy)),
            None => (text, None),
        }
    }
}

impl Repeat {
    /// Reads a repetition.
    ///
    /// # Errors
    /// [`BadRepeat`], which names the invalid part.
    pub fn parse(text: &str) -> Result<Self, BadRepeat> {
        parse::parse(text)
    }

    /// Creates a repetition without end.
    #[must_use]
    pub const fn forever(every: Duration) -> Self {
        Self::of(Schedule::Every(every))
    }

    /// Creates a repetition with this many occurrences, the first included.
    #[must_use]
    pub const fn times(times: u32, every: Duration) -> Self {
        let mut repeat = Self::forever(every);
        repeat.times = Some(times);
        repeat
    }

    /// Creates a repetition by a cron expression in a time zone of the IANA database.
    ///
    /// ```
    /// use jobwire_core::Repeat;
    ///
    /// let nightly = Repeat::cron("0 2 * * *", "Europe/Berlin")?;
    /// assert_eq!(nightly.to_string(), "0 2 * * *[Europe/Berlin]");
    /// # Ok::<(), jobwire_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`BadRepeat`] for an invalid expression or an unknown time zone.
    pub fn cron(expression: &str, zone: &str) -> Result<Self, BadRepeat> {
        let mut repeat = Self::of(Schedule::Cron(Cron::parse(expression)?));
        repeat.zone = Some(parse::zone(zone)?);
        Ok(repeat)
    }

    /// Sets the date from which periods are counted, and before which there is no occurrence.
    #[must_use]
    pub const fn starting(mut self, at: DateTime<Utc>) -> Self {
        self.start = Some(at);
        self
    }

    /// Sets the date after which there is no occurrence.
    #[must_use]
    pub const fn until(mut self, at: DateTime<Utc>) -> Self {
        self.end = Some(at);
        self
    }

    /// Sets what happens to missed occurrences. Default: [`CatchUp::Once`].
    #[must_use]
    pub const fn catch_up(mut self, policy: CatchUp) -> Self {
        self.catch_up = policy;
        self
    }

    /// Sets the [business calendar](crate::calendar) in whose working time the occurrences are due.
    ///
    /// ```
    /// use jobwire_core::Repeat;
    ///
    /// let daily = Repeat::cron("0 10 * * *", "Europe/Berlin")?.on_calendar("berlin-office");
    /// assert_eq!(daily.to_string(), "0 10 * * *[Europe/Berlin][calendar=berlin-office]");
    /// # Ok::<(), jobwire_core::Error>(())
    /// ```
    #[must_use]
    pub fn on_calendar(mut self, name: impl Into<String>) -> Self {
        self.calendar = Some(name.into());
        self
    }

    /// Sets what happens to a date outside of working time. Default: [`Closed::Move`].
    #[must_use]
    pub const fn when_closed(mut self, rule: Closed) -> Self {
        self.closed = rule;
        self
    }

    const fn of(schedule: Schedule) -> Self {
        Self {
            times: None,
            start: None,
            schedule,
            end: None,
            zone: None,
            catch_up: CatchUp::Once,
            calendar: None,
            closed: Closed::Move,
            pending: None,
        }
    }

    /// Returns the interval, if it has a fixed length.
    #[must_use]
    pub const fn interval(&self) -> Option<Duration> {
        match self.schedule {
            Schedule::Every(every) => Some(every),
            _ => None,
        }
    }

    /// Returns the first due date at `now` or after it. `None` within `Ok` means at once. With a
    /// calendar there is always a date.
    ///
    /// # Errors
    /// [`BadRepeat::Never`] if there is none. [`BadRepeat::Fault`] if the calendar gives none.
    pub fn first(
        &self,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<DateTime<Utc>>, BadRepeat> {
        let first = match (self.start, &self.schedule) {
            _ if self.calendar.is_some() => self.first_dated(now, calendars)?,
            (None, Schedule::Every(_) | Schedule::Calendar(_)) => return Ok(None),
            (start, Schedule::Cron(cron)) => {
                cron.from(start.map_or(now, |start| start.max(now)), self.zone())
            }
            (Some(start), _) if start >= now => Some(start),
            (Some(start), _) => self.after(start, now),
        };
        match first.filter(|first| self.end.is_none_or(|end| *first <= end)) {
            Some(first) => Ok(Some(first)),
            None => Err(BadRepeat::Never(self.to_string())),
        }
    }

    /// Returns the repetition of the occurrence after the one that was due at `due`, and its due
    /// date. `None` if the series ends. `now` is the time at which the occurrence has ended.
    ///
    /// # Errors
    /// [`CalendarFault`] if the calendar gives no date.
    pub fn next(
        &self,
        due: DateTime<Utc>,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<(Self, DateTime<Utc>)>, CalendarFault> {
        let Some(next) = self.following(due) else {
            return Ok(None);
        };
        let at = self.due_after(due, now, calendars)?;
        let at = at.filter(|at| self.end.is_none_or(|end| *at <= end));
        Ok(at.map(|at| (next, at)))
    }

    /// Returns the repetition of the occurrence after the one that was due at `due`, as one without
    /// a date.
    pub(crate) fn next_pending(&self, due: DateTime<Utc>) -> Option<Self> {
        let mut next = self.following(due)?;
        next.pending = Some(Pending::After(due));
        Some(next)
    }

    /// Returns the repetition of the first occurrence of a series that was created at `created`, as
    /// one without a date.
    pub(crate) fn first_pending(&self, created: DateTime<Utc>) -> Self {
        let mut first = self.clone();
        first.pending = Some(Pending::First(created));
        first
    }

    /// Returns the date of an occurrence without one, and its repetition. `None` if the series ends.
    /// `now` is the time at which the occurrence was created.
    ///
    /// # Errors
    /// [`BadRepeat`] if there is none, or the calendar gives none.
    pub(crate) fn resolve(
        &self,
        pending: Pending,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<(Self, DateTime<Utc>)>, BadRepeat> {
        let mut dated = self.clone();
        dated.pending = None;
        let at = match pending {
            Pending::First(created) => dated.first(created, calendars)?,
            Pending::After(due) => dated.due_after(due, now, calendars)?,
        };
        let at = at.filter(|at| self.end.is_none_or(|end| *at <= end));
        Ok(at.map(|at| (dated, at)))
    }

    /// Returns the repetition with the count after the occurrence that was due at `due`.
    fn following(&self, due: DateTime<Utc>) -> Option<Self> {
        let mut next = self.clone();
        next.times = match self.times {
            Some(n) if n <= 1 => return None,
            n => n.map(|n| n - 1),
        };
        let is_cron = matches!(self.schedule, Schedule::Cron(_));
        let is_fixed = matches!(self.schedule, Schedule::Every(_)) && self.calendar.is_none();
        if !is_cron && !is_fixed {
            // Without it, the next occurrence counted from a due date that a short month, a gap of
            // the clock or a calendar has moved.
            next.start = Some(self.start.unwrap_or(due));
        }
        Some(next)
    }

    /// Returns whether the occurrence that was due at `due` does not run, because the one after it
    /// is due as well at `now`. A calendar that gives no date lets it run.
    #[must_use]
    pub fn skips(&self, due: DateTime<Utc>, now: DateTime<Utc>, calendars: &Calendars) -> bool {
        let following = || self.dated(self.start.unwrap_or(due), due, calendars);
        self.catch_up == CatchUp::Skip && matches!(following(), Ok(Some(next)) if next <= now)
    }

    /// Returns the first due date after `after`, of periods that are counted from `start`.
    pub(crate) fn after(
        &self,
        start: DateTime<Utc>,
        after: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        match &self.schedule {
            Schedule::Cron(cron) if start > after => cron.from(start, self.zone()),
            Schedule::Cron(cron) => cron.after(after, self.zone()),
            Schedule::Calendar(period) => period.after(start, after, self.zone()),
            Schedule::Every(_) if start > after => Some(start),
            Schedule::Every(every) => {
                let passed = (after - start).to_std().ok()?.as_nanos();
                let periods = passed.checked_div(every.as_nanos())? + 1;
                let nanos = periods.checked_mul(every.as_nanos())?;
                let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
                let rest = u32::try_from(nanos % 1_000_000_000).ok()?;
                let by = chrono::Duration::from_std(Duration::new(seconds, rest)).ok()?;
                start.checked_add_signed(by)
            }
        }
    }

    fn zone(&self) -> Tz {
        self.zone.unwrap_or(Tz::UTC)
    }
}

impl FromStr for Repeat {
    type Err = BadRepeat;

    fn from_str(text: &str) -> Result<Self, BadRepeat> {
        Self::parse(text)
    }
}

/// The text that [`parse`](Repeat::parse) reads as the same repetition.
impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = |at: &DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
        match &self.schedule {
            Schedule::Cron(cron)
                if self.times.is_none() && self.start.is_none() && self.end.is_none() =>
            {
                write!(f, "{cron}")?;
            }
            schedule => {
                f.write_str("R")?;
                if let Some(times) = self.times {
                    write!(f, "{times}")?;
                }
                if let Some(start) = &self.start {
                    write!(f, "/{}", date(start))?;
                }
                match schedule {
                    Schedule::Every(every) => write!(f, "/PT{}S", duration::seconds(*every))?,
                    Schedule::Calendar(period) => write!(f, "/{period}")?,
                    Schedule::Cron(cron) => write!(f, "/cron({cron})")?,
                }
                if let Some(end) = &self.end {
                    write!(f, "/{}", date(end))?;
                }
            }
        }
        if let Some(zone) = self.zone {
            write!(f, "[{}]", zone.name())?;
        }
        if self.catch_up != CatchUp::Once {
            write!(f, "[catch-up={}]", self.catch_up.as_str())?;
        }
        if let Some(calendar) = &self.calendar {
            write!(f, "[calendar={calendar}]")?;
        }
        if self.closed != Closed::Move {
            write!(f, "[closed={}]", self.closed.as_str())?;
        }
        if let Some(pending) = &self.pending {
            write!(f, "[pending={pending}]")?;
        }
        Ok(())
    }
}
