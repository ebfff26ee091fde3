//! Occurrences whose date waits for a node that knows the calendar.

use sqlx::{Row, SqlitePool};

use super::decode;
use crate::job::query::PendingJobs;
use crate::store::Result;

/// The time within which a timer among them is due, in microseconds.
const WITHIN: i64 = 600_000_000;

/// Counts the pending jobs by calendar. A timer among them is due within the longest wait for the next
/// attempt, so the others are not read.
const PENDING: &str = "
SELECT substr(rest, 1, instr(rest, ']') - 1) AS calendar, count(*), min(created_at)
FROM (
    SELECT substr(repeat, instr(repeat, '[calendar=') + 10) AS rest, created_at FROM (
        SELECT repeat, created_at FROM timer_job WHERE due_at < ?2
        UNION ALL SELECT repeat, created_at FROM job)
    WHERE repeat LIKE '%[calendar=_%]%[pending=%')
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?1";

pub(super) async fn count(readers: &SqlitePool, limit: i64) -> Result<Vec<PendingJobs>> {
    let count = sqlx::query(PENDING)
        .bind(limit)
        .bind(decode::now_micros().saturating_add(WITHIN));
    let rows = count.fetch_all(readers).await?;
    let pending = rows.iter().map(|row| {
        Ok(PendingJobs {
            calendar: decode::text(row, 0)?,
            jobs: row.try_get(1)?,
            since: decode::moment(row.try_get(2)?)?,
        })
    });
    pending.collect()
}
