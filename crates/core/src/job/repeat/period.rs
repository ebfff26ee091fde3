//! Calendar periods: years, months, weeks and days, which have no fixed length.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Datelike, Days, Months, Utc};
use chrono_tz::Tz;

use crate::job::duration::{self, BadDuration};
use crate::job::local;

/// The last year in which a schedule of local dates has an occurrence: RFC 3339 has four digits.
pub(super) const LAST_YEAR: i32 = 9_999;
/// A century in months and in days.
const LONGEST: (u32, u32) = (1_200, 36_600);

/// A calendar period: months, days, and a time of fixed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Months; a year has twelve.
    pub months: u32,
    /// Days; a week has seven.
    pub days: u32,
    /// Hours, minutes and seconds.
    pub time: Duration,
}

/// The numbers of the date part of an ISO 8601 duration.
#[derive(Default)]
struct DatePart {
    months: u32,
    days: u32,
}

impl DatePart {
    /// Reads `1Y2M3W4D`. `None` if the text is not of this form.
    fn parse(mut text: &str) -> Option<Self> {
        let (mut part, mut units) = (Self::default(), "YMWD");
        while !text.is_empty() {
            let end = text.find(|c: char| !c.is_ascii_digit())?;
            let number: u32 = text.get(..end)?.parse().ok()?;
            let unit = text.get(end..)?.chars().next()?.to_ascii_uppercase();
            let at = units.find(unit)?;
            match unit {
                'Y' => part.months = part.months.checked_add(number.checked_mul(12)?)?,
                'M' => part.months = part.months.checked_add(number)?,
                'W' => part.days = part.days.checked_add(number.checked_mul(7)?)?,
                _ => part.days = part.days.checked_add(number)?,
            }
            units = units.get(at + 1..)?;
            text = text.get(end + 1..)?;
        }
        Some(part)
    }
}

impl Period {
    /// Reads `P1Y2M3W4DT5H6M7S`, if it contains months, or days that `has_zone` makes calendar
    /// days. `None` means a duration of fixed length.
    pub(super) fn parse(text: &str, has_zone: bool) -> Result<Option<Self>, BadDuration> {
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        let Some(parts) = unsigned.strip_prefix(['P', 'p']) else {
            return Ok(None);
        };
        let (date, time) = match parts.split_once(['T', 't']) {
            Some((date, time)) => (date, Some(time)),
            None => (parts, None),
        };
        let Some(DatePart { months, days }) = DatePart::parse(date) else {
            return Ok(None);
        };
        if months == 0 && (days == 0 || !has_zone) {
            return Ok(None);
        }
        let time = match time.map(|time| duration::parse(&format!("PT{time}"))) {
            None | Some(Err(BadDuration::NotPositive(_))) => Duration::ZERO,
            Some(Ok(time)) => duration::whole_micros(time),
            Some(Err(BadDuration::TooLong(_))) => {
                return Err(BadDuration::TooLong(text.to_owned()));
            }
            Some(Err(_)) => return Err(BadDuration::Unreadable(text.to_owned())),
        };
        if months > LONGEST.0 || days > LONGEST.1 {
            return Err(BadDuration::TooLong(text.to_owned()));
        }
        Ok(Some(Self { months, days, time }))
    }

    /// Returns the first occurrence after `after`: `start` and `n` periods. The periods are counted
    /// from `start`, so the 31st of a month does not become the 28th for ever, and a skipped local
    /// time does not move the later ones.
    pub(super) fn after(
        &self,
        start: DateTime<Utc>,
        after: DateTime<Utc>,
        zone: Tz,
    ) -> Option<DateTime<Utc>> {
        if start.year().max(after.year()) > LAST_YEAR {
            // The local date may not exist.
            return None;
        }
        if start > after {
            return Some(start);
        }
        // No period is shorter than this, so this many periods are enough.
        let shortest = chrono::Duration::days(i64::from(self.months) * 28 + i64::from(self.days))
            - chrono::Duration::hours(26)
            + chrono::Duration::from_std(self.time).ok()?;
        let shortest = shortest.max(chrono::Duration::hours(1));
        let passed = (after - start).num_seconds() / shortest.num_seconds().max(1);
        let (mut low, mut high) = (0, u32::try_from(passed).ok()?.checked_add(2)?);
        // The first number of periods that leads behind `after`. Beyond the calendar is behind it.
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match self.times(middle, start, zone) {
                Some(at) if at <= after => low = middle,
                _ => high = middle,
            }
        }
        self.times(high, start, zone)
    }

    /// Returns the date `n` periods after `start`, on the local calendar.
    fn times(&self, n: u32, start: DateTime<Utc>, zone: Tz) -> Option<DateTime<Utc>> {
        let local = start.with_timezone(&zone).naive_local();
        let date = local
            .checked_add_months(Months::new(self.months.checked_mul(n)?))?
            .checked_add_days(Days::new(u64::from(self.days).checked_mul(u64::from(n))?))?;
        let time = chrono::Duration::from_std(self.time).ok()?;
        let time = time.checked_mul(i32::try_from(n).ok()?)?;
        let at = local::moment(date, zone)?.checked_add_signed(time)?;
        (at.year() <= LAST_YEAR).then_some(at)
    }
}

/// Writes `P1Y2M3DT4S`.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("P")?;
        for (number, unit) in [
            (self.months / 12, 'Y'),
            (self.months % 12, 'M'),
            (self.days, 'D'),
        ] {
            if number > 0 {
                write!(f, "{number}{unit}")?;
            }
        }
        if !self.time.is_zero() {
            write!(f, "T{}S", duration::seconds(self.time))?;
        }
        Ok(())
    }
}
