//! The dates of a repetition in the working time of its calendar.
//!
//! The schedule gives dates on all days. A date outside of working time moves to the next working
//! time, or is skipped ([`Closed`]). Several dates that move to the same moment are one occurrence, so
//! the dates of a series always grow.

#[cfg(test)]
mod tests;

use chrono::{DateTime, Utc};

use super::{CatchUp, Closed, Repeat, Schedule};
use crate::job::calendar::{CalendarFault, Calendars};

/// The number of closed times in a row whose dates are skipped, before the schedule counts as one
/// that never meets working time.
const MOST_SKIPPED: u32 = 2_000;

/// The smallest time that the databases count.
const TICK: chrono::Duration = chrono::Duration::microseconds(1);

impl Repeat {
    /// Returns the first date of a series whose schedule begins at `now`, or at its start.
    pub(super) fn first_dated(
        &self,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<DateTime<Utc>>, CalendarFault> {
        let start = self.start.unwrap_or(now);
        let from = match self.schedule {
            // A cron expression has no date of its own in the start.
            Schedule::Cron(_) => start.max(now),
            _ if self.start.is_none_or(|start| start >= now) => start,
            _ => now,
        };
        self.dated(start, from - TICK, calendars)
    }

    /// Returns the first date after `after`, of periods that are counted from `start`.
    pub(crate) fn dated(
        &self,
        start: DateTime<Utc>,
        after: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<DateTime<Utc>>, CalendarFault> {
        let mut date = self.after(start, after);
        let Some(calendar) = &self.calendar else {
            return Ok(date);
        };
        for skipped in 0..MOST_SKIPPED {
            let Some(at) = date else {
                if skipped == 0 {
                    return Ok(None);
                }
                // All dates that are left were skipped. The series has not ended.
                break;
            };
            if self.end.is_some_and(|end| at > end) {
                return Ok(None);
            }
            let open = calendars.open_from(calendar, at)?;
            if open == at || self.closed == Closed::Move {
                return Ok(Some(open));
            }
            date = self.after(start, open - TICK);
        }
        let text = self.to_string();
        Err(CalendarFault::Never(calendar.clone(), text))
    }

    /// Returns the first date after `now` that belongs to a schedule date after `due`: a schedule
    /// date in the closed time around `now` moves to its end.
    pub(crate) fn dated_from_now(
        &self,
        start: DateTime<Utc>,
        due: DateTime<Utc>,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<DateTime<Utc>>, CalendarFault> {
        if let Some(calendar) = &self.calendar
            && self.closed == Closed::Move
        {
            let open = calendars.open_from(calendar, now)?;
            if open > now && due < now {
                let closed = calendars.closed_since(calendar, due, now)?;
                let moved = self.after(start, due.max(closed - TICK));
                let is_there =
                    |at: &DateTime<Utc>| *at <= now && self.end.is_none_or(|end| *at <= end);
                if moved.as_ref().is_some_and(is_there) {
                    return Ok(Some(open));
                }
            }
        }
        self.dated(start, now, calendars)
    }

    /// Returns the date of the occurrence after the one that was due at `due` and ended at `now`.
    pub(super) fn due_after(
        &self,
        due: DateTime<Utc>,
        now: DateTime<Utc>,
        calendars: &Calendars,
    ) -> Result<Option<DateTime<Utc>>, CalendarFault> {
        let start = self.start.unwrap_or(due);
        let Some(next) = self.dated(start, due, calendars)? else {
            return Ok(None);
        };
        if next >= now || self.catch_up == CatchUp::All {
            return Ok(Some(next));
        }
        match (&self.schedule, self.start, self.catch_up) {
            // The series begins anew.
            (Schedule::Every(every), None, CatchUp::Once) if self.calendar.is_none() => {
                let every = chrono::Duration::from_std(*every).ok();
                Ok(every.and_then(|every| now.checked_add_signed(every)))
            }
            _ => self.dated_from_now(start, due, now, calendars),
        }
    }
}
