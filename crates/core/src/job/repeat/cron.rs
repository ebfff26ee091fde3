//! Cron expressions of five or six fields.

use std::fmt;

use chrono::{DateTime, Datelike, Duration, SubsecRound, Timelike, Utc};
use chrono_tz::Tz;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};

use super::BadRepeat;
use super::period::LAST_YEAR;

/// A cron expression: minute, hour, day of the month, month and day of the week, with an optional
/// field for the second before them.
///
/// An expression with a single second, minute and hour runs once on each of its days: when its time
/// is skipped (a clock goes forward), at the first moment after the gap; when it occurs twice (a
/// clock goes back), at the first one. Any other expression follows the clock: what is skipped does
/// not run, what occurs twice runs twice.
#[derive(Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    pattern: Box<croner::Cron>,
}

impl Cron {
    /// Reads an expression, for example `*/15 8-17 * * MON-FRI` or `@daily`.
    ///
    /// # Errors
    /// [`BadRepeat::Cron`] with the reason.
    pub fn parse(text: &str) -> Result<Self, BadRepeat> {
        let text = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .sloppy_ranges(true)
            .build();
        match parser.parse(&text) {
            Ok(pattern) => Ok(Self {
                text,
                pattern: Box::new(pattern),
            }),
            Err(error) => Err(BadRepeat::Cron(text, reason(&error))),
        }
    }

    /// Returns the first occurrence after `after`. `None` if there is none before the year 5000.
    pub(super) fn after(&self, after: DateTime<Utc>, zone: Tz) -> Option<DateTime<Utc>> {
        // The local date of a later one may not exist.
        if after.year() > LAST_YEAR {
            return None;
        }
        // Cron counts whole seconds.
        let from = after.with_timezone(&zone).trunc_subsecs(0);
        let next = self.pattern.find_next_occurrence(&from, false).ok()?;
        Some(next.with_timezone(&Utc))
    }

    /// Returns the first occurrence at `from` or after it.
    pub(super) fn from(&self, from: DateTime<Utc>, zone: Tz) -> Option<DateTime<Utc>> {
        let before = if from.nanosecond() == 0 {
            from.checked_sub_signed(Duration::seconds(1))?
        } else {
            from
        };
        self.after(before, zone)
    }
}

/// Returns the reason of the parser's error, without the words of its inside.
fn reason(error: &CronError) -> String {
    let (CronError::InvalidPattern(reason)
    | CronError::IllegalCharacters(reason)
    | CronError::ComponentError(reason)) = error
    else {
        return error.to_string().trim_end_matches('.').to_owned();
    };
    reason.trim_end_matches('.').to_owned()
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Shows the text: the parsed fields are thousands of numbers.
impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cron").field(&self.text).finish()
    }
}
