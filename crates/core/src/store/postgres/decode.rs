//! Conversion of rows to values.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::job::progress::ProgressView;
use crate::job::query::JobView;
use crate::job::scope::Needs;
use crate::job::tags;
use crate::job::{Fence, JobId, JobState, Lane, LockedJob};
use crate::store::Result;
use crate::store::decode::{JobRow, gate, kind};
pub(super) use crate::store::decode::{all_ready, job, ready};
use crate::store::error::StoreError;

/// A century, in milliseconds. A longer wait would exceed the range of dates.
pub(super) const LONGEST: i64 = 100 * 366 * 24 * 3_600_000;

/// The microseconds from 1970 to 2000, where PostgreSQL's dates begin.
const EPOCH: i64 = 946_684_800_000_000;

/// Returns the date of a `timestamptz` in its binary form, which counts microseconds. The conversion
/// of the library panics at `infinity`.
fn date(micros: i64) -> Result<DateTime<Utc>> {
    let since_1970 = micros.checked_add(EPOCH);
    since_1970
        .and_then(DateTime::from_timestamp_micros)
        .ok_or_else(|| StoreError::BadRow("a date is out of range".to_owned()))
}

/// Reads values without a check of the column's type: the types are those of Jobwire's schema, and
/// a check takes as long as the read.
impl JobRow for PgRow {
    fn id(&self, at: usize) -> Result<Uuid> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn short(&self, at: usize) -> Result<&str> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn text(&self, at: usize) -> Result<String> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn maybe_text(&self, at: usize) -> Result<Option<String>> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn long(&self, at: usize) -> Result<i64> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn maybe_long(&self, at: usize) -> Result<Option<i64>> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn int(&self, at: usize) -> Result<i32> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn flag(&self, at: usize) -> Result<bool> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn maybe_flag(&self, at: usize) -> Result<Option<bool>> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn moment(&self, at: usize) -> Result<DateTime<Utc>> {
        date(self.try_get_unchecked(at)?)
    }

    fn maybe_moment(&self, at: usize) -> Result<Option<DateTime<Utc>>> {
        let micros: Option<i64> = self.try_get_unchecked(at)?;
        micros.map(date).transpose()
    }
}

/// Reads a job that was locked from the columns of its fence, its strikes and the time of the lock,
/// which begin at `at`, and those of `job_columns!`, which follow.
pub(super) fn locked(row: &PgRow, at: usize) -> Result<LockedJob> {
    Ok(LockedJob {
        fence: Fence(row.try_get(at)?),
        strikes: row.try_get(at + 1)?,
        locked_at: row.moment(at + 2)?,
        job: Arc::new(job(row, at + 3)?),
    })
}

/// Reads the type and the scope that a node must serve to run a job, by column name.
pub(super) fn needs(row: &PgRow) -> Result<Needs, StoreError> {
    Ok(Needs {
        job_type: row.try_get("type")?,
        deployment: row.try_get("deployment")?,
        category: row.try_get("category")?,
        tenant: row.try_get("tenant")?,
        priority: Some(row.try_get("priority")?),
    })
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
        execution: row.try_get("execution")?,
        process_definition: row.try_get("process_definition")?,
        element: row.try_get("element")?,
        tenant: row.try_get("tenant")?,
        tags: tags::of(row.try_get_unchecked::<Option<&str>, _>("custom_values")?),
        lane: Lane(row.try_get("lane")?),
        hints: Some(row.try_get("hints")?),
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
        cancelled_at: row.try_get("cancelled_at")?,
        gate: gate(row.try_get("gate")?),
        progress: ProgressView::read(
            row.try_get("done")?,
            row.try_get("total")?,
            row.try_get("message")?,
            row.try_get("reported_at")?,
        ),
        checkpoint_at: row.try_get("checkpoint_at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_beyond_the_range_is_an_error() {
        assert_eq!(date(0).unwrap().to_string(), "2000-01-01 00:00:00 UTC");
        assert_eq!(
            date(-EPOCH - 1).unwrap().to_string(),
            "1969-12-31 23:59:59.999999 UTC"
        );
        for infinite in [i64::MIN, i64::MAX] {
            assert!(matches!(date(infinite), Err(StoreError::BadRow(_))));
        }
    }
}
