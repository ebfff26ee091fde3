//! Reading a job from a row of any database.
//!
//! A value that can't be decoded, or is out of its range, makes the job unreadable and does not
//! fail the statement: the jobs of the other rows run.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Result;
use crate::event::stream::StreamedEvent;
use crate::hint::{Hint, Ready};
use crate::job::gate::Gate;
use crate::job::query::{LaneBacklog, LaneView};
use crate::job::{Job, JobId, JobKind, Lane};
use crate::lane::priority::{PriorityRule, PriorityScope};
use crate::lane::rule::LaneRule;
use crate::store::error::StoreError;

/// A row with the columns of a job. Each method reads the value of one type at an index.
pub(super) trait JobRow {
    fn id(&self, at: usize) -> Result<Uuid>;
    fn short(&self, at: usize) -> Result<&str>;
    fn text(&self, at: usize) -> Result<String>;
    fn maybe_text(&self, at: usize) -> Result<Option<String>>;
    /// Reads a text to show it, or to compare it with names: one of another program may not be UTF-8.
    fn shown(&self, at: usize) -> Result<String> {
        self.text(at)
    }
    /// Like [`shown`](Self::shown), for a text that may be missing.
    fn maybe_shown(&self, at: usize) -> Result<Option<String>> {
        self.maybe_text(at)
    }
    fn long(&self, at: usize) -> Result<i64>;
    fn maybe_long(&self, at: usize) -> Result<Option<i64>>;
    fn int(&self, at: usize) -> Result<i32>;
    fn flag(&self, at: usize) -> Result<bool>;
    fn maybe_flag(&self, at: usize) -> Result<Option<bool>>;
    fn moment(&self, at: usize) -> Result<DateTime<Utc>>;
    fn maybe_moment(&self, at: usize) -> Result<Option<DateTime<Utc>>>;
}

fn json(text: String, column: &str) -> Result<Box<RawValue>> {
    RawValue::from_string(text)
        .map_err(|e| StoreError::BadRow(format!("column `{column}` is not JSON: {e}")))
}

/// Reads the kind of a job.
pub(super) fn kind(text: &str) -> Result<JobKind> {
    JobKind::parse(text)
        .ok_or_else(|| StoreError::BadRow(format!("column `kind` is `{}`", text.escape_debug())))
}

/// Reads the gate from the text of `gate_of!`: the scope's word, a space, and the value.
pub(super) fn gate(text: Option<String>) -> Option<Gate> {
    let text = text?;
    let (word, value) = text.split_once(' ')?;
    Gate::parse(word, value.to_owned())
}

/// A page of events, and the keys of those that can't be read.
pub(super) fn events<K: std::fmt::Debug>(
    rows: impl Iterator<Item = (K, Result<StreamedEvent>)>,
) -> (Vec<StreamedEvent>, Vec<K>) {
    let (mut events, mut unreadable) = (Vec::new(), Vec::new());
    for (key, event) in rows {
        match event {
            Ok(event) => events.push(event),
            Err(problem) => {
                tracing::error!(?key, %problem, "an event of the event stream is unreadable and is dropped");
                unreadable.push(key);
            }
        }
    }
    (events, unreadable)
}

/// Reads numbers by name from a JSON object; `None` has none.
pub(super) fn counts(json: Option<&str>) -> Result<BTreeMap<String, i64>> {
    serde_json::from_str(json.unwrap_or("{}"))
        .map_err(|e| StoreError::BadRow(format!("counts are not a JSON object: {e}")))
}

/// Returns why the value is unreadable, if that is the fault of the row. A missing column is not.
fn unreadable(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Database(
            error @ (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)),
        ) => Some(error.to_string()),
        StoreError::BadRow(_) => Some(error.to_string()),
        _ => None,
    }
}

/// What to do with a value that is unreadable.
trait Unreadable {
    /// Returns the value, or a default in its place.
    fn or_default<T>(&mut self, value: Result<T>, default: fn() -> T) -> Result<T>;
}

/// Fails with the first unreadable value.
struct Strict;

impl Unreadable for Strict {
    #[inline(always)]
    fn or_default<T>(&mut self, value: Result<T>, _: fn() -> T) -> Result<T> {
        value
    }
}

/// Takes defaults, and keeps the first reason.
#[derive(Default)]
struct Lenient(Option<String>);

impl Unreadable for Lenient {
    fn or_default<T>(&mut self, value: Result<T>, default: fn() -> T) -> Result<T> {
        value.or_else(|error| {
            let reason = unreadable(&error).ok_or(error)?;
            self.0.get_or_insert(reason);
            Ok(default())
        })
    }
}

/// Reads a job from the columns of `job_columns!`, which begin at `at`. A row with an unreadable
/// value is read a second time, with defaults. So all other rows cost no look at each value.
pub(super) fn job(row: &impl JobRow, at: usize) -> Result<Job> {
    match job_with(&mut Strict, row, at) {
        Err(error) if unreadable(&error).is_some() => {
            let mut lenient = Lenient::default();
            let job = job_with(&mut lenient, row, at)?;
            Ok(Job {
                unreadable: lenient.0,
                ..job
            })
        }
        job => job,
    }
}

#[inline(always)]
fn job_with(how: &mut impl Unreadable, row: &impl JobRow, at: usize) -> Result<Job> {
    macro_rules! read {
        ($value:expr) => {
            how.or_default($value, Default::default)?
        };
    }
    let kind_text = read!(row.short(at + 3));
    let payload = read!(row.text(at + 5));
    let custom = read!(row.maybe_text(at + 26));
    Ok(Job {
        id: JobId(row.id(at)?),
        seq: read!(row.long(at + 1)),
        revision: read!(row.int(at + 2)),
        kind: how.or_default(kind(kind_text), || JobKind::Message)?,
        job_type: read!(row.text(at + 4)),
        payload: read!(json(payload, "payload")),
        process_instance: read!(row.maybe_text(at + 6)),
        execution: read!(row.maybe_text(at + 7)),
        process_definition: read!(row.maybe_text(at + 8)),
        element: read!(row.maybe_text(at + 9)),
        tenant: read!(row.maybe_text(at + 10)),
        category: read!(row.maybe_text(at + 11)),
        deployment: read!(row.maybe_text(at + 12)),
        priority: read!(row.long(at + 13)),
        exclusive: read!(row.flag(at + 14)),
        retries: read!(row.int(at + 15)),
        failures: read!(row.int(at + 16)),
        retry_policy: read!(row.maybe_text(at + 17)),
        due_at: read!(row.maybe_moment(at + 18)),
        repeat: read!(row.maybe_text(at + 19)),
        repeat_until: read!(row.maybe_moment(at + 20)),
        correlation_id: read!(row.id(at + 21)),
        created_at: read!(row.moment(at + 22)),
        ready_at: read!(row.moment(at + 23)),
        lane: Lane(read!(row.text(at + 24))),
        exception_message: read!(row.maybe_text(at + 25)),
        custom_values: read!(custom.map(|c| json(c, "custom_values")).transpose()),
        trace_parent: read!(row.maybe_text(at + 27)),
        lane_named: read!(row.maybe_flag(at + 28)),
        unreadable: None,
    })
}

/// Reads a ready job from the columns of `ready_columns!`, which begin the row. An instance that is not
/// UTF-8 can't be asked for, so the hint names none: then the job is locked by its id, and is
/// unreadable.
pub(super) fn ready(row: &impl JobRow) -> Result<Ready> {
    let exclusive = row.flag(2)?;
    let instance = row.maybe_text(3).unwrap_or_default();
    let job_type = row.shown(5)?;
    Ok(Ready {
        lane: Lane(row.shown(1)?),
        hint: Hint {
            id: JobId(row.id(0)?),
            instance: instance.filter(|_| exclusive),
            job_type: (!exclusive).then_some(job_type),
            committed_at: None,
            trace_parent: row.maybe_shown(4)?,
        },
    })
}

/// Reads all ready jobs.
pub(super) fn all_ready(rows: &[impl JobRow]) -> Result<Vec<Ready>> {
    rows.iter().map(ready).collect()
}

/// Reads a rule from the columns of `rule_columns!`.
pub(super) fn lane_rule(row: &impl JobRow) -> Result<LaneRule> {
    Ok(LaneRule {
        lane: Lane(row.shown(0)?),
        job_type: row.maybe_shown(1)?,
        category: row.maybe_shown(2)?,
        tenant: row.maybe_shown(3)?,
        min_priority: row.maybe_long(4)?,
        max_priority: row.maybe_long(5)?,
    })
}

/// Reads a rule from the columns of `priority_columns!`.
pub(super) fn priority_rule(row: &impl JobRow) -> Result<PriorityRule> {
    let word = row.short(0)?;
    let names = [row.shown(1)?, row.shown(2)?, row.shown(3)?];
    let scope = PriorityScope::parse(word, names).ok_or_else(|| {
        let problem = "is of no scope that this program knows";
        StoreError::BadRow(format!("priority rule `{}` {problem}", word.escape_debug()))
    })?;
    Ok(PriorityRule::new(scope, row.long(4)?))
}

/// Reads the numbers of jobs in a lane, in the order of the fields.
pub(super) fn lane_view(row: &impl JobRow) -> Result<LaneView> {
    Ok(LaneView {
        lane: Lane(row.shown(0)?),
        ready: row.long(1)?,
        running: row.long(2)?,
        timers: row.long(3)?,
        suspended: row.long(4)?,
        dead_letters: row.long(5)?,
        oldest_ready_at: row.maybe_moment(6)?,
        nodes: row.long(7)?,
    })
}

/// Reads a lane and its number of jobs.
pub(super) fn lane_backlog(row: &impl JobRow) -> Result<LaneBacklog> {
    Ok(LaneBacklog {
        lane: Lane(row.shown(0)?),
        jobs: row.long(1)?,
    })
}
