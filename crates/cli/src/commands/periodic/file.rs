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
use std::path::Path;

use jobwire_core::PeriodicJob;
use serde::Deserialize;

use crate::commands::enqueue;
use crate::error::Error;
use crate::tables::Tables;

const TABLES: Tables = Tables {
    key: "periodic",
    noun: "periodic job",
    nouns: "periodic jobs",
    most_bytes: 16 << 20,
    examples: &[
        ("name", "\"clean-up\""),
        ("schedule", "\"0 2 * * *[Europe/Berlin]\""),
        ("job", "{ type = \"noop\" }"),
    ],
    changes: true,
};

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
    TABLES.read(file, parse)
}

/// Parses the periodic jobs, or returns all mistakes in them.
fn parse(text: &str) -> Result<Vec<PeriodicJob>, Vec<String>> {
    let mut mistakes = Vec::new();
    let entries = TABLES.entries(text, &mut mistakes)?.unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut jobs = Vec::new();
    for (at, entry) in entries.into_iter().enumerate() {
        match job(entry) {
            Ok(job) if !names.insert(job.name().to_owned()) => {
                mistakes.push(format!("`name` = `{}` is there twice", job.name()));
            }
            Ok(job) => jobs.push(job),
            Err(mistake) => mistakes.push(TABLES.mistake(at, &mistake)),
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
    let job = enqueue::job(line.as_bytes(), None, None)?;
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
            "field `typ` is no field of a job; did you mean `type`?",
            "periodic job 3: ",
            "`cron`",
            "`d` is there twice",
            "`job` is unknown",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let missing =
            parse("[[periodic]]\nname = \"a\"\nschedule = \"R/PT1H\"\n").expect_err("no job");
        let said =
            "periodic job 1: missing field `job`; add it, for example `job = { type = \"noop\" }`";
        assert_eq!(missing, [said]);
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
