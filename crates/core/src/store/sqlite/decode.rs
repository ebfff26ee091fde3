//! Conversion between rows and values. SQLite stores ids as text and timestamps as microseconds.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::hint::Ready;
use crate::job::progress::ProgressView;
use crate::job::query::JobView;
use crate::job::scope::Needs;
use crate::job::tags;
use crate::job::{JobId, JobState, Lane, NodeId};
use crate::store::decode::{JobRow, gate, kind};
pub(super) use crate::store::decode::{all_ready, job, ready};
use crate::store::error::StoreError;

/// The largest timestamp that is written, the end of the year 9999. So sums stay in the range of
/// every reader.
const END_OF_TIME: i64 = 253_402_300_799_999_999;
/// The start of the year 1.
const START_OF_TIME: i64 = -62_135_596_800_000_000;

/// Returns the time. SQLite has no clock, so this is the clock of the machine, which all processes
/// share. It is read once inside each transaction, so that one transition compares with one
/// reading.
pub(super) fn now_micros() -> i64 {
    Utc::now().timestamp_micros()
}

/// Returns the timestamp `by` after `now`, at most [`END_OF_TIME`].
pub(super) fn later(now: i64, by: Duration) -> i64 {
    let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
    now.saturating_add(by).min(END_OF_TIME)
}

/// Converts a time to a stored timestamp.
pub(super) fn micros(at: DateTime<Utc>) -> i64 {
    at.timestamp_micros()
}

/// Converts a stored timestamp to a time.
pub(super) fn moment(micros: i64) -> Result<DateTime<Utc>, StoreError> {
    DateTime::from_timestamp_micros(micros)
        .ok_or_else(|| StoreError::BadRow(format!("the timestamp {micros} is out of range")))
}

/// Converts a stored timestamp that may be missing.
pub(super) fn maybe_moment(micros: Option<i64>) -> Result<Option<DateTime<Utc>>, StoreError> {
    micros.map(moment).transpose()
}

/// Converts a stored timestamp that another program may have written: one out of the years 1 to 9999
/// becomes the nearest one in them.
pub(super) fn shown(micros: i64) -> DateTime<Utc> {
    let micros = micros.clamp(START_OF_TIME, END_OF_TIME);
    DateTime::from_timestamp_micros(micros).unwrap_or_default()
}

/// Returns the items as a JSON array, bound as one value.
pub(super) fn array<T: Serialize>(
    items: impl IntoIterator<Item = T>,
) -> Result<String, StoreError> {
    let items: Vec<T> = items.into_iter().collect();
    serde_json::to_string(&items)
        .map_err(|e| StoreError::BadRow(format!("values do not serialise: {e}")))
}

/// Reads a text. SQLite checks no text of another program: bytes that are not UTF-8 are replaced, so
/// that the row stops no other one. A text that was changed so addresses no row.
pub(super) fn text<I: sqlx::ColumnIndex<SqliteRow>>(
    row: &SqliteRow,
    at: I,
) -> Result<String, StoreError> {
    Ok(lossy(row.try_get(at)?))
}

/// Reads a text that may be missing, like [`text`].
pub(super) fn maybe_text<I: sqlx::ColumnIndex<SqliteRow>>(
    row: &SqliteRow,
    at: I,
) -> Result<Option<String>, StoreError> {
    Ok(row.try_get::<Option<Vec<u8>>, _>(at)?.map(lossy))
}

/// Reads the texts in the first column of the rows, without those that are missing.
pub(super) fn texts(rows: &[SqliteRow]) -> Result<Vec<String>, StoreError> {
    rows.iter()
        .filter_map(|row| maybe_text(row, 0).transpose())
        .collect()
}

/// Converts the bytes of a text.
pub(super) fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Reads an instance to ask for it. One that is not UTF-8 can't be asked for, and is none.
pub(super) fn instance(row: &SqliteRow, at: usize) -> Option<String> {
    row.try_get(at).unwrap_or_default()
}

/// Reads the instances in the first column of the rows, like [`instance`].
pub(super) fn instances(rows: &[SqliteRow]) -> Vec<String> {
    rows.iter().filter_map(|row| instance(row, 0)).collect()
}

/// Reads an id to show it. A text of another program that is no id becomes the nil id.
pub(super) fn shown_id<I: sqlx::ColumnIndex<SqliteRow>>(
    row: &SqliteRow,
    at: I,
) -> Result<Uuid, StoreError> {
    Ok(maybe_text(row, at)?
        .and_then(|text| Uuid::parse_str(&text).ok())
        .unwrap_or_default())
}

/// Reads an id from a column.
pub(super) fn uuid<I: sqlx::ColumnIndex<SqliteRow>>(
    row: &SqliteRow,
    at: I,
) -> Result<Uuid, StoreError> {
    Ok(row.try_get::<Hyphenated, _>(at)?.into_uuid())
}

/// Reads the job id in the first column.
pub(super) fn job_id(row: &SqliteRow) -> Result<JobId, StoreError> {
    Ok(JobId(uuid(row, 0)?))
}

/// Reads the node id in the column of this name.
pub(super) fn node_id(row: &SqliteRow, column: &str) -> Result<NodeId, StoreError> {
    Ok(NodeId(uuid(row, column)?))
}

/// Reads the job ids in the first column of the rows.
pub(super) fn job_ids(rows: &[SqliteRow]) -> Result<Vec<JobId>, StoreError> {
    rows.iter().map(job_id).collect()
}

/// Reads the job ids in the first column of the rows, without those that can't be read.
pub(super) fn readable_job_ids(rows: &[SqliteRow]) -> Vec<JobId> {
    rows.iter().filter_map(|row| job_id(row).ok()).collect()
}

/// Reads the job ids of rows, and those whose second column is true.
pub(super) fn job_ids_and_marked(
    rows: &[SqliteRow],
) -> Result<(Vec<JobId>, Vec<JobId>), StoreError> {
    let ids = job_ids(rows)?;
    let mut marked = Vec::new();
    for (row, id) in rows.iter().zip(&ids) {
        if row.try_get(1)? {
            marked.push(*id);
        }
    }
    Ok((ids, marked))
}

impl JobRow for SqliteRow {
    fn id(&self, at: usize) -> Result<Uuid, StoreError> {
        uuid(self, at)
    }

    fn short(&self, at: usize) -> Result<&str, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn text(&self, at: usize) -> Result<String, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn maybe_text(&self, at: usize) -> Result<Option<String>, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn shown(&self, at: usize) -> Result<String, StoreError> {
        text(self, at)
    }

    fn maybe_shown(&self, at: usize) -> Result<Option<String>, StoreError> {
        maybe_text(self, at)
    }

    fn long(&self, at: usize) -> Result<i64, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn maybe_long(&self, at: usize) -> Result<Option<i64>, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn int(&self, at: usize) -> Result<i32, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn flag(&self, at: usize) -> Result<bool, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn maybe_flag(&self, at: usize) -> Result<Option<bool>, StoreError> {
        Ok(self.try_get(at)?)
    }

    fn moment(&self, at: usize) -> Result<DateTime<Utc>, StoreError> {
        moment(self.try_get(at)?)
    }

    fn maybe_moment(&self, at: usize) -> Result<Option<DateTime<Utc>>, StoreError> {
        maybe_moment(self.try_get(at)?)
    }
}

/// Reads the needs of a job from the columns of these names.
pub(super) fn needs(row: &SqliteRow) -> Result<Needs, StoreError> {
    Ok(Needs {
        job_type: text(row, "type")?,
        deployment: maybe_text(row, "deployment")?,
        category: maybe_text(row, "category")?,
        tenant: maybe_text(row, "tenant")?,
        priority: Some(row.try_get("priority")?),
    })
}

/// Reads all ready jobs in creation order, which RETURNING does not keep. `seq` follows
/// `ready_columns!`.
pub(super) fn ready_in_order(rows: &[SqliteRow]) -> Result<Vec<Ready>, StoreError> {
    let mut found: Vec<(i64, Ready)> = rows
        .iter()
        .map(|r| Ok((r.try_get(6)?, ready(r)?)))
        .collect::<Result<_, StoreError>>()?;
    found.sort_by_key(|(seq, _)| *seq);
    Ok(found.into_iter().map(|(_, ready)| ready).collect())
}

/// Reads one line of a job list; see `find.rs` for the columns.
pub(super) fn view(row: &SqliteRow) -> Result<JobView, StoreError> {
    let state = text(row, "state")?;
    Ok(JobView {
        id: JobId(uuid(row, "id")?),
        state: JobState::parse(&state)
            .ok_or_else(|| StoreError::BadRow(format!("the state is `{state}`")))?,
        seq: row.try_get("seq")?,
        kind: kind(&text(row, "kind")?)?,
        job_type: text(row, "type")?,
        process_instance: maybe_text(row, "process_instance")?,
        execution: maybe_text(row, "execution")?,
        process_definition: maybe_text(row, "process_definition")?,
        element: maybe_text(row, "element")?,
        tenant: maybe_text(row, "tenant")?,
        tags: tags::of(maybe_text(row, "custom_values")?.as_deref()),
        lane: Lane(text(row, "lane")?),
        hints: Some(row.try_get("hints")?),
        priority: row.try_get("priority")?,
        exclusive: row.try_get("exclusive")?,
        retries: row.try_get("retries")?,
        failures: row.try_get("failures")?,
        due_at: maybe_moment(row.try_get("due_at")?)?,
        created_at: moment(row.try_get("created_at")?)?,
        ready_at: moment(row.try_get("ready_at")?)?,
        correlation_id: shown_id(row, "correlation_id")?,
        exception_message: maybe_text(row, "exception_message")?,
        // Another program may have written any values into a lease. They do not fail the list.
        lock_owner: match row.try_get::<Option<Hyphenated>, _>("owner") {
            Ok(owner) => owner.map(Hyphenated::into_uuid),
            Err(_) => Some(Uuid::nil()),
        },
        lock_expires_at: maybe_moment(row.try_get("expires_at")?).unwrap_or_default(),
        locked_at: maybe_moment(row.try_get("locked_at")?).unwrap_or_default(),
        fence: row.try_get("fence")?,
        cancelled_at: maybe_moment(row.try_get("cancelled_at")?).unwrap_or_default(),
        gate: gate(maybe_text(row, "gate")?),
        progress: ProgressView::read(
            row.try_get("done")?,
            row.try_get("total")?,
            maybe_text(row, "message")?,
            maybe_moment(row.try_get("reported_at")?).unwrap_or_default(),
        ),
        checkpoint_at: maybe_moment(row.try_get("checkpoint_at")?).unwrap_or_default(),
    })
}
