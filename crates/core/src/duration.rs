//! Durations as people and engines write them: `500ms`, `30s`, `5m`, `1h`, `2d`, or ISO 8601 `PT5M`,
//! `P1DT12H`. Always more than zero: no interval of this program makes sense at zero.

use std::time::Duration;

use jiff::{SpanRelativeTo, fmt::temporal::SpanParser};

/// The longest duration that is accepted: anything above is a slip of the pen, and sums stay in range.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// A duration that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    /// Neither form.
    #[error("`{0}` is not a duration; write for example `30s`, `5m` or `PT5M`")]
    Unreadable(String),
    /// Zero or below.
    #[error("the duration `{0}` is not more than zero; write for example `30s`")]
    NotPositive(String),
    /// More than a century.
    #[error("the duration `{0}` is longer than 100 years")]
    TooLong(String),
}

/// Read a duration.
///
/// # Errors
/// Says what is wrong and how to write it.
pub fn parse(text: &str) -> Result<Duration, BadDuration> {
    let text = text.trim();
    let unreadable = || BadDuration::Unreadable(text.to_owned());
    let duration = if text.starts_with(['P', 'p', '-', '+']) && text.contains(['P', 'p']) {
        let span = SpanParser::new()
            .parse_span(text)
            .map_err(|_| unreadable())?;
        // Months and years have no fixed length; days do, without a time zone.
        let signed = span
            .to_duration(SpanRelativeTo::days_are_24_hours())
            .map_err(|_| unreadable())?;
        if !signed.is_positive() {
            return Err(BadDuration::NotPositive(text.to_owned()));
        }
        signed.unsigned_abs()
    } else {
        let split = text
            .find(|c: char| c.is_ascii_alphabetic())
            .ok_or_else(unreadable)?;
        let (number, unit) = text.split_at(split);
        let seconds_per_unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(unreadable()),
        };
        let number: f64 = number.trim().parse().map_err(|_| unreadable())?;
        if !number.is_finite() {
            return Err(unreadable());
        }
        if number <= 0.0 {
            return Err(BadDuration::NotPositive(text.to_owned()));
        }
        Duration::try_from_secs_f64(number * seconds_per_unit)
            .map_err(|_| BadDuration::TooLong(text.to_owned()))?
    };
    if duration.is_zero() {
        return Err(BadDuration::NotPositive(text.to_owned()));
    }
    if duration > LONGEST {
        return Err(BadDuration::TooLong(text.to_owned()));
    }
    Ok(duration)
}

/// Write a duration so that [`parse`] reads it back: `30s`, `1500ms`, `5m`.
#[must_use]
pub fn write(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        m if m % 1000 != 0 => format!("{m}ms"),
        m if m % 60_000 != 0 => format!("{}s", m / 1000),
        m if m % 3_600_000 != 0 => format!("{}m", m / 60_000),
        m => format!("{}h", m / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        for (text, millis) in [
            ("500ms", 500),
            ("1.5s", 1500),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("PT5M", 300_000),
            ("P1DT12H", 129_600_000),
            (" PT0.25S ", 250),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for millis in [1, 999, 1000, 90_000, 300_000, 7_200_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&write(duration)), Ok(duration));
        }
    }

    #[test]
    fn zero_and_nonsense_are_refused() {
        for text in ["0s", "-1s", "PT0S", "-PT5M"] {
            assert!(
                matches!(parse(text), Err(BadDuration::NotPositive(_))),
                "{text}: {:?}",
                parse(text)
            );
        }
        for text in ["", "5", "s", "NaNs", "infs", "5 parsecs", "P", "PT", "P-1D"] {
            assert!(
                matches!(parse(text), Err(BadDuration::Unreadable(_))),
                "{text}: {:?}",
                parse(text)
            );
        }
        assert!(parse("9e300d").is_err());
    }
}
