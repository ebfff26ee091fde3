//! Conversion of rows to values.

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::hint::{Hint, Ready};
use crate::job::query::JobView;
use crate::job::scope::Needs;
use crate::job::{Job, JobId, JobKind, JobState, Lane};
use crate::store::error::StoreError;

fn json(text: String, column: &str) -> Result<Box<RawValue>, StoreError> {
    RawValue::from_string(text)
        .map_err(|e| StoreError::BadRow(format!("column `{column}` is not JSON: {e}")))
}

fn kind(text: &str) -> Result<JobKind, StoreError> {
    JobKind::parse(text)
        .ok_or_else(|| StoreError::BadRow(format!("column `kind` is `{}`", text.escape_debug())))
}

/// Returns the value, or a default if it can't be decoded, with the reason in `fault`. A missing
/// column is an error.
fn readable<T: Default>(
    value: sqlx::Result<T>,
    fault: &mut Option<String>,
) -> Result<T, StoreError> {
    match value {
        Ok(value) => Ok(value),
        Err(error @ (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_))) => {
            fault.get_or_insert(error.to_string());
            Ok(T::default())
        }
        Err(error) => Err(error.into()),
    }
}

/// Like [`readable`], for a value that was parsed from a text.
fn parsed<T>(
    value: Result<T, StoreError>,
    default: impl FnOnce() -> T,
    fault: &mut Option<String>,
) -> T {
    value.unwrap_or_else(|error| {
        fault.get_or_insert(error.to_string());
        default()
    })
}

/// Reads a job from the columns of `job_columns!`, the first of them at `at`. The columns' types
/// are not checked: they are those of Jobwire's schema, and a check for each row takes as long as
/// reading it.
pub(super) fn job(row: &PgRow, at: usize) -> Result<Job, StoreError> {
    let mut unreadable = None;
    let fault = &mut unreadable;
    let kind_text: &str = readable(row.try_get_unchecked(at + 3), fault)?;
    let payload: String = readable(row.try_get_unchecked(at + 5), fault)?;
    let custom: Option<String> = readable(row.try_get_unchecked(at + 26), fault)?;
    Ok(Job {
        id: JobId(row.try_get_unchecked(at)?),
        seq: readable(row.try_get_unchecked(at + 1), fault)?,
        revision: readable(row.try_get_unchecked(at + 2), fault)?,
        kind: parsed(kind(kind_text), || JobKind::Message, fault),
        job_type: readable(row.try_get_unchecked(at + 4), fault)?,
        payload: parsed(json(payload, "payload"), Default::default, fault),
        process_instance: readable(row.try_get_unchecked(at + 6), fault)?,
        execution: readable(row.try_get_unchecked(at + 7), fault)?,
        process_definition: readable(row.try_get_unchecked(at + 8), fault)?,
        element: readable(row.try_get_unchecked(at + 9), fault)?,
        tenant: readable(row.try_get_unchecked(at + 10), fault)?,
        category: readable(row.try_get_unchecked(at + 11), fault)?,
        deployment: readable(row.try_get_unchecked(at + 12), fault)?,
        priority: readable(row.try_get_unchecked(at + 13), fault)?,
        exclusive: readable(row.try_get_unchecked(at + 14), fault)?,
        retries: readable(row.try_get_unchecked(at + 15), fault)?,
        failures: readable(row.try_get_unchecked(at + 16), fault)?,
        retry_policy: readable(row.try_get_unchecked(at + 17), fault)?,
        due_at: readable(row.try_get_unchecked(at + 18), fault)?,
        repeat: readable(row.try_get_unchecked(at + 19), fault)?,
        repeat_until: readable(row.try_get_unchecked(at + 20), fault)?,
        correlation_id: readable(row.try_get_unchecked(at + 21), fault)?,
        created_at: readable(row.try_get_unchecked(at + 22), fault)?,
        ready_at: readable(row.try_get_unchecked(at + 23), fault)?,
        lane: Lane(readable(row.try_get_unchecked(at + 24), fault)?),
        exception_message: readable(row.try_get_unchecked(at + 25), fault)?,
        custom_values: parsed(
            custom.map(|c| json(c, "custom_values")).transpose(),
            || None,
            fault,
        ),
        trace_parent: readable(row.try_get_unchecked(at + 27), fault)?,
        unreadable: fault.take(),
    })
}

/// Reads a job's hint and lane from the columns of `ready_columns!`.
pub(super) fn ready(row: &PgRow) -> Result<Ready, StoreError> {
    let exclusive: bool = row.try_get(2)?;
    let instance: Option<String> = row.try_get(3)?;
    let job_type: String = row.try_get(5)?;
    Ok(Ready {
        lane: Lane(row.try_get(1)?),
        hint: Hint {
            id: JobId(row.try_get(0)?),
            instance: instance.filter(|_| exclusive),
            job_type: (!exclusive).then_some(job_type),
            committed_at: None,
            trace_parent: row.try_get(4)?,
        },
    })
}

/// Reads the type and the scope that a node must serve to run a job, by column name.
pub(super) fn needs(row: &PgRow) -> Result<Needs, StoreError> {
    Ok(Needs {
        job_type: row.try_get("type")?,
        deployment: row.try_get("deployment")?,
        category: row.try_get("category")?,
        tenant: row.try_get("tenant")?,
    })
}

pub(super) fn all_ready(rows: &[PgRow]) -> Result<Vec<Ready>, StoreError> {
    rows.iter().map(ready).collect()
}

/// Reads one line of a job list; `find.rs` has the columns.
pub(super) fn view(row: &PgRow) -> Result<JobView, StoreError> {
    let state: &str = row.try_get("state")?;
    Ok(JobView {
        id: JobId(row.try_get("id")?),
        state: JobState::parse(state)
            .ok_or_else(|| StoreError::BadRow(format!("unknown state `{state}`")))?,
        seq: row.try_get("seq")?,
        kind: kind(row.try_get("kind")?)?,
        job_type: row.try_get("type")?,
        process_instance: row.try_get("process_instance")?,
        process_definition: row.try_get("process_definition")?,
        element: row.try_get("element")?,
        tenant: row.try_get("tenant")?,
        lane: Lane(row.try_get("lane")?),
        priority: row.try_get("priority")?,
        exclusive: row.try_get("exclusive")?,
        retries: row.try_get("retries")?,
        failures: row.try_get("failures")?,
        due_at: row.try_get("due_at")?,
        created_at: row.try_get("created_at")?,
        ready_at: row.try_get("ready_at")?,
        correlation_id: row.try_get("correlation_id")?,
        exception_message: row.try_get("exception_message")?,
        lock_owner: row.try_get::<Option<Uuid>, _>("owner")?,
        lock_expires_at: row.try_get::<Option<DateTime<Utc>>, _>("expires_at")?,
        locked_at: row.try_get("locked_at")?,
        fence: row.try_get("fence")?,
    })
}
