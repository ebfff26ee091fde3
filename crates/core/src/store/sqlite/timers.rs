//! Timers: due ones become executable, in batches. Several nodes may move timers at once.

use std::collections::HashSet;

use sqlx::Row;

use super::lock::lock_in;
use super::sql::{has_id, moved_columns, ready_columns};
use super::{SqliteStore, decode};
use crate::hint::{Hint, Ready};
use crate::job::{JobId, Lane};
use crate::store::error::StoreError;
use crate::store::statements::Timers;
use crate::store::{LockTerms, MovedTimers};

/// Selects a page by the index of the dates, then sorts it. In the order of `due_at, seq`, each page
/// would sort all due timers of its date.
macro_rules! due {
    ($where:literal) => {
        concat!(
            "
SELECT * FROM (
    SELECT ",
            ready_columns!("t"),
            ", t.due_at, t.seq FROM timer_job t WHERE t.due_at <= ?1 AND ",
            has_id!("t.id"),
            $where,
            "
    ORDER BY t.due_at LIMIT ?2
) ORDER BY due_at, seq"
        )
    };
}

const DUE: &str = due!("");

/// Selects the oldest and the newest due timers.
const OLDEST_AND_NEWEST: &str = concat!(
    "
SELECT id FROM (
    SELECT * FROM (SELECT id, due_at, seq FROM timer_job WHERE due_at <= ?1 AND ",
    has_id!("id"),
    " ORDER BY due_at LIMIT ?2)
    UNION
    SELECT * FROM (SELECT id, due_at, seq FROM timer_job WHERE due_at <= ?1 AND ",
    has_id!("id"),
    " ORDER BY due_at DESC LIMIT ?2)
) ORDER BY due_at, seq"
);

/// Like [`DUE`], for given timers, in the search for a refused row.
const DUE_THESE: &str = due!(" AND t.id IN (SELECT value FROM json_each(?3))");

const MOVE: &str = concat!(
    "
INSERT INTO job (",
    moved_columns!(),
    ")
SELECT id, seq, min(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
    category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
    correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, ?2, 1,
    lane_named
FROM timer_job WHERE id IN (SELECT value FROM json_each(?1))"
);
const DELETE: &str = "DELETE FROM timer_job WHERE id IN (SELECT value FROM json_each(?1))";
/// Passes over what no move can name, or the next date would stay in the past.
const NEXT_DUE: &str = concat!(
    "SELECT due_at FROM timer_job WHERE ",
    has_id!("id"),
    " ORDER BY due_at LIMIT 1"
);

impl Timers for SqliteStore {
    /// Returns the ids of due timers: `at_most` of the oldest, and of the newest.
    async fn due(&self, at_most: i64) -> Result<Vec<JobId>, StoreError> {
        let query = sqlx::query(OLDEST_AND_NEWEST)
            .bind(decode::now_micros())
            .bind(at_most);
        decode::job_ids(&query.fetch_all(&self.readers).await?)
    }

    /// Moves due timers, or only `these`, if given. With `take`, locks the timers of its lanes that
    /// its terms allow, except exclusive ones.
    async fn move_due(
        &self,
        at_most: i64,
        take: Option<(&LockTerms, &[Lane])>,
        these: Option<&[JobId]>,
    ) -> Result<MovedTimers, StoreError> {
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let mut query = sqlx::query(if these.is_some() { DUE_THESE } else { DUE })
            .bind(now)
            .bind(at_most);
        if let Some(these) = these {
            query = query.bind(decode::array(these)?);
        }
        let rows = query.fetch_all(&mut *tx).await?;
        if !rows.is_empty() {
            let ids = decode::array(decode::job_ids(&rows)?)?;
            sqlx::query(MOVE)
                .bind(&ids)
                .bind(now)
                .execute(&mut *tx)
                .await?;
            sqlx::query(DELETE).bind(&ids).execute(&mut *tx).await?;
        }
        let mut ready = decode::all_ready(&rows)?;
        let mut locked = Vec::new();
        if let Some((terms, lanes)) = take {
            let plain =
                |ready: &Ready| ready.hint.instance.is_none() && lanes.contains(&ready.lane);
            let hints: Vec<Hint> = ready
                .iter()
                .filter(|r| plain(r))
                .map(|r| r.hint.clone())
                .collect();
            locked = lock_in(&mut tx, terms, &hints).await?.jobs;
            let is_locked: HashSet<JobId> = locked.iter().map(|l| l.job.id).collect();
            ready.retain(|r| !is_locked.contains(&r.hint.id));
        }
        let next_due: Option<i64> = sqlx::query_scalar(NEXT_DUE)
            .fetch_optional(&mut *tx)
            .await?;
        tx.commit().await?;
        for row in &rows {
            let due: i64 = row.try_get(6)?;
            #[allow(clippy::cast_precision_loss, reason = "a latency needs no 53 bits")]
            metrics::histogram!(crate::telemetry::metrics::TIMER_LATENESS)
                .record((now - due) as f64 / 1e6);
        }
        Ok(MovedTimers {
            ready,
            locked,
            next_due: decode::maybe_moment(next_due)?,
            now: decode::moment(now)?,
        })
    }
}
