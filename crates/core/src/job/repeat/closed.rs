//! Dates outside of working time, and dates that are not known yet.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};

/// The rule for a date of a repetition outside of the working time of its calendar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Closed {
    /// It moves to the next working time.
    #[default]
    Move,
    /// It is left out.
    Skip,
}

impl Closed {
    /// Returns the word in texts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Move => "move",
            Self::Skip => "skip",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "move" => Some(Self::Move),
            "skip" => Some(Self::Skip),
            _ => None,
        }
    }
}

/// An occurrence whose date is not known yet: a program without the calendar has created it. Its due
/// date is that of the next attempt to compute the date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The first occurrence of a series that was created at a date.
    First(DateTime<Utc>),
    /// The occurrence after one that was due at a date.
    After(DateTime<Utc>),
}

impl Pending {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (word, date) = text.split_once('@')?;
        let date = DateTime::parse_from_rfc3339(date).ok()?.with_timezone(&Utc);
        match word {
            "first" => Some(Self::First(date)),
            "after" => Some(Self::After(date)),
            _ => None,
        }
    }
}

/// Writes `after@2027-01-31T08:00:00Z`.
impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, date) = match self {
            Self::First(date) => ("first", date),
            Self::After(date) => ("after", date),
        };
        let date = date.to_rfc3339_opts(SecondsFormat::AutoSi, true);
        write!(f, "{word}@{date}")
    }
}
