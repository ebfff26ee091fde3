//! Moving due timers to the executable jobs.
//!
//! A move is an INSERT and a DELETE in one statement, as in the engine. If counts are enabled, the
//! engine keeps the numbers of jobs and timers on the row of the job's execution. If a number is
//! too small, the engine leaves a job behind when the execution ends, and the foreign key fails. So
//! a move corrects both numbers, and raises `REV_` of that row as the engine does. A transaction of
//! the engine that has read the old numbers then fails with a conflict, and does not write them
//! back.
//!
//! `REV_` must not change while a job of the instance runs. So timers of a locked instance wait;
//! their jobs would have to wait for the instance anyway. The move locks the row of the instance,
//! so no job of it is locked meanwhile.
//!
//! With the endpoint, only a locked job shows that an instance is busy. So a statement before the
//! move locks the rows of the instances, and the move sees every job that was locked before.
//!
//! No timer moves before it is due by the database's clock in the engine's zone. While the configured
//! zone seems to be wrong, none moves before it is due in every zone ([`zone`](crate::zone)).

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use jobwire_core::store::MovedTimers;
use sqlx::{PgPool, Row};

use super::Act;
use super::instance_lock::InstanceLock;
use super::sql::{of_processes, unlocked};
use crate::dialect::Dialect;

/// The pause before another try for due timers that could not be moved because their instance is
/// locked.
const HELD: chrono::Duration = chrono::Duration::milliseconds(500);

/// True if the timer `t` is due and its instance is not locked. `$1`: the zone of due dates.
macro_rules! movable {
    () => {
        concat!(
            "t.duedate_ <= statement_timestamp() AT TIME ZONE $1 AND ",
            unlocked!("t"),
            " AND (",
            of_processes!("t"),
            ") AND NOT EXISTS (
        SELECT FROM act_ru_execution e WHERE e.id_ = t.process_instance_id_ AND (e.lock_time_ IS NOT NULL OR {e.lock_owner_} IS NOT NULL))"
        )
    };
}

/// Locks the rows of the instances that have timers to move. `$1`: the zone of due dates, `$2`:
/// maximum number of timers.
pub(super) const HOLD: &str = concat!(
    "
SELECT e.id_ FROM act_ru_execution e WHERE e.id_ IN (
    SELECT t.process_instance_id_ FROM act_ru_timer_job t
    WHERE ",
    movable!(),
    " AND NOT EXISTS (
        SELECT FROM act_ru_job s WHERE s.process_instance_id_ = t.process_instance_id_ AND s.lock_exp_time_ IS NOT NULL)
    ORDER BY t.duedate_, t.id_ LIMIT $2)
ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED"
);

/// True if no job of the timer's instance is locked. With the endpoint, `$4`: the instances whose
/// rows the transaction has locked.
pub(super) const NO_JOB_RUNS: &str = "(t.process_instance_id_ IS NULL OR (t.process_instance_id_ = ANY($4::text[])
        AND NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = t.process_instance_id_ AND s.lock_exp_time_ IS NOT NULL)))";

/// Moves due timers. `$1`: the zone of due dates, `$2`: maximum number, `$3`: the zone.
pub(super) const MOVE: &str = concat!(
    "
WITH due AS MATERIALIZED (
    SELECT t.* FROM act_ru_timer_job t
    WHERE $3::text IS NOT NULL AND ",
    movable!(),
    "
      AND {no job runs}
    ORDER BY t.duedate_, t.id_ LIMIT $2 FOR UPDATE SKIP LOCKED
), rows AS MATERIALIZED (
    SELECT e.id_, e.lock_time_ FROM act_ru_execution e
    WHERE e.id_ IN (SELECT execution_id_ FROM due UNION SELECT process_instance_id_ FROM due)
    ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED
), movable AS MATERIALIZED (
    SELECT due.* FROM due
    WHERE (execution_id_ IS NULL OR EXISTS (SELECT FROM rows WHERE rows.id_ = due.execution_id_))
      AND (process_instance_id_ IS NULL OR EXISTS (SELECT FROM rows WHERE rows.id_ = due.process_instance_id_ AND rows.lock_time_ IS NULL))
), gone AS (
    DELETE FROM act_ru_timer_job t USING movable m WHERE t.id_ = m.id_
), moved AS (
    INSERT INTO act_ru_job ({columns}) SELECT {values}
    FROM movable
    RETURNING id_, process_instance_id_, handler_type_
), counted AS (
    UPDATE act_ru_execution e SET rev_ = e.rev_ % 2147483647 + 1,
        timer_job_count_ = e.timer_job_count_ - m.timers, job_count_ = e.job_count_ + m.timers
    FROM (SELECT execution_id_, count(*)::integer AS timers FROM movable GROUP BY execution_id_) m
    WHERE e.id_ = m.execution_id_ AND e.is_count_enabled_
)
SELECT id_, process_instance_id_, handler_type_ FROM moved"
);

/// Selects the next due date after now, whether a due timer is left, and the local time. `$1`: the
/// zone of due dates.
pub(super) const NEXT_DUE: &str = concat!(
    "
SELECT statement_timestamp(),
    (SELECT min(duedate_) AT TIME ZONE $1 FROM act_ru_timer_job t WHERE t.duedate_ > statement_timestamp() AT TIME ZONE $1 AND t.duedate_ < '9999-01-01' AND ",
    unlocked!("t"),
    "),
    EXISTS (SELECT FROM act_ru_timer_job t WHERE t.duedate_ <= statement_timestamp() AT TIME ZONE $1 AND ",
    unlocked!("t"),
    " AND (",
    of_processes!("t"),
    ")),
    statement_timestamp() AT TIME ZONE $1"
);

impl Act {
    /// Moves due timers, at most `at_most`.
    pub(super) async fn move_due_timers(
        &self,
        pool: &PgPool,
        at_most: i64,
    ) -> Result<MovedTimers, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let mut tx = pool.begin().await?;
        let zone = self.zone.judged();
        let mut moving = sqlx::query(self.sql.move_due)
            .bind(zone)
            .bind(at_most)
            .bind(self.zone.name());
        if self.instances_of == InstanceLock::OfEngine {
            let held: Vec<String> = sqlx::query_scalar(self.sql.hold)
                .bind(zone)
                .bind(at_most)
                .fetch_all(&mut *tx)
                .await?;
            moving = moving.bind(held);
        }
        let rows = moving.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        let mut moved = MovedTimers::default();
        for row in &rows {
            moved.ready.extend(self.decoder.ready_row(row)?);
        }
        let row = sqlx::query(self.sql.next_due)
            .bind(zone)
            .fetch_one(pool)
            .await?;
        moved.now = row.try_get(0)?;
        self.offset.read(row.try_get(3)?, moved.now);
        let next: Option<DateTime<Utc>> = row.try_get(1)?;
        let is_due: bool = row.try_get(2)?;
        let is_full = i64::try_from(rows.len()).is_ok_and(|count| count >= at_most);
        moved.next_due = match (is_due, is_full) {
            // A full page: the rest moves at once.
            (true, true) => Some(moved.now),
            (true, false) => next.into_iter().chain([moved.now + HELD]).min(),
            (false, _) => next,
        };
        Ok(moved)
    }
}
