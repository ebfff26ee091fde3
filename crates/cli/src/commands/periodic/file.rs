//! Periodic jobs from a TOML file.
//!
//! ```toml
//! [[periodic]]
//! name = "clean-up"
//! schedule = "0 2 * * *[Europe/Berlin]"
//! version = 2
//! job = { type = "http", payload = { url = "https://api.example.org/clean-up" } }
//! ```
//! `job` has the fields of a line of `jobwire enqueue`. All mistakes are reported together.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use jobwire_core::PeriodicJob;
use serde::Deserialize;

use crate::commands::enqueue::{self, UnknownFields};
use crate::error::Error;

/// Maximum size of the file.
const MOST_BYTES: u64 = 16 << 20;

/// A table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    schedule: String,
    #[serde(default)]
    version: u32,
    job: toml::Table,
}

/// Reads the periodic jobs of a file, or of standard input for `-`.
///
/// # Errors
/// All mistakes of the file.
pub(in crate::commands) fn read(file: &Path) -> Result<Vec<PeriodicJob>, Error> {
    let name = file.display();
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(MOST_BYTES)
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(MOST_BYTES).read_to_string(&mut text))
    };
    let read = read.map_err(Error::io(format!("can't read {name}")))?;
    if read as u64 >= MOST_BYTES {
        return Err(Error::Input(format!(
            "{name} is longer than {MOST_BYTES} bytes; give a file of periodic jobs"
        )));
    }
    parse(&text).map_err(|mistakes| {
        Error::Input(format!(
            "{name}: nothing was changed\n  {}",
            mistakes.join("\n  ")
        ))
    })
}

/// Parses the periodic jobs, or returns all mistakes in them.
fn parse(text: &str) -> Result<Vec<PeriodicJob>, Vec<String>> {
    let table: toml::Table =
        toml::from_str(text).map_err(|e| vec![format!("this is not TOML: {}", e.message())])?;
    let mut mistakes: Vec<String> = table
        .keys()
        .filter(|key| *key != "periodic")
        .map(|key| format!("`{key}` is unknown; write `[[periodic]]` tables only"))
        .collect();
    let entries = match table.get("periodic") {
        Some(toml::Value::Array(entries)) => entries.as_slice(),
        Some(_) => {
            mistakes.push(
                "`periodic` is no list; write each periodic job as a `[[periodic]]` table"
                    .to_owned(),
            );
            &[]
        }
        None => &[],
    };
    let mut names = BTreeSet::new();
    let mut jobs = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        match job(entry.clone()) {
            Ok(job) if !names.insert(job.name().to_owned()) => {
                mistakes.push(format!("`name` = `{}` is there twice", job.name()));
            }
            Ok(job) => jobs.push(job),
            Err(mistake) => mistakes.push(format!("periodic job {}: {mistake}", at + 1)),
        }
    }
    if mistakes.is_empty() {
        Ok(jobs)
    } else {
        Err(mistakes)
    }
}

fn job(entry: toml::Value) -> Result<PeriodicJob, String> {
    let entry: Entry = entry
        .try_into()
        .map_err(|error| error.message().to_owned())?;
    let line = json(toml::Value::Table(entry.job)).to_string();
    let job = enqueue::job(line.as_bytes(), None, UnknownFields::Error)?;
    let job = PeriodicJob::new(entry.name, entry.schedule, job).version(entry.version);
    job.validate().map_err(|invalid| invalid.to_string())?;
    Ok(job)
}

/// Converts a value to JSON. A date becomes text, as in a line of `jobwire enqueue`.
fn json(value: toml::Value) -> serde_json::Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(date) => date.to_string().into(),
        toml::Value::Array(values) => values.into_iter().map(json).collect(),
        toml::Value::Table(table) => {
            let fields = table.into_iter().map(|(key, value)| (key, json(value)));
            serde_json::Value::Object(fields.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periodic_jobs_are_read_in_their_order() {
        let jobs = parse(
            "[[periodic]]\nname = \"b\"\nschedule = \"@daily[Europe/Berlin]\"\nversion = 3\n\
             [periodic.job]\ntype = \"work\"\npayload = { from = 2027-01-01T00:00:00Z, n = [1, 2.5] }\n\
             retry_policy = \"R5/PT5M\"\n\n\
             [[periodic]]\nname = \"a\"\nschedule = \"R/PT1H\"\njob = { type = \"noop\" }\n",
        )
        .expect("all is well");
        let names: Vec<&str> = jobs.iter().map(PeriodicJob::name).collect();
        assert_eq!(names, ["b", "a"]);
        let shown = format!("{:?}", jobs[0]);
        for part in ["2027-01-01T00:00:00Z", "2.5", "R5/PT5M", "version: 3"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(parse("").is_ok_and(|jobs| jobs.is_empty()));
    }

    #[test]
    fn every_mistake_is_said_at_once() {
        let said = parse(
            "[[periodic]]\nname = \"a\"\nschedule = \"hourly\"\njob = { type = \"noop\" }\n\
             [[periodic]]\nname = \"b\"\nschedule = \"R/PT1H\"\njob = { typ = \"noop\" }\n\
             [[periodic]]\nname = \"c\"\nschedule = \"R/PT1H\"\ncron = 1\njob = { type = \"noop\" }\n\
             [[periodic]]\nname = \"d\"\nschedule = \"R/PT1H\"\njob = { type = \"noop\" }\n\
             [[periodic]]\nname = \"d\"\nschedule = \"R/PT1H\"\njob = { type = \"noop\" }\n\
             [[job]]\n",
        )
        .expect_err("mistakes")
        .join("\n");
        for part in [
            "periodic job 1: ",
            "`schedule`",
            "periodic job 2: ",
            "`type`",
            "periodic job 3: ",
            "`cron`",
            "`d` is there twice",
            "`job` is unknown",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(
            parse("= 3")
                .expect_err("no TOML")
                .join("")
                .contains("not TOML")
        );
        assert!(
            parse("periodic = 1")
                .expect_err("no list")
                .join("")
                .contains("no list")
        );
    }
}
