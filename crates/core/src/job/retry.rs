//! Retry policies: the time that a failed job waits before its next attempt.
//!
//! | written | meaning |
//! | --- | --- |
//! | `30s`, `PT30S` | the same wait each time |
//! | `exponential(1s, 2, 1h)` | 1 s, 2 s, 4 s … each ±10 % at random, so that jobs that failed together spread; never more than 1 h |
//! | `R5/PT5M` | five attempts, 5 minutes apart (ISO 8601 repeating interval, as the engines write it) |
//! | `PT10M,PT17M,PT20M` | these waits in turn; the last one repeats |
//!
//! The default is that of the engines (`asyncFailedJobWaitTime`): a fixed wait of 10 s. A wait counts
//! from the failure, or from the old due date ([`RetryFrom`]).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::Rng;

use crate::job::duration::{self, BadDuration};
use crate::job::text_enum;

/// The waits between attempts. The [module](self) describes their text form.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RetryPolicy {
    /// The same wait each time.
    Fixed(Duration),
    /// Growing waits with jitter.
    Exponential {
        /// The first wait.
        first: Duration,
        /// The factor from one wait to the next.
        factor: f64,
        /// The longest wait.
        max: Duration,
    },
    /// A number of attempts with the same wait between them.
    Cycle {
        /// The number of attempts.
        attempts: i32,
        /// The wait between attempts.
        every: Duration,
    },
    /// These waits in turn; the last one repeats. Never empty.
    List(Vec<Duration>),
}

text_enum! {
    /// The time from which the wait of a retry policy counts.
    RetryFrom {
        /// The time of the failure.
        Now = "now",
        /// The due date of the failed attempt, as in Activiti 5 and 6. If the wait has passed
        /// since that date, the next attempt is due at once. The time of the failure counts if the
        /// job has no due date, or one that has not passed.
        DueDate = "due-date",
    }
}

#[allow(clippy::derivable_impls, reason = "the macro writes the enum")]
impl Default for RetryFrom {
    fn default() -> Self {
        Self::Now
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::Fixed(Duration::from_secs(10))
    }
}

/// The error for a text that is not a valid retry policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRetryPolicy {
    /// A duration is invalid.
    #[error(transparent)]
    Duration(#[from] BadDuration),
    /// `exponential(…)` does not have three parts.
    #[error("`{0}` is not of the form exponential(first, factor, max)")]
    Exponential(String),
    /// The factor is not a number from 1 to 100.
    #[error("the factor `{0}` is not a number from 1 to 100")]
    Factor(String),
    /// The count of a cycle is not 1 to 1,000,000.
    #[error("the count in `{0}` is not a number from 1 to 1000000")]
    Count(String),
    /// The list has more than 100 intervals.
    #[error("the list has {0} intervals, more than 100")]
    TooMany(usize),
}

impl RetryPolicy {
    /// Creates a policy with the same wait each time.
    #[must_use]
    pub const fn fixed(wait: Duration) -> Self {
        Self::Fixed(wait)
    }

    /// Creates a policy whose waits double from `first`, each ±10 % at random and at most `max`.
    #[must_use]
    pub const fn exponential(first: Duration, max: Duration) -> Self {
        Self::Exponential {
            first,
            factor: 2.0,
            max,
        }
    }

    /// Reads a policy.
    ///
    /// # Errors
    /// [`BadRetryPolicy`], which names the invalid part.
    pub fn parse(text: &str) -> Result<Self, BadRetryPolicy> {
        let text = text.trim_ascii();
        if let Some(parts) = text
            .strip_prefix("exponential(")
            .and_then(|t| t.strip_suffix(')'))
        {
            let [first, factor, max] = parts
                .split(',')
                .map(str::trim_ascii)
                .collect::<Vec<_>>()
                .try_into()
                .map_err(|_| BadRetryPolicy::Exponential(text.to_owned()))?;
            return Ok(Self::Exponential {
                first: duration::parse(first)?,
                factor: factor
                    .parse()
                    .ok()
                    .filter(|f: &f64| (1.0..=100.0).contains(f))
                    .ok_or_else(|| BadRetryPolicy::Factor(factor.to_owned()))?,
                max: duration::parse(max)?,
            });
        }
        if let Some(cycle) = text.strip_prefix('R')
            && let Some((count, every)) = cycle.split_once('/')
        {
            return Ok(Self::Cycle {
                attempts: count
                    .parse()
                    .ok()
                    .filter(|n| (1..=1_000_000).contains(n))
                    .ok_or_else(|| BadRetryPolicy::Count(text.to_owned()))?,
                every: duration::parse(every)?,
            });
        }
        if text.contains(',') {
            let waits: Vec<Duration> = text
                .split(',')
                .map(duration::parse)
                .collect::<Result<_, _>>()?;
            if waits.len() > 100 {
                return Err(BadRetryPolicy::TooMany(waits.len()));
            }
            return Ok(Self::List(waits));
        }
        Ok(Self::Fixed(duration::parse(text)?))
    }

    /// Returns the number of attempts that the policy names: the count of a cycle, or one more than
    /// the waits of a list (as Camunda 7 reads lists).
    #[must_use]
    pub fn attempts(&self) -> Option<i32> {
        match self {
            Self::Cycle { attempts, .. } => Some(*attempts),
            Self::List(waits) => i32::try_from(waits.len() + 1).ok(),
            Self::Fixed(_) | Self::Exponential { .. } => None,
        }
    }

    /// Returns the wait after this number of failures (1 after the first).
    #[must_use]
    pub fn wait(&self, failures: i32) -> Duration {
        let nth = usize::try_from(failures.max(1) - 1).unwrap_or(0);
        match self {
            Self::Fixed(wait) | Self::Cycle { every: wait, .. } => *wait,
            Self::Exponential { first, factor, max } => {
                let exponent = i32::try_from(nth.min(1000)).unwrap_or(1000);
                let most = max.as_secs_f64();
                let seconds = (first.as_secs_f64() * factor.powi(exponent)).min(most);
                // The jitter does not exceed `max`, and spreads the longest waits below it.
                let wait = rand::rng().random_range(0.9 * seconds..=(1.1 * seconds).min(most));
                Duration::try_from_secs_f64(wait).unwrap_or(*max).min(*max)
            }
            Self::List(waits) => waits
                .get(nth)
                .or(waits.last())
                .copied()
                .unwrap_or(Duration::from_secs(10)),
        }
    }
}

/// The text that [`parse`](RetryPolicy::parse) reads as a policy with the same waits and attempts.
/// A policy that `parse` refuses, such as an empty list, is reported when the job is created.
impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |wait: &Duration| format!("PT{}S", duration::seconds(*wait));
        match self {
            Self::Fixed(wait) => f.write_str(&text(wait)),
            Self::Exponential { first, factor, max } => {
                write!(f, "exponential({}, {factor}, {})", text(first), text(max))
            }
            Self::Cycle { attempts, every } => write!(f, "R{attempts}/{}", text(every)),
            // A single wait without a comma would be read as a fixed wait.
            Self::List(waits) if waits.len() == 1 => write!(f, "R2/{}", text(&waits[0])),
            Self::List(waits) => {
                let waits: Vec<String> = waits.iter().map(text).collect();
                f.write_str(&waits.join(","))
            }
        }
    }
}

impl FromStr for RetryPolicy {
    type Err = BadRetryPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_engines_forms_are_read() {
        assert_eq!(
            RetryPolicy::parse("R5/PT5M").unwrap(),
            RetryPolicy::Cycle {
                attempts: 5,
                every: 5 * MINUTE
            }
        );
        let list = RetryPolicy::parse("PT10M,PT17M,PT20M").unwrap();
        assert_eq!(list.attempts(), Some(4));
        let waits: Vec<_> = (1..=5).map(|n| list.wait(n)).collect();
        assert_eq!(waits, [10, 17, 20, 20, 20].map(|m| m * MINUTE));
        assert_eq!(RetryPolicy::parse("90s").unwrap().wait(7), 90 * MINUTE / 60);
    }

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        for text in [
            "90s",
            "R5/PT5M",
            "PT10M,PT17M,PT20M",
            "exponential(1s, 1.5, 1h)",
            "PT1.25S",
        ] {
            let policy = RetryPolicy::parse(text).unwrap();
            assert_eq!(RetryPolicy::parse(&policy.to_string()).unwrap(), policy);
        }
        let one = RetryPolicy::List(vec![MINUTE]);
        let read = RetryPolicy::parse(&one.to_string()).unwrap();
        assert_eq!((read.attempts(), read.wait(5)), (Some(2), MINUTE));
    }

    #[test]
    fn exponential_waits_grow_to_their_cap_with_jitter() {
        let policy = RetryPolicy::parse("exponential(1s, 2, 1m)").unwrap();
        let longest: Vec<Duration> = (0..100).map(|_| policy.wait(20)).collect();
        assert!(longest.iter().all(|wait| *wait <= MINUTE), "{longest:?}");
        assert!(longest.iter().any(|wait| *wait != longest[0]), "no jitter");
        for (failures, seconds) in [(1, 1.0), (3, 4.0), (7, 60.0), (i32::MAX, 60.0)] {
            let wait = policy.wait(failures).as_secs_f64();
            assert!(
                (0.89..=1.11).contains(&(wait / seconds)),
                "{failures}: {wait}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_part_that_is_wrong() {
        for text in [
            "",
            "soon",
            "R0/PT5M",
            "R5/",
            "Rx/PT5M",
            "exponential(1s)",
            "exponential(1s, 0, 1m)",
            "PT1M,,PT2M",
            "-5s",
            "0s",
            "PT0S",
            "99999999999999999999s",
        ] {
            assert!(RetryPolicy::parse(text).is_err(), "{text} was accepted");
        }
    }
}
