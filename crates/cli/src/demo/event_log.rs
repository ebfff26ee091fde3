//! Reads an event log: JSON lines, one event each, checked as a whole before the first job is
//! created.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use jobwire_core::NewJob;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Error;
use crate::handlers::event;

/// A line of the log.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Event {
    /// The activity.
    #[serde(rename = "type")]
    pub(super) activity: String,
    /// The case.
    #[serde(rename = "process_instance")]
    pub(super) case: String,
    /// Its position in its case.
    #[serde(rename = "sequence")]
    pub(super) position: i64,
    /// The time of the event.
    pub(super) at: DateTime<Utc>,
    /// The person or system that performed the activity.
    #[serde(default)]
    pub(super) resource: Option<String>,
}

#[derive(Serialize)]
struct Payload<'a> {
    position: i64,
    at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a str>,
}

impl Event {
    /// Returns the job that replays the event, exclusive in its case.
    pub(super) fn job(&self, run: Uuid) -> NewJob {
        let payload = Payload {
            position: self.position,
            at: self.at,
            resource: self.resource.as_deref(),
        };
        NewJob::of(event::TYPE, &payload)
            .instance(&self.case)
            .exclusive()
            .element(&self.activity)
            .correlation_id(run)
    }
}

const EXAMPLE: &str = r#"{"type": "Check", "process_instance": "case-1", "sequence": 1, "at": "2010-10-02T07:20:39Z"}"#;

/// Reads a file, or standard input (`-`).
pub(super) async fn read(path: PathBuf) -> Result<Vec<Event>, Error> {
    let reading = tokio::task::spawn_blocking(move || {
        let name = path.display().to_string();
        if path == Path::new("-") {
            return parse("standard input", std::io::stdin());
        }
        let file = File::open(&path).map_err(|source| Error::File {
            name: format!("the event log {name}"),
            source,
        })?;
        parse(&name, file)
    });
    reading
        .await
        .map_err(|e| Error::Failed(format!("the event log could not be read: {e}")))?
}

fn parse(name: &str, input: impl Read) -> Result<Vec<Event>, Error> {
    let mut events: Vec<Event> = Vec::new();
    let mut last: HashMap<String, (i64, usize)> = HashMap::new();
    for (index, line) in BufReader::new(input).lines().enumerate() {
        let number = index + 1;
        let bad = |problem: String| Error::Input(format!("{name}, line {number}: {problem}"));
        let line = line.map_err(|e| bad(format!("can't be read: {e}")))?;
        if line.trim().is_empty() {
            continue;
        }
        let event: Event = serde_json::from_str(&line)
            .map_err(|e| bad(format!("{e}; write, for example, {EXAMPLE}")))?;
        if event.position < 1 {
            return Err(bad(format!(
                "`sequence` is {}; count from 1",
                event.position
            )));
        }
        if event.activity.is_empty() || event.case.is_empty() {
            return Err(bad(
                "`type` and `process_instance` must not be empty".to_owned()
            ));
        }
        event
            .job(Uuid::nil())
            .validate()
            .map_err(|e| bad(e.to_string()))?;
        match last.entry(event.case.clone()) {
            Entry::Occupied(mut entry) => {
                let (position, line) = *entry.get();
                if event.position <= position {
                    return Err(bad(format!(
                        "`sequence` {} of {} comes after {position} (line {line}); it must rise \
                         within a case",
                        event.position, event.case
                    )));
                }
                entry.insert((event.position, number));
            }
            Entry::Vacant(entry) => {
                entry.insert((event.position, number));
            }
        }
        events.push(event);
    }
    if events.is_empty() {
        return Err(Error::Input(format!(
            "{name} has no events; write, for example, {EXAMPLE}"
        )));
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(activity: &str, case: &str, sequence: i64) -> String {
        format!(
            r#"{{"type": "{activity}", "process_instance": "{case}", "sequence": {sequence}, "at": "2010-10-02T07:20:39.266Z", "resource": "R", "more": 1}}"#
        )
    }

    fn problem(text: &str) -> String {
        parse("log", text.as_bytes())
            .map(|e| e.len())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_log_is_read_in_its_order() {
        let text = [
            line("A", "1", 1),
            String::new(),
            line("A", "2", 1),
            line("B", "1", 2),
        ]
        .join("\n");
        let events = parse("log", text.as_bytes()).unwrap();
        let read: Vec<_> = events
            .iter()
            .map(|e| (e.case.as_str(), e.position))
            .collect();
        assert_eq!(read, [("1", 1), ("2", 1), ("1", 2)]);
    }

    #[test]
    fn a_bad_line_is_told_with_its_number() {
        let good = line("A", "1", 1);
        for (bad, said) in [
            ("{".to_owned(), "EOF"),
            ("{}".to_owned(), "type"),
            (good.replace("2010-10-02", "yesterday"), "invalid"),
            (
                good.replace("\"sequence\": 1", "\"sequence\": 0"),
                "count from 1",
            ),
            (line("", "1", 2), "must not be empty"),
            (line("A", "", 2), "must not be empty"),
            (line(&"x".repeat(2000), "1", 2), "`element`"),
            (good.clone(), "must rise"),
        ] {
            let problem = problem(&format!("{good}\n{bad}"));
            assert!(
                problem.contains("log, line 2") && problem.contains(said),
                "{problem}"
            );
        }
        assert!(problem("\n\n").contains("no events"));
    }
}
