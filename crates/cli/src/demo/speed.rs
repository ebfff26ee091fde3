//! The speed of a replay.

use std::str::FromStr;
use std::time::Duration;

/// The speed of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// As fast as possible.
    Max,
    /// A multiple of real time.
    Times(f64),
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("max") {
            return Ok(Self::Max);
        }
        match text.trim_end_matches('x').parse::<f64>() {
            Ok(times) if times.is_finite() && times > 0.0 => Ok(Self::Times(times)),
            _ => Err(
                "write a number above zero, for example `3600` for an hour a second, or `max`"
                    .to_owned(),
            ),
        }
    }
}

impl Speed {
    /// Converts a time since the start of the log to a time since the start of the replay.
    pub(super) fn squeeze(self, after: Duration) -> Duration {
        match self {
            Self::Max => Duration::ZERO,
            // At most the longest duration.
            Self::Times(times) => {
                Duration::try_from_secs_f64(after.as_secs_f64() / times).unwrap_or(Duration::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_and_squeeze_time() {
        let hour = Duration::from_secs(3600);
        assert_eq!(
            "max".parse::<Speed>().map(|s| s.squeeze(hour)),
            Ok(Duration::ZERO)
        );
        assert_eq!(
            "3600".parse::<Speed>().map(|s| s.squeeze(hour)),
            Ok(Duration::from_secs(1))
        );
        assert_eq!(
            "0.5x".parse::<Speed>().map(|s| s.squeeze(hour)),
            Ok(2 * hour)
        );
        for text in ["", "0", "-1", "NaN", "inf", "fast"] {
            assert!(text.parse::<Speed>().is_err(), "{text}");
        }
    }
}
