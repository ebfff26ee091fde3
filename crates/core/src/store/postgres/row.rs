//! Rows to values.

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::error::StoreError;
use crate::hint::{Hint, Ready};
use crate::job::{Job, JobId, JobKind, JobState, Lane};
use crate::query::JobView;

fn json(text: String, column: &str) -> Result<Box<RawValue>, StoreError> {
    RawValue::from_string(text)
        .map_err(|e| StoreError::BadRow(format!("column `{column}` is not JSON: {e}")))
}

fn kind(text: &str) -> Result<JobKind, StoreError> {
    JobKind::parse(text)
        .ok_or_else(|| StoreError::BadRow(format!("column `kind` is `{}`", text.escape_debug())))
}

/// A job from the columns of `job_columns!`, the first of them at `at`. Unchecked: the columns' types are those of
/// our own schema, and comparing them again for each row would take as long as reading it.
pub(super) fn job(row: &PgRow, at: usize) -> Result<Job, StoreError> {
    let custom: Option<String> = row.try_get_unchecked(at + 26)?;
    Ok(Job {
        id: JobId(row.try_get_unchecked(at)?),
        seq: row.try_get_unchecked(at + 1)?,
        revision: row.try_get_unchecked(at + 2)?,
        kind: kind(row.try_get_unchecked(at + 3)?)?,
        job_type: row.try_get_unchecked(at + 4)?,
        payload: json(row.try_get_unchecked(at + 5)?, "payload")?,
        process_instance: row.try_get_unchecked(at + 6)?,
        execution: row.try_get_unchecked(at + 7)?,
        process_definition: row.try_get_unchecked(at + 8)?,
        element: row.try_get_unchecked(at + 9)?,
        tenant: row.try_get_unchecked(at + 10)?,
        category: row.try_get_unchecked(at + 11)?,
        deployment: row.try_get_unchecked(at + 12)?,
        priority: row.try_get_unchecked(at + 13)?,
        exclusive: row.try_get_unchecked(at + 14)?,
        retries: row.try_get_unchecked(at + 15)?,
        failures: row.try_get_unchecked(at + 16)?,
        retry_policy: row.try_get_unchecked(at + 17)?,
        due_at: row.try_get_unchecked(at + 18)?,
        repeat: row.try_get_unchecked(at + 19)?,
        repeat_until: row.try_get_unchecked(at + 20)?,
        correlation_id: row.try_get_unchecked(at + 21)?,
        created_at: row.try_get_unchecked(at + 22)?,
        ready_at: row.try_get_unchecked(at + 23)?,
        lane: Lane(row.try_get_unchecked(at + 24)?),
        exception_message: row.try_get_unchecked(at + 25)?,
        custom_values: custom.map(|c| json(c, "custom_values")).transpose()?,
        trace_parent: row.try_get_unchecked(at + 27)?,
    })
}

/// What to hint, from the columns of `ready_columns!`.
pub(super) fn ready(row: &PgRow) -> Result<Ready, StoreError> {
    let exclusive: bool = row.try_get(2)?;
    let instance: Option<String> = row.try_get(3)?;
    Ok(Ready {
        lane: Lane(row.try_get(1)?),
        hint: Hint {
            id: JobId(row.try_get(0)?),
            instance: instance.filter(|_| exclusive),
            committed_at: None,
            trace_parent: row.try_get(4)?,
        },
    })
}

/// All of them.
pub(super) fn all_ready(rows: &[PgRow]) -> Result<Vec<Ready>, StoreError> {
    rows.iter().map(ready).collect()
}

/// One line of a job list; see `operate.rs` for the columns.
pub(super) fn view(row: &PgRow) -> Result<JobView, StoreError> {
    let state: &str = row.try_get("state")?;
    Ok(JobView {
        id: JobId(row.try_get("id")?),
        state: JobState::parse(state)
            .ok_or_else(|| StoreError::BadRow(format!("state `{state}`")))?,
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
