//! Reading the text of a repetition.

use std::time::Duration;

use chrono::{DateTime, Datelike, SubsecRound, Utc};
use chrono_tz::Tz;

use super::cron::Cron;
use super::period::LAST_YEAR;
use super::{BadRepeat, CatchUp, Closed, Pending, Period, Repeat, Schedule};
use crate::job::{calendar, duration};

/// The shortest interval. The databases count microseconds, so a much shorter one would not advance.
const SHORTEST: Duration = Duration::from_millis(1);

/// Reads a repetition: an interval or a cron expression, and suffixes in brackets.
pub(super) fn parse(text: &str) -> Result<Repeat, BadRepeat> {
    let (body, suffixes) = suffixes(text)?;
    let form = || BadRepeat::Form(text.to_owned());
    if !body.starts_with('R') {
        let fields = body.split_ascii_whitespace().count();
        if !(body.starts_with('@') || matches!(fields, 5 | 6)) {
            return Err(form());
        }
        let repeat = Repeat::of(Schedule::Cron(Cron::parse(body)?));
        return Ok(suffixes.added_to(repeat));
    }
    let (times, rest) = body
        .strip_prefix('R')
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(form)?;
    let times = match times {
        "" => None,
        n => Some(
            n.parse()
                .ok()
                .filter(|n| *n >= 1)
                .ok_or_else(|| BadRepeat::Count(text.to_owned()))?,
        ),
    };
    let parts = parts(rest);
    let (start, schedule, end) = match parts[..] {
        [schedule] => (None, schedule, None),
        [schedule, end] if is_date(end) => (None, schedule, Some(end)),
        [start, schedule] => (Some(start), schedule, None),
        [start, schedule, end] => (Some(start), schedule, Some(end)),
        _ => return Err(form()),
    };
    let mut repeat = Repeat::of(self::schedule(schedule, suffixes.zone.is_some())?);
    repeat.times = times;
    repeat.start = start.map(date).transpose()?;
    repeat.end = end.map(date).transpose()?;
    Ok(suffixes.added_to(repeat))
}

/// Reads the name of a time zone.
pub(super) fn zone(name: &str) -> Result<Tz, BadRepeat> {
    name.parse().map_err(|_| BadRepeat::Zone(name.to_owned()))
}

/// The values in brackets.
#[derive(Default)]
struct Suffixes {
    zone: Option<Tz>,
    catch_up: Option<CatchUp>,
    calendar: Option<String>,
    closed: Option<Closed>,
    pending: Option<Pending>,
}

impl Suffixes {
    fn added_to(&self, mut repeat: Repeat) -> Repeat {
        repeat.zone = self.zone;
        repeat.catch_up = self.catch_up.unwrap_or_default();
        repeat.calendar.clone_from(&self.calendar);
        repeat.closed = self.closed.unwrap_or_default();
        repeat.pending = self.pending;
        repeat
    }
}

/// Splits off the suffixes and reads them.
fn suffixes(text: &str) -> Result<(&str, Suffixes), BadRepeat> {
    let (mut body, mut found) = (text.trim_ascii(), Suffixes::default());
    while let Some((before, suffix)) = body
        .strip_suffix(']')
        .and_then(|unclosed| unclosed.rsplit_once('['))
    {
        let again = match suffix.split_once('=') {
            Some(("catch-up", policy)) => {
                let policy =
                    CatchUp::parse(policy).ok_or_else(|| BadRepeat::CatchUp(policy.to_owned()))?;
                found.catch_up.replace(policy).is_some()
            }
            Some(("calendar", name)) if calendar::is_name(name) => {
                found.calendar.replace(name.to_owned()).is_some()
            }
            Some(("calendar", name)) => return Err(BadRepeat::Calendar(name.to_owned())),
            Some(("closed", rule)) => {
                let rule = Closed::parse(rule).ok_or_else(|| BadRepeat::Closed(rule.to_owned()))?;
                found.closed.replace(rule).is_some()
            }
            Some(("pending", text)) => {
                let bad = || BadRepeat::Suffix(suffix.to_owned());
                let pending = Pending::parse(text).ok_or_else(bad)?;
                found.pending.replace(pending).is_some()
            }
            Some(_) => true,
            None => found.zone.replace(zone(suffix)?).is_some(),
        };
        if again {
            return Err(BadRepeat::Suffix(suffix.to_owned()));
        }
        body = before.trim_ascii_end();
    }
    if found.calendar.is_none() {
        if let Some(rule) = found.closed {
            return Err(BadRepeat::Closed(rule.as_str().to_owned()));
        }
        if let Some(pending) = found.pending {
            return Err(BadRepeat::Suffix(format!("pending={pending}")));
        }
    }
    Ok((body, found))
}

/// Splits at the slashes outside parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == '/' && depth == 0
    })
    .collect()
}

/// Returns whether a part is meant as a date: `2027-…T…`. A duration has no such digits.
fn is_date(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('-')
}

fn date(text: &str) -> Result<DateTime<Utc>, BadRepeat> {
    match DateTime::parse_from_rfc3339(text) {
        // The databases count microseconds.
        Ok(at) if (0..=LAST_YEAR).contains(&at.with_timezone(&Utc).year()) => {
            Ok(at.with_timezone(&Utc).trunc_subsecs(6))
        }
        _ => Err(BadRepeat::Date(text.to_owned())),
    }
}

fn schedule(text: &str, has_zone: bool) -> Result<Schedule, BadRepeat> {
    let cron = text
        .strip_prefix("cron(")
        .and_then(|rest| rest.strip_suffix(')'));
    if let Some(expression) = cron {
        return Ok(Schedule::Cron(Cron::parse(expression)?));
    }
    if let Some(period) = Period::parse(text, has_zone)? {
        return Ok(Schedule::Calendar(period));
    }
    let every = duration::parse(text)?;
    if every < SHORTEST {
        return Err(BadRepeat::Short(text.to_owned()));
    }
    Ok(Schedule::Every(duration::whole_micros(every)))
}
