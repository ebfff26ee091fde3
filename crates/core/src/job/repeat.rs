//! The interval of a repeating job, written in ISO 8601: `R3/PT10M` (three occurrences) or
//! `R/PT10M` (without end).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::job::duration::{self, BadDuration};

/// A repeating interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The number of occurrences left, the next one included; `None` for no limit.
    pub times: Option<u32>,
    /// The time from one due date to the next.
    pub every: Duration,
}

/// The error for a text that is not a valid repeating interval.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRepeat {
    /// The text does not have the form `R…/…`.
    #[error("`{0}` is not of the form R3/PT10M or R/PT10M")]
    Form(String),
    /// The count is invalid.
    #[error("the count in `{0}` is not a number of 1 or more")]
    Count(String),
    /// The interval is invalid.
    #[error(transparent)]
    Every(#[from] BadDuration),
}

impl Repeat {
    /// Reads a repeating interval.
    ///
    /// # Errors
    /// [`BadRepeat`], which names the invalid part.
    pub fn parse(text: &str) -> Result<Self, BadRepeat> {
        let (times, every) = text
            .trim_ascii()
            .strip_prefix('R')
            .and_then(|t| t.split_once('/'))
            .ok_or_else(|| BadRepeat::Form(text.to_owned()))?;
        let times = match times {
            "" => None,
            n => Some(
                n.parse()
                    .ok()
                    .filter(|n| *n >= 1)
                    .ok_or_else(|| BadRepeat::Count(text.to_owned()))?,
            ),
        };
        Ok(Self {
            times,
            every: duration::parse(every)?,
        })
    }

    /// Creates an interval that repeats without end.
    #[must_use]
    pub const fn forever(every: Duration) -> Self {
        Self { times: None, every }
    }

    /// Creates an interval with this many occurrences, the first included.
    #[must_use]
    pub const fn times(times: u32, every: Duration) -> Self {
        Self {
            times: Some(times),
            every,
        }
    }
}

impl FromStr for Repeat {
    type Err = BadRepeat;

    fn from_str(text: &str) -> Result<Self, BadRepeat> {
        Self::parse(text)
    }
}

/// The text that [`parse`](Repeat::parse) reads as the same interval.
impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = duration::seconds(self.every);
        match self.times {
            Some(n) => write!(f, "R{n}/PT{every}S"),
            None => write!(f, "R/PT{every}S"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_for_ever_are_read() {
        let every = Duration::from_secs(600);
        assert_eq!(
            Repeat::parse("R3/PT10M"),
            Ok(Repeat {
                times: Some(3),
                every
            })
        );
        assert_eq!(Repeat::parse("R/PT10M"), Ok(Repeat { times: None, every }));
        for text in ["", "PT10M", "R0/PT10M", "R-1/PT10M", "R3", "R3/PT0S"] {
            assert!(Repeat::parse(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in ["R3/PT10M", "R/PT0.5S", "R/PT0.000000001S", "R/P36600D"] {
            let repeat = Repeat::parse(text).unwrap();
            assert_eq!(Repeat::parse(&repeat.to_string()), Ok(repeat));
        }
    }

    /// Written as a float of seconds, 1.14 s became 1.1400000000000001 s, which can't be read.
    #[test]
    fn every_millisecond_of_two_hours_is_written_exactly() {
        for millis in 1..=7_200_000 {
            let repeat = Repeat {
                times: None,
                every: Duration::from_millis(millis),
            };
            assert_eq!(
                Repeat::parse(&repeat.to_string()),
                Ok(repeat),
                "{millis} ms"
            );
        }
    }
}
