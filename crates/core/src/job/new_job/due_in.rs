//! The due date that counts from the creation: `PT8H`, or `PT8H[calendar=berlin-office]`.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::job::calendar::{self, CalendarFault, Calendars};
use crate::job::duration;
use crate::job::invalid_job::InvalidJob;
use crate::job::new_job::NewJob;
use crate::job::repeat::{BadRepeat, Repeat};

/// The beginning of a suffix that names a calendar.
const SUFFIX: &str = "[calendar=";

/// A time, and the calendar whose working time is counted.
struct DueIn<'a> {
    time: Duration,
    calendar: Option<&'a str>,
}

fn wrong(problem: String) -> InvalidJob {
    InvalidJob::new(
        "due_in",
        problem,
        "use for example `PT8H` or `PT8H[calendar=berlin-office]`",
    )
}

impl<'a> DueIn<'a> {
    fn parse(text: &'a str) -> Result<Self, InvalidJob> {
        let (time, calendar) = match text.trim().split_once(SUFFIX) {
            Some((time, rest)) => (time, Some(rest)),
            None => (text.trim(), None),
        };
        let calendar = match calendar.map(|rest| (rest, rest.strip_suffix(']'))) {
            None => None,
            Some((_, Some(name))) if calendar::is_name(name) => Some(name),
            Some((rest, _)) => return Err(wrong(format!("has no calendar's name in `{rest}`"))),
        };
        let time = duration::parse(time.trim_end()).map_err(|bad| wrong(bad.problem()))?;
        Ok(Self { time, calendar })
    }
}

impl NewJob {
    /// Checks the time from the creation.
    pub(super) fn check_due_in(&self) -> Result<(), InvalidJob> {
        let Some(text) = &self.due_in else {
            return Ok(());
        };
        if self.due_at.is_some() {
            return Err(InvalidJob::new(
                "due_in",
                "is set beside `due_at`",
                "leave out one of them",
            ));
        }
        DueIn::parse(text).map(drop)
    }

    /// Sets the due date, if it depends on the time of the creation or on a calendar. The first date
    /// of a series on a calendar that is unknown here is left to the nodes.
    ///
    /// # Errors
    /// The calendar of a due date is unknown, or a calendar gives no date.
    pub(crate) fn date(&mut self, calendars: &Calendars) -> Result<(), InvalidJob> {
        if self.is_copy {
            return Ok(());
        }
        self.check_due_in()?;
        let now = Utc::now();
        if let Some(text) = self.due_in.take() {
            self.due_at = Some(due(&DueIn::parse(&text)?, now, calendars)?);
        }
        let on_calendar = self.repeat.as_deref().filter(|text| text.contains(SUFFIX));
        let Some(text) = on_calendar.filter(|_| self.due_at.is_none()) else {
            return Ok(());
        };
        let repeat = Repeat::parse(text).map_err(|error| InvalidJob::repeat(&error))?;
        match repeat.first(now, calendars) {
            Ok(first) => self.due_at = first,
            Err(BadRepeat::Fault(CalendarFault::Unknown(_))) => {}
            Err(error) => return Err(InvalidJob::repeat(&error)),
        }
        Ok(())
    }
}

fn due(
    due_in: &DueIn<'_>,
    now: DateTime<Utc>,
    calendars: &Calendars,
) -> Result<DateTime<Utc>, InvalidJob> {
    match due_in.calendar {
        Some(calendar) => calendars
            .after(calendar, now, due_in.time)
            .map_err(|fault| {
                let remedy = match fault {
                    CalendarFault::Never(..) => "use a shorter time",
                    _ => fault.remedy(),
                };
                InvalidJob::fault("due_in", &fault, remedy)
            }),
        None => chrono::Duration::from_std(due_in.time)
            .ok()
            .and_then(|time| now.checked_add_signed(time))
            .ok_or_else(|| InvalidJob::new("due_in", "is too long", "use a shorter time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_has_one_remedy() {
        let job = NewJob::of("work", &()).due_in_text("5 minutes");
        let said = job.validate().unwrap_err().to_string();
        assert_eq!(
            said,
            "field `due_in` `5 minutes` is not a duration; use for example `PT8H` or \
             `PT8H[calendar=berlin-office]`"
        );
        let job = NewJob::of("work", &()).due_in_text("PT8H").due(Utc::now());
        let said = job.validate().unwrap_err().to_string();
        let expected = "field `due_in` is set beside `due_at`; leave out one of them";
        assert_eq!(said, expected);
    }
}
