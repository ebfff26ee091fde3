//! Timers: due ones become executable, in batches, safe with many movers.

use sqlx::{PgPool, Row};

use super::row;
use super::sql::{moved_columns, ready_columns};
use crate::error::StoreError;
use crate::store::MovedTimers;

/// Everything after the first step goes by the keys in hand: a join with `due` reads the whole table, once to delete and once
/// to learn what is next (of 100,000 due timers that took most of the time).
const MOVE_DUE: &str = concat!(
    "
WITH due AS (
    SELECT id FROM jobwire.timer_job WHERE due_at <= statement_timestamp()
    ORDER BY due_at LIMIT $1
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM jobwire.timer_job t WHERE t.id = ANY(ARRAY(SELECT id FROM due)) RETURNING t.*
), moved AS (
    INSERT INTO jobwire.job (",
    moved_columns!(),
    ")
    SELECT id, seq, revision + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
        category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
        correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, clock_timestamp(), 1
    FROM gone ORDER BY due_at, seq
    RETURNING id, lane, exclusive, process_instance, trace_parent, due_at
)
SELECT ",
    ready_columns!("moved"),
    ", clock_timestamp(), moved.due_at,
    (SELECT due_at FROM jobwire.timer_job t WHERE id NOT IN (SELECT id FROM due) ORDER BY due_at LIMIT 1)
FROM (SELECT) AS one LEFT JOIN moved ON true"
);

pub(super) async fn move_due(pool: &PgPool, at_most: i64) -> Result<MovedTimers, StoreError> {
    let rows = sqlx::query(MOVE_DUE).bind(at_most).fetch_all(pool).await?;
    let mut result = MovedTimers::default();
    for row in &rows {
        result.now = row.try_get(5)?;
        result.next_due = row.try_get(7)?;
        if row.try_get::<Option<uuid::Uuid>, _>(0)?.is_some() {
            result.ready.push(row::ready(row)?);
            let due: chrono::DateTime<chrono::Utc> = row.try_get(6)?;
            #[allow(clippy::cast_precision_loss, reason = "a latency needs no 53 bits")]
            metrics::histogram!(crate::metrics::TIMER_LATENESS)
                .record((result.now - due).num_microseconds().unwrap_or(0) as f64 / 1e6);
        }
    }
    Ok(result)
}
