//! Durations as text: `500ms`, `30s`, `5m`, `1h`, `2d`, or ISO 8601 `PT5M`, `P1DT12H`. A duration
//! is always more than zero, because an interval of zero has no meaning.
//!
//! `jobwire.bad_duration` in SQL reads the same texts and returns the same messages.

use std::time::Duration;

/// The longest accepted duration. A longer one is a typing error. The limit keeps sums in range.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// The error for a text that is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    /// The text has neither form.
    #[error("`{0}` is not a duration; write for example `30s`, `5m` or `PT5M`")]
    Unreadable(String),
    /// The duration is zero or negative.
    #[error("the duration `{0}` is not more than zero; write for example `30s`")]
    NotPositive(String),
    /// The duration is longer than a century.
    #[error("the duration `{0}` is longer than 100 years")]
    TooLong(String),
}

impl BadDuration {
    /// Returns the problem without a remedy, for a message that has one of its own.
    #[must_use]
    pub fn problem(&self) -> String {
        match self {
            Self::Unreadable(text) => format!("`{text}` is not a duration"),
            Self::NotPositive(text) => format!("the duration `{text}` is not more than zero"),
            Self::TooLong(_) => self.to_string(),
        }
    }
}

/// Reads a duration.
///
/// # Errors
/// [`BadDuration`], which describes the problem and shows the format.
pub fn parse(text: &str) -> Result<Duration, BadDuration> {
    let text = text.trim_ascii();
    let duration = if text.starts_with(['P', 'p', '-', '+']) && text.contains(['P', 'p']) {
        iso(text)?
    } else {
        plain(text)?
    };
    if duration.is_zero() {
        return Err(BadDuration::NotPositive(text.to_owned()));
    }
    if duration > LONGEST {
        return Err(BadDuration::TooLong(text.to_owned()));
    }
    Ok(duration)
}

/// Units and their seconds, in order. Years and months have no fixed length, so only zero years and
/// months are accepted. Engines write these zeros.
const DATE_UNITS: &[(char, u128)] = &[('Y', 0), ('M', 0), ('W', 604_800), ('D', 86_400)];
const TIME_UNITS: &[(char, u128)] = &[('H', 3_600), ('M', 60), ('S', 1)];

/// Reads `P1W2DT3H4M5.6S`. Numbers are whole; only the last number of the time part may have
/// decimals, up to nine.
fn iso(text: &str) -> Result<Duration, BadDuration> {
    let unreadable = || BadDuration::Unreadable(text.to_owned());
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut rest = unsigned.strip_prefix(['P', 'p']).ok_or_else(unreadable)?;
    let (mut units, mut is_time, mut is_complete) = (DATE_UNITS, false, false);
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        if let Some(time) = rest.strip_prefix(['T', 't']).filter(|_| !is_time) {
            (rest, units, is_time, is_complete) = (time, TIME_UNITS, true, false);
            continue;
        }
        let (whole, behind) = digits(rest);
        let (fraction, behind) = match behind.strip_prefix(['.', ',']).filter(|_| is_time) {
            Some(behind) => {
                let (fraction, behind) = digits(behind);
                if !(1..=9).contains(&fraction.len()) {
                    return Err(unreadable());
                }
                (fraction, behind)
            }
            None => ("", behind),
        };
        let unit = behind.chars().next().map(|unit| unit.to_ascii_uppercase());
        let at = units.iter().position(|(known, _)| Some(*known) == unit);
        let (Some(at), false) = (at, whole.is_empty()) else {
            return Err(unreadable());
        };
        let seconds = units.get(at).map_or(0, |(_, seconds)| *seconds);
        // A number that is too large is the same as a duration that is too long.
        let whole: u128 = whole.parse().unwrap_or(u128::MAX);
        if seconds == 0 && whole > 0 {
            return Err(unreadable());
        }
        nanos = nanos.saturating_add(whole.saturating_mul(seconds * NANOS));
        nanos = nanos.saturating_add(format!("{fraction:0<9}").parse().unwrap_or(0) * seconds);
        units = units
            .get(at + 1..)
            .filter(|_| fraction.is_empty())
            .unwrap_or_default();
        is_complete = true;
        rest = behind.get(1..).unwrap_or_default();
    }
    if !is_complete {
        return Err(unreadable());
    }
    if text.starts_with('-') {
        return Err(BadDuration::NotPositive(text.to_owned()));
    }
    Ok(of_nanos(nanos))
}

/// Splits a text after its leading digits.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

fn of_nanos(nanos: u128) -> Duration {
    let seconds = u64::try_from(nanos / NANOS).unwrap_or(u64::MAX);
    Duration::new(seconds, u32::try_from(nanos % NANOS).unwrap_or(0))
}

/// Reads a decimal number and a unit. It uses no float: `1.14s` is exactly 1,140 ms.
fn plain(text: &str) -> Result<Duration, BadDuration> {
    let unreadable = || BadDuration::Unreadable(text.to_owned());
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(unreadable)?;
    let (number, unit) = text.split_at(split);
    let nanos_per_unit: u128 = match unit {
        "ms" => 1_000_000,
        "s" => NANOS,
        "m" | "min" => 60 * NANOS,
        "h" => 3_600 * NANOS,
        "d" => 86_400 * NANOS,
        _ => return Err(unreadable()),
    };
    let number = number.trim_ascii();
    let negative = number.starts_with('-');
    let digits = number.strip_prefix(['-', '+']).unwrap_or(number);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !is_number(whole) || !is_number(fraction) {
        return Err(unreadable());
    }
    if negative {
        return Err(BadDuration::NotPositive(text.to_owned()));
    }
    // Digits after the eighteenth are less than a nanosecond, even of a day.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let too_long = |_| BadDuration::TooLong(text.to_owned());
    let number = |part: &str| match part {
        "" => Ok(0),
        part => part.parse::<u128>().map_err(too_long),
    };
    let parts = u32::try_from(fraction.len()).map_or(1, |places| 10_u128.pow(places));
    let nanos = (number(whole)?.saturating_mul(nanos_per_unit))
        .saturating_add(number(fraction)?.saturating_mul(nanos_per_unit) / parts);
    Ok(of_nanos(nanos))
}

/// The nanoseconds in a second.
const NANOS: u128 = 1_000_000_000;

/// Writes a duration so that [`parse`] reads the same one: `30s`, `1500ms`, `5m`.
#[must_use]
pub fn write(duration: Duration) -> String {
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return format!("{}s", seconds(duration));
    }
    let millis = duration.as_millis();
    match millis {
        m if m % 1000 != 0 => format!("{m}ms"),
        m if m % 60_000 != 0 => format!("{}s", m / 1000),
        m if m % 3_600_000 != 0 => format!("{}m", m / 60_000),
        m => format!("{}h", m / 3_600_000),
    }
}

/// Returns the duration without the part of a microsecond: the databases count microseconds.
pub(crate) fn whole_micros(duration: Duration) -> Duration {
    let nanos = duration.subsec_nanos();
    Duration::new(duration.as_secs(), nanos - nanos % 1_000)
}

/// Returns the seconds, with as many decimals as needed: `600`, `1.14`.
pub(crate) fn seconds(duration: Duration) -> String {
    let (whole, nanos) = (duration.as_secs(), duration.subsec_nanos());
    if nanos == 0 {
        return whole.to_string();
    }
    let decimals = format!("{nanos:09}");
    format!("{whole}.{}", decimals.trim_end_matches('0'))
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
            ("P0Y0M0DT0H5M0S", 300_000),
            ("pt1,5h", 5_400_000),
            ("+P1W2DT3H4M5.006S", 788_645_006),
            ("P1DT12H", 129_600_000),
            (" PT0.25S ", 250),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for nanos in [1, 999, 500_000, 1_000_000, 1_140_000_000, 90_000_000_000] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse(&write(duration)), Ok(duration));
        }
        for millis in (1..10_000).chain([90_000, 300_000, 7_200_000]) {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&write(duration)), Ok(duration));
        }
    }

    #[test]
    fn decimals_are_exact() {
        for (text, nanos) in [
            ("1.14s", 1_140_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("+5 s", 5_000_000_000),
            ("0.001ms", 1_000),
            ("1.1d", 95_040_000_000_000),
            ("0.1m", 6_000_000_000),
            ("0.0000000019s", 1),
            ("1.00000000000000000000000000009s", 1_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for millis in 1..10_000 {
            let duration = Duration::from_millis(millis);
            let text = format!("{}.{:03}s", millis / 1000, millis % 1000);
            assert_eq!(parse(&text), Ok(duration));
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
        for text in ["0.0000000001s", "-0s"] {
            assert!(
                matches!(parse(text), Err(BadDuration::NotPositive(_))),
                "{text}"
            );
        }
        for text in [
            "36601d",
            "99999999999999999999s",
            &format!("{}s", "9".repeat(500)),
        ] {
            assert!(
                matches!(parse(text), Err(BadDuration::TooLong(_))),
                "{text}"
            );
        }
        for text in [
            "",
            "5",
            "s",
            ".s",
            "1.2.3s",
            "--1s",
            "1e3s",
            "١s",
            "NaNs",
            "infs",
            "5 parsecs",
            "P",
            "PT",
            "P-1D",
        ] {
            assert!(
                matches!(parse(text), Err(BadDuration::Unreadable(_))),
                "{text}: {:?}",
                parse(text)
            );
        }
        assert!(parse("9e300d").is_err());
    }
}
