//! Business calendars from a TOML file, the setting `calendars`.
//!
//! ```toml
//! [[calendar]]
//! name = "berlin-office"
//! time_zone = "Europe/Berlin"
//! hours = { "Mon-Thu" = "09:00-12:00, 13:00-17:30", "Fri" = "09:00-15:00" }
//! closed = ["01-01", "2027-03-26"]
//! open_on = { "12-24" = "09:00-12:00" }
//! ```
//! All mistakes are reported together.

use std::collections::BTreeMap;
use std::path::Path;

use jobwire_core::calendar::{BadCalendar, CalendarFault};
use jobwire_core::{Calendars, WorkingHours};
use serde::Deserialize;

use crate::error::Error;
use crate::tables::Tables;

const TABLES: Tables = Tables {
    key: "calendar",
    noun: "calendar",
    nouns: "business calendars",
    most_bytes: 1 << 20,
    examples: &[
        ("name", "\"berlin-office\""),
        ("time_zone", "\"Europe/Berlin\""),
        ("hours", "{ \"Mon-Fri\" = \"09:00-17:00\" }"),
    ],
    changes: false,
};

/// A table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    time_zone: String,
    hours: BTreeMap<String, String>,
    #[serde(default)]
    closed: Vec<String>,
    #[serde(default)]
    open_on: BTreeMap<String, String>,
}

/// Reads the calendars of a file.
///
/// # Errors
/// All mistakes of the file.
pub(crate) fn read(file: &Path) -> Result<Calendars, Error> {
    let calendars = TABLES.read(file, |text| parse(text).map(|calendars| vec![calendars]))?;
    Ok(calendars.into_iter().next().unwrap_or_default())
}

/// Parses the calendars, or returns all mistakes in them.
fn parse(text: &str) -> Result<Calendars, Vec<String>> {
    let mut mistakes = Vec::new();
    let entries = TABLES.entries(text, &mut mistakes)?.unwrap_or_default();
    let mut calendars = Calendars::default();
    for (at, entry) in entries.into_iter().enumerate() {
        match calendar(entry) {
            Ok((name, hours)) => match added(&calendars, &name, hours) {
                Ok(more) => calendars = more,
                Err(bad) => mistakes.push(TABLES.mistake(at, &bad.to_string())),
            },
            Err(bad) => mistakes.extend(bad.iter().map(|bad| TABLES.mistake(at, bad))),
        }
    }
    if mistakes.is_empty() {
        Ok(calendars)
    } else {
        Err(mistakes)
    }
}

/// Adds a calendar. One whose working time is over does not stop the program: its series become dead
/// letters with the reason.
fn added(calendars: &Calendars, name: &str, hours: WorkingHours) -> Result<Calendars, BadCalendar> {
    match calendars.clone().with(name, hours.clone()) {
        Err(BadCalendar::Fault(fault @ CalendarFault::Closed(..))) => {
            tracing::warn!(
                calendar = name, %fault,
                "a calendar of the setting `calendars` has no working time any more; its jobs become \
                 dead letters. Give it hours, or a date in `open_on`"
            );
            calendars.clone().with_unchecked(name, hours)
        }
        all => all,
    }
}

/// Reads a table, or returns all its mistakes.
fn calendar(entry: toml::Value) -> Result<(String, WorkingHours), Vec<String>> {
    let entry: Entry = entry
        .try_into()
        .map_err(|error: toml::de::Error| vec![error.message().to_owned()])?;
    let mut mistakes = Vec::new();
    if entry.hours.is_empty() && entry.open_on.is_empty() {
        mistakes.push("field `hours` is empty; name the working hours".to_owned());
    }
    let mut hours = WorkingHours::in_zone(&entry.time_zone)
        .or_else(|bad| {
            mistakes.push(format!("field `time_zone`: {bad}"));
            WorkingHours::in_zone("UTC")
        })
        .map_err(|bad| vec![bad.to_string()])?;
    for (days, spans) in &entry.hours {
        match hours.clone().open(days, spans) {
            Ok(more) => hours = more,
            Err(bad) => mistakes.push(format!("field `hours`: {bad}")),
        }
    }
    for date in &entry.closed {
        match hours.clone().closed(date) {
            Ok(more) => hours = more,
            Err(bad) => mistakes.push(format!("field `closed`: {bad}")),
        }
    }
    for (date, spans) in &entry.open_on {
        match hours.clone().open_on(date, spans) {
            Ok(more) => hours = more,
            Err(bad) => mistakes.push(format!("field `open_on`: {bad}")),
        }
    }
    if mistakes.is_empty() {
        Ok((entry.name, hours))
    } else {
        Err(mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendars_are_read_and_their_mistakes_are_said_at_once() {
        let good = "[[calendar]]\nname = \"berlin-office\"\ntime_zone = \"Europe/Berlin\"\n\
             hours = { \"Mon-Thu\" = \"09:00-12:00, 13:00-17:30\", Fri = \"09:00-15:00\" }\n\
             closed = [\"01-01\", \"2027-03-26\"]\nopen_on = { \"12-24\" = \"09:00-12:00\" }\n";
        let calendars = parse(good).expect("all is well");
        assert_eq!(calendars.names().collect::<Vec<_>>(), ["berlin-office"]);
        let good_friday = "2027-03-26T08:00:00Z".parse().expect("a date");
        let open = calendars.open_from("berlin-office", good_friday);
        let monday = "2027-03-29T07:00:00Z".parse().expect("a date");
        assert_eq!(open, Ok(monday));
        // A calendar that has run out stops no command.
        let over = format!(
            "{good}[[calendar]]\nname = \"over\"\ntime_zone = \"UTC\"\nhours = {{}}\n\
             open_on = {{ \"2020-02-01\" = \"09:00-12:00\" }}\n"
        );
        let calendars = parse(&over).expect("a calendar that has run out is registered");
        assert_eq!(calendars.names().count(), 2);
        assert!(calendars.open_from("over", good_friday).is_err());
        assert!(parse("").is_ok_and(|calendars| calendars.is_empty()));
        let bad = format!(
            "{good}{good}[[calendar]]\nname = \"a b\"\ntime_zone = \"UTC\"\nhours = {{ Mon = \"00:00-24:00\" }}\n\
             [[calendar]]\nname = \"c\"\ntime_zone = \"Berlin\"\nhours = {{ Someday = \"9-17\" }}\nclosed = [\"13-01\"]\n\
             [[calendar]]\nname = \"d\"\ntime_zone = \"UTC\"\nhours = {{}}\n\
             [[calendar]]\nname = \"e\"\ntime_zone = \"UTC\"\nhours = {{ Mon = \"17:00-09:00\" }}\nholidays = []\n"
        );
        let said = parse(&bad).expect_err("mistakes").join("\n");
        for part in [
            "calendar 2: the calendar `berlin-office` is registered twice",
            "calendar 3: the calendar `a b` needs a name",
            "calendar 4: field `time_zone`: `Berlin`",
            "calendar 4: field `hours`",
            "calendar 4: field `closed`: `13-01`",
            "calendar 5: field `hours` is empty",
            "calendar 6: unknown field `holidays`",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let missing = "[[calendar]]\nname = \"a\"\nhours = {}\n";
        assert_eq!(
            parse(missing).expect_err("mistakes"),
            [
                "calendar 1: missing field `time_zone`; add it, for example `time_zone = \"Europe/Berlin\"`"
            ]
        );
        let said = parse("[[calendar]]\nname == \"a\"\n").expect_err("no TOML");
        assert!(
            said[0].starts_with("line 2: this is not TOML: "),
            "{said:?}"
        );
    }
}
