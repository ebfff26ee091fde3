//! The built-in calendar: working days and hours in a time zone, with holidays and special days.
//!
//! Hours are local times. A bound that the time zone skips on a day (a clock goes forward) is moved
//! by the length of the gap, and a span without a length on that day is left out. Of a bound that
//! occurs twice (a clock goes back), the first one begins a span and the last one ends it. Working
//! time is elapsed time: a span over the change is an hour shorter or longer than the clock shows.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike, Days, NaiveDate, NaiveDateTime, Utc, Weekday};
use chrono_tz::Tz;

use super::{BusinessCalendar, LAST_YEAR, WorkingTime};
use crate::job::local;

/// The number of days without working time after which the calendar has none: eleven years, in which
/// each day of each month occurs twice, 29 February included.
const SEARCHED: u64 = 4_020;
/// The minutes of a day.
const DAY: u16 = 24 * 60;

/// A text that is no working time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadHours {
    /// The time zone is unknown.
    #[error("`{0}` is not a time zone; write a name such as Europe/Berlin")]
    Zone(String),
    /// The days of the week can't be read.
    #[error("`{0}` are no days of the week; write for example `Mon-Thu` or `Mon, Wed, Fri`")]
    Days(String),
    /// A day has hours already.
    #[error("a day of `{0}` has hours already; give all hours of a day together")]
    Twice(String),
    /// The hours can't be read.
    #[error(
        "`{0}` are no hours; write for example `09:00-12:00, 13:00-17:30`, in order, none beyond \
         24:00 (write a night as two spans)"
    )]
    Hours(String),
    /// The date can't be read.
    #[error("`{0}` is no date; write `2027-12-25`, or `12-25` for each year")]
    Date(String),
}

/// Minutes of a day, from and to.
type Span = (u16, u16);

/// A date of one year, or of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Day {
    Once(NaiveDate),
    Yearly(u32, u32),
}

/// Working days and hours in a time zone. Options:
///
/// | option | meaning | default |
/// | --- | --- | --- |
/// | [`open`](Self::open) | hours of days of the week | closed |
/// | [`closed`](Self::closed) | a holiday, once or each year | none |
/// | [`open_on`](Self::open_on) | the hours of one date, instead of those of its day of the week | none |
#[derive(Clone, Debug)]
#[must_use = "hours do nothing until they are registered with `Calendars::with`"]
pub struct WorkingHours {
    zone: Tz,
    week: BTreeMap<u8, Vec<Span>>,
    closed: BTreeSet<Day>,
    special: BTreeMap<Day, Vec<Span>>,
}

impl WorkingHours {
    /// Creates a calendar without working time, in a time zone of the IANA database.
    ///
    /// # Errors
    /// [`BadHours::Zone`].
    pub fn in_zone(zone: &str) -> Result<Self, BadHours> {
        let zone = zone.parse().map_err(|_| BadHours::Zone(zone.to_owned()))?;
        Ok(Self {
            zone,
            week: BTreeMap::new(),
            closed: BTreeSet::new(),
            special: BTreeMap::new(),
        })
    }

    /// Sets the hours of days of the week: `open("Mon-Fri", "09:00-17:00")`.
    ///
    /// # Errors
    /// [`BadHours::Days`], [`BadHours::Hours`], or [`BadHours::Twice`] if one of the days has hours.
    pub fn open(mut self, days: &str, hours: &str) -> Result<Self, BadHours> {
        let hours = spans(hours)?;
        for day in week_days(days)? {
            if self.week.insert(day, hours.clone()).is_some() {
                return Err(BadHours::Twice(days.to_owned()));
            }
        }
        Ok(self)
    }

    /// Adds a holiday: `2027-12-25`, or `12-25` for each year.
    ///
    /// # Errors
    /// [`BadHours::Date`].
    pub fn closed(mut self, date: &str) -> Result<Self, BadHours> {
        self.closed.insert(day(date)?);
        Ok(self)
    }

    /// Sets the hours of a date, `2027-12-24`, or `12-24` for each year. They replace those of its day
    /// of the week, also on a holiday. A date of one year comes before one of each year.
    ///
    /// # Errors
    /// [`BadHours::Date`] or [`BadHours::Hours`].
    pub fn open_on(mut self, date: &str, hours: &str) -> Result<Self, BadHours> {
        self.special.insert(day(date)?, spans(hours)?);
        Ok(self)
    }

    /// Returns the spans of a local date, in minutes.
    fn spans_of(&self, date: NaiveDate) -> &[Span] {
        for day in [Day::Once(date), Day::Yearly(date.month(), date.day())] {
            if let Some(spans) = self.special.get(&day) {
                return spans;
            }
            if self.closed.contains(&day) {
                return &[];
            }
        }
        let day = date.weekday().num_days_from_monday();
        let spans = u8::try_from(day).ok().and_then(|day| self.week.get(&day));
        spans.map_or(&[], Vec::as_slice)
    }

    /// Returns a span of a date, if it has a length on that date.
    fn moments(&self, date: NaiveDate, (from, to): Span) -> Option<WorkingTime> {
        let from = local::moment(local_time(date, from)?, self.zone)?;
        let to = local::last_moment(local_time(date, to)?, self.zone)?;
        (from < to).then_some(WorkingTime { from, to })
    }
}

impl BusinessCalendar for WorkingHours {
    fn working_time(&self, at: DateTime<Utc>) -> Option<WorkingTime> {
        if !(1..=LAST_YEAR).contains(&at.year()) {
            return None;
        }
        // A gap of the clock may move the end of a day into the next one.
        let today = at.with_timezone(&self.zone).date_naive();
        let first = today.checked_sub_days(Days::new(2))?;
        let days = (0..SEARCHED).map_while(|n| first.checked_add_days(Days::new(n)));
        let mut spans = days.flat_map(|date| {
            let spans = self.spans_of(date).iter();
            let moments = spans.filter_map(|span| self.moments(date, *span));
            // A gap of the clock may move one span behind another one.
            let mut moments: Vec<WorkingTime> = moments.collect();
            moments.sort_unstable_by_key(|span| (span.from, span.to));
            moments
        });
        spans.find(|span| span.to > at)
    }
}

fn local_time(date: NaiveDate, minutes: u16) -> Option<NaiveDateTime> {
    let midnight = date.and_hms_opt(0, 0, 0)?;
    midnight.checked_add_signed(chrono::Duration::minutes(minutes.into()))
}

/// Reads `09:00-12:00, 13:00-17:30`.
fn spans(text: &str) -> Result<Vec<Span>, BadHours> {
    let bad = || BadHours::Hours(text.to_owned());
    let mut spans: Vec<Span> = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').ok_or_else(bad)?;
        let span = (minutes(from).ok_or_else(bad)?, minutes(to).ok_or_else(bad)?);
        let last = spans.last().map_or(0, |(_, to)| *to);
        if span.0 >= span.1 || span.0 < last {
            return Err(bad());
        }
        spans.push(span);
    }
    Ok(spans)
}

/// Reads `09:00`, up to `24:00`.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let number = |text: &str| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u16>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let all = hours * 60 + minutes;
    (minutes < 60 && all <= DAY).then_some(all)
}

/// Reads `Mon-Thu`, `Mon, Wed, Fri`. A range may lead over Sunday.
fn week_days(text: &str) -> Result<Vec<u8>, BadHours> {
    let bad = || BadHours::Days(text.to_owned());
    let day = |name: &str| -> Result<u32, BadHours> {
        let day: Weekday = name.trim().parse().map_err(|_| bad())?;
        Ok(day.num_days_from_monday())
    };
    let mut days = Vec::new();
    for part in text.split(',') {
        let (from, to) = match part.split_once('-') {
            Some((from, to)) => (day(from)?, day(to)?),
            None => (day(part)?, day(part)?),
        };
        let length = (to + 7 - from) % 7;
        days.extend((0..=length).filter_map(|n| u8::try_from((from + n) % 7).ok()));
    }
    Ok(days)
}

/// Reads `2027-12-25` or `12-25`.
fn day(text: &str) -> Result<Day, BadHours> {
    let bad = || BadHours::Date(text.to_owned());
    if let Ok(date) = text.trim().parse::<NaiveDate>() {
        return Ok(Day::Once(date));
    }
    // A leap year has each day of each month.
    let date: NaiveDate = format!("2000-{}", text.trim()).parse().map_err(|_| bad())?;
    Ok(Day::Yearly(date.month(), date.day()))
}
