//! Business calendars: when there is working time, by name.
//!
//! A repetition names a calendar in its text (`R/P1D[Europe/Berlin][calendar=berlin-office]`), and so
//! does a due date that counts working time only ([`NewJob::due_in_calendar`]). Programs register
//! their calendars with the store ([`PgStore::with_calendars`], [`SqliteStore::with_calendars`]), so
//! that the clients and nodes of the store know them.
//!
//! ```
//! use jobwire_core::calendar::{Calendars, WorkingHours};
//!
//! let office = WorkingHours::in_zone("Europe/Berlin")?
//!     .open("Mon-Thu", "09:00-12:00, 13:00-17:30")?
//!     .open("Fri", "09:00-15:00")?
//!     .closed("12-25")?
//!     .closed("2027-03-26")?
//!     .open_on("12-24", "09:00-12:00")?;
//! let calendars = Calendars::default().with("berlin-office", office)?;
//! # Ok::<(), jobwire_core::Error>(())
//! ```
//!
//! A program without the calendar computes no date with it; see [`CalendarFault::Unknown`].
//!
//! [`NewJob::due_in_calendar`]: crate::NewJob::due_in_calendar
//! [`PgStore::with_calendars`]: crate::PgStore::with_calendars
//! [`SqliteStore::with_calendars`]: crate::SqliteStore::with_calendars

#[cfg(test)]
pub(in crate::job) mod tests;
mod working_hours;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Datelike, SubsecRound, Utc};

pub use working_hours::{BadHours, WorkingHours};

/// The last year for which calendars are asked, as for repetitions.
const LAST_YEAR: i32 = 9_999;
/// The maximum length of a calendar's name.
const MAX_NAME: usize = 64;
/// The number of spans that one duration may use: some forty years of days with two spans each. It
/// bounds the time of a calendar with very short spans.
const MOST_SPANS: u32 = 20_000;

/// A span of working time. It includes `from`, and ends before `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkingTime {
    /// The first moment of the span.
    pub from: DateTime<Utc>,
    /// The first moment after the span.
    pub to: DateTime<Utc>,
}

/// A calendar of an application. [`WorkingHours`] is the built-in one.
///
/// The calls come from tasks of the runtime and from transactions, so they must not block: keep the
/// data in memory. A call that panics, or returns a span of the past, counts as no answer
/// ([`CalendarFault`]).
///
/// ```
/// use jobwire_core::calendar::{BusinessCalendar, WorkingTime};
/// use jobwire_core::chrono::{DateTime, Duration, Utc};
///
/// /// The first quarter of each hour.
/// struct Quarters;
///
/// impl BusinessCalendar for Quarters {
///     fn working_time(&self, at: DateTime<Utc>) -> Option<WorkingTime> {
///         let hour = at - Duration::seconds(at.timestamp() % 3_600);
///         let spans = [hour, hour + Duration::hours(1)].map(|from| {
///             WorkingTime { from, to: from + Duration::minutes(15) }
///         });
///         spans.into_iter().find(|span| span.to > at)
///     }
/// }
/// ```
pub trait BusinessCalendar: Send + Sync + 'static {
    /// Returns the first span of working time that ends after `at`: the one around `at`, or the next
    /// one, which is the same for all moments of the closed time before it. `None` if there is no
    /// working time any more.
    fn working_time(&self, at: DateTime<Utc>) -> Option<WorkingTime>;
}

/// The calendars that a program knows, by name. Clones share them. Empty by default.
#[derive(Clone, Default)]
pub struct Calendars(Arc<BTreeMap<String, Arc<dyn BusinessCalendar>>>);

/// The reason why a date could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalendarFault {
    /// This program has no calendar of the name. A node runs the job if its date is known, and
    /// leaves the next date to a node that knows the calendar.
    #[error("this program knows no calendar `{0}`; register it (`calendars`), or correct the name")]
    Unknown(String),
    /// The calendar panicked.
    #[error("the calendar `{0}` panicked: {1}")]
    Panicked(String, String),
    /// The calendar returned a span that is empty or over.
    #[error("the calendar `{0}` returned a span that ends before it begins, or in the past")]
    Past(String),
    /// The calendar has no working time after a date.
    #[error("the calendar `{0}` has no working time after {1}")]
    Closed(String, DateTime<Utc>),
    /// The calendar is too fine, or its working time is never that of the schedule.
    #[error("`{1}` leads to no date in the working time of the calendar `{0}`")]
    Never(String, String),
}

/// The error for a calendar that can't be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadCalendar {
    /// The name has other characters, is empty or too long.
    #[error("the calendar `{0}` needs a name of 1 to 64 letters, digits, `-`, `_` or `.`")]
    Name(String),
    /// Two calendars have the name.
    #[error("the calendar `{0}` is registered twice; give each its own name")]
    Twice(String),
    /// The calendar does not answer, or has no working time.
    #[error("{0}; correct the calendar before it is registered")]
    Fault(#[from] CalendarFault),
}

impl CalendarFault {
    /// Returns whether another program, or this one later, may get a date.
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Panicked(..) | Self::Past(_))
    }

    /// Returns the remedy for a date that can't be computed.
    pub(crate) const fn remedy(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "give all programs of the fleet the same calendars",
            Self::Panicked(..) | Self::Past(_) => "correct the calendar",
            Self::Closed(..) => "give the calendar working time in the future",
            Self::Never(..) => "choose dates in the working time, or leave `[closed=skip]` out",
        }
    }
}

impl fmt::Debug for Calendars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Calendars {
    /// Adds a calendar.
    ///
    /// # Errors
    /// [`BadCalendar`] for an invalid name or one that is there already, and for a calendar that has
    /// no working time from now on.
    pub fn with(
        self,
        name: impl Into<String>,
        calendar: impl BusinessCalendar,
    ) -> Result<Self, BadCalendar> {
        let name = name.into();
        let all = self.with_unchecked(name.clone(), calendar)?;
        all.span(&name, Utc::now())?;
        Ok(all)
    }

    /// Adds a calendar that may have no working time any more, for the setting `calendars`: a calendar
    /// that has run out must not stop a program.
    ///
    /// # Errors
    /// [`BadCalendar`] for an invalid name or one that is there already.
    #[doc(hidden)]
    pub fn with_unchecked(
        mut self,
        name: impl Into<String>,
        calendar: impl BusinessCalendar,
    ) -> Result<Self, BadCalendar> {
        let name = name.into();
        if !is_name(&name) {
            return Err(BadCalendar::Name(name));
        }
        if self.0.contains_key(&name) {
            return Err(BadCalendar::Twice(name));
        }
        let mut all = BTreeMap::clone(&self.0);
        all.insert(name, Arc::new(calendar));
        self.0 = Arc::new(all);
        Ok(self)
    }

    /// Returns the names of the calendars, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns whether there is no calendar.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first moment of working time at a date or after it.
    ///
    /// # Errors
    /// [`CalendarFault`] if the calendar is unknown or does not answer.
    pub fn open_from(&self, name: &str, at: DateTime<Utc>) -> Result<DateTime<Utc>, CalendarFault> {
        Ok(self.span(name, at)?.from.max(at))
    }

    /// Returns the date at which this much working time has passed since `from`. The count begins
    /// with the next working time if there is none at `from`. A duration that ends with a span of
    /// working time ends at its end; a duration of zero leads to the next moment of working time.
    ///
    /// # Errors
    /// [`CalendarFault`] if the calendar is unknown, does not answer, or has too little working time.
    pub fn after(
        &self,
        name: &str,
        from: DateTime<Utc>,
        working: Duration,
    ) -> Result<DateTime<Utc>, CalendarFault> {
        let never = || {
            let text = format!("{} s of working time", working.as_secs());
            CalendarFault::Never(name.to_owned(), text)
        };
        let mut left = chrono::Duration::from_std(working).map_err(|_| never())?;
        let mut at = from;
        for _ in 0..MOST_SPANS {
            let span = self.span(name, at)?;
            let begin = span.from.max(at);
            let length = span.to.signed_duration_since(begin);
            if left <= length {
                return begin.checked_add_signed(left).ok_or_else(never);
            }
            left -= length;
            at = span.to;
        }
        Err(never())
    }

    /// Returns the beginning of the closed time around `at`, which is not working time. It lies
    /// after `bound`, or is `bound`.
    pub(crate) fn closed_since(
        &self,
        name: &str,
        bound: DateTime<Utc>,
        at: DateTime<Utc>,
    ) -> Result<DateTime<Utc>, CalendarFault> {
        let next = self.span(name, at)?;
        let (mut before, mut within) = (bound, at);
        if self.span(name, before)? == next {
            return Ok(bound);
        }
        // A calendar answers with the next span throughout the closed time before it.
        while within.signed_duration_since(before) > chrono::Duration::microseconds(1) {
            let middle = before + within.signed_duration_since(before) / 2;
            if self.span(name, middle)? == next {
                within = middle;
            } else {
                before = middle;
            }
        }
        Ok(within.trunc_subsecs(6))
    }

    /// Asks a calendar, and checks its answer.
    fn span(&self, name: &str, at: DateTime<Utc>) -> Result<WorkingTime, CalendarFault> {
        let Some(calendar) = self.0.get(name) else {
            return Err(CalendarFault::Unknown(name.to_owned()));
        };
        let asked = catch_unwind(AssertUnwindSafe(|| calendar.working_time(at)));
        let answer = asked.map_err(|panic| {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            CalendarFault::Panicked(name.to_owned(), text.unwrap_or_default())
        })?;
        let span = answer
            .filter(|span| span.from.year() <= LAST_YEAR)
            .ok_or_else(|| CalendarFault::Closed(name.to_owned(), at))?;
        // The databases count microseconds. The first moment is rounded up, so that it is working
        // time.
        let micros = |date: DateTime<Utc>| date.trunc_subsecs(6);
        let from = micros(span.from);
        let from = if from < span.from {
            from + chrono::Duration::microseconds(1)
        } else {
            from
        };
        if span.to <= at || from >= span.to {
            return Err(CalendarFault::Past(name.to_owned()));
        }
        Ok(WorkingTime { from, to: span.to })
    }
}

/// Returns whether a text is a calendar's name.
pub(crate) fn is_name(name: &str) -> bool {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(valid)
}
