//! Occurrences whose date waits for a node that knows the calendar.

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use crate::job::query::PendingJobs;
use crate::store::Result;

/// Counts the pending jobs by calendar. A timer among them is due within the longest wait for the next
/// attempt, so the others are not read.
const PENDING: &str = "
SELECT substring(repeat FROM '[[]calendar=([^]]+)') AS calendar, count(*), min(created_at)
FROM (
    SELECT repeat, created_at FROM jobwire.timer_job WHERE due_at < statement_timestamp() + interval '10 minutes'
    UNION ALL SELECT repeat, created_at FROM jobwire.job
) j
WHERE repeat LIKE '%[calendar=_%]%[pending=%'
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $1";

pub(super) async fn count(pool: &PgPool, limit: i64) -> Result<Vec<PendingJobs>> {
    let count = sqlx::query_as(PENDING).bind(limit);
    let rows: Vec<(Option<String>, i64, DateTime<Utc>)> = count.fetch_all(pool).await?;
    let pending = rows.into_iter().map(|(calendar, jobs, since)| PendingJobs {
        calendar: calendar.unwrap_or_default(),
        jobs,
        since,
    });
    Ok(pending.collect())
}
