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
//! A timer with the id of an executable job stays. If the database refuses a page for the contents of a
//! row, the page is moved in halves, each in a transaction, until the refused timers are alone. Each of
//! these is [set aside](super::aside), and the timers behind it move.
//!
//! No timer moves before it is due by the database's clock in the engine's zone. While the configured
//! zone seems to be wrong, none moves before it is due in every zone ([`zone`](crate::zone)).

use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use jobwire_core::store::MovedTimers;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row};
use tokio::time::Instant;

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

/// True if no job of the timer's instance is locked.
macro_rules! no_locked_job {
    () => {
        "NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = t.process_instance_id_ AND s.lock_exp_time_ IS NOT NULL)"
    };
}

/// True if the timer `t` is not set aside (`$aside`), and is one of those to move: `$only` is NULL for
/// all.
macro_rules! chosen {
    ($aside:literal, $only:literal) => {
        concat!(
            "t.id_ <> ALL(",
            $aside,
            "::text[]) AND (",
            $only,
            "::text[] IS NULL OR t.id_ = ANY(",
            $only,
            "))"
        )
    };
}

/// Locks the rows of the instances that have timers to move. `$1`: the zone of due dates, `$2`:
/// maximum number of timers, `$3`: timers that are set aside, `$4`: the only timers to move, or NULL.
pub(super) const HOLD: &str = concat!(
    "
SELECT e.id_ FROM act_ru_execution e WHERE e.id_ IN (
    SELECT t.process_instance_id_ FROM act_ru_timer_job t
    WHERE ",
    movable!(),
    " AND ",
    chosen!("$3", "$4"),
    " AND ",
    no_locked_job!(),
    "
    ORDER BY t.duedate_, t.id_ LIMIT $2)
ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED"
);

/// True if no job of the timer's instance is locked. With the endpoint, `$6`: the instances whose
/// rows the transaction has locked.
pub(super) const NO_JOB_RUNS: &str = concat!(
    "(t.process_instance_id_ IS NULL OR (t.process_instance_id_ = ANY($6::text[])
        AND ",
    no_locked_job!(),
    "))"
);

/// True if no job of the timer's instance was locked when the statement began.
pub(super) const NO_JOB_RAN: &str = no_locked_job!();

/// Selects the ids of the timers of a page. `$1`: the zone of due dates, `$2`: maximum number, `$3`:
/// timers that are set aside.
pub(super) const DUE_IDS: &str = concat!(
    "
SELECT t.id_ FROM act_ru_timer_job t
WHERE ",
    movable!(),
    " AND t.id_ <> ALL($3::text[]) AND {no job ran}
ORDER BY t.duedate_, t.id_ LIMIT $2 FOR UPDATE SKIP LOCKED"
);

/// Moves due timers. `$1`: the zone of due dates, `$2`: maximum number, `$3`: the zone, `$4`: timers
/// that are set aside, `$5`: the only timers to move, or NULL. Also returns the timers with the id of an
/// executable job, which stay.
///
/// The counts stay in their range: a wrong one delays no timer.
pub(super) const MOVE: &str = concat!(
    "
WITH due AS MATERIALIZED (
    SELECT t.* FROM act_ru_timer_job t
    WHERE $3::text IS NOT NULL AND ",
    movable!(),
    " AND ",
    chosen!("$4", "$5"),
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
), moved AS (
    INSERT INTO act_ru_job ({columns}) SELECT {values}
    FROM movable
    ON CONFLICT DO NOTHING
    RETURNING id_, execution_id_
), gone AS (
    DELETE FROM act_ru_timer_job t USING moved m WHERE t.id_ = m.id_
), counted AS (
    UPDATE act_ru_execution e SET rev_ = e.rev_ % 2147483647 + 1,
        timer_job_count_ = greatest(coalesce(e.timer_job_count_, 0)::bigint - m.timers, 0)::integer,
        job_count_ = least(coalesce(e.job_count_, 0)::bigint + m.timers, 2147483647)::integer
    FROM (SELECT execution_id_, count(*) AS timers FROM moved GROUP BY execution_id_) m
    WHERE e.id_ = m.execution_id_ AND e.is_count_enabled_
)
SELECT d.id_, d.process_instance_id_, d.handler_type_, m.id_ IS NOT NULL AS is_moved
FROM movable d LEFT JOIN moved m ON m.id_ = d.id_"
);

/// Selects the next due date after now, whether a due timer is left, and the local time. `$1`: the
/// zone of due dates, `$2`: timers that are set aside.
pub(super) const NEXT_DUE: &str = concat!(
    "
SELECT statement_timestamp(),
    (SELECT min(duedate_) AT TIME ZONE $1 FROM act_ru_timer_job t WHERE t.duedate_ > statement_timestamp() AT TIME ZONE $1 AND t.duedate_ < '9999-01-01' AND ",
    unlocked!("t"),
    "),
    EXISTS (SELECT FROM act_ru_timer_job t WHERE t.duedate_ <= statement_timestamp() AT TIME ZONE $1 AND ",
    unlocked!("t"),
    " AND t.id_ <> ALL($2::text[]) AND (",
    of_processes!("t"),
    ")),
    statement_timestamp() AT TIME ZONE $1"
);

/// The time after which the rest of a page that is moved in halves is left to the next move.
const LONGEST: Duration = Duration::from_secs(2);

/// The timers of a move.
#[derive(Default)]
struct Moving {
    /// A row for each timer that was moved, or that has the id of an executable job.
    rows: Vec<PgRow>,
    /// Whether timers may be left that could be moved at once.
    is_cut: bool,
}

impl Act {
    /// Moves due timers, at most `at_most`.
    pub(super) async fn move_due_timers(
        &self,
        pool: &PgPool,
        at_most: i64,
    ) -> Result<MovedTimers, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let moving = match self.move_page(pool, at_most, None).await {
            Err(error) if error.is_row_fault() => self.move_in_halves(pool, at_most).await?,
            page => page?,
        };
        let mut moved = MovedTimers::default();
        for row in &moving.rows {
            if row.try_get("is_moved")? {
                moved.ready.extend(self.decoder.ready_row(row)?);
            } else {
                let timer: String = row.try_get("id_")?;
                tracing::warn!(
                    %timer,
                    "an executable job has the id of this due timer, so it stays; trying again in a minute"
                );
                self.aside.put(timer);
            }
        }
        let row = sqlx::query(self.sql.next_due)
            .bind(self.zone.judged())
            .bind(self.aside.ids())
            .fetch_one(pool)
            .await?;
        moved.now = row.try_get(0)?;
        self.offset.read(row.try_get(3)?, moved.now);
        let next: Option<DateTime<Utc>> = row.try_get(1)?;
        let again = self.aside.wait().map(|wait| moved.now + wait);
        let next = next.into_iter().chain(again).min();
        let is_due: bool = row.try_get(2)?;
        moved.next_due = match (is_due, moving.is_cut) {
            // A full page: the rest moves at once.
            (true, true) => Some(moved.now),
            (true, false) => next.into_iter().chain([moved.now + HELD]).min(),
            (false, _) => next,
        };
        Ok(moved)
    }

    /// Moves a page of due timers in one transaction: the first ones, or only these.
    async fn move_page(
        &self,
        pool: &PgPool,
        at_most: i64,
        only: Option<&[String]>,
    ) -> Result<Moving, StoreError> {
        let mut tx = pool.begin().await?;
        match self.move_within(&mut tx, at_most, only).await {
            Ok(rows) => {
                tx.commit().await?;
                let is_cut = i64::try_from(rows.len()).is_ok_and(|count| count >= at_most);
                Ok(Moving { rows, is_cut })
            }
            Err(error) => {
                // Until the end of this transaction, the next one would pass over its locked rows.
                tx.rollback().await?;
                Err(error)
            }
        }
    }

    async fn move_within(
        &self,
        connection: &mut PgConnection,
        at_most: i64,
        only: Option<&[String]>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let (zone, aside) = (self.zone.judged(), self.aside.ids());
        let mut moving = sqlx::query(self.sql.move_due)
            .bind(zone)
            .bind(at_most)
            .bind(self.zone.name())
            .bind(&aside)
            .bind(only);
        if self.instances_of == InstanceLock::OfEngine {
            let held: Vec<String> = sqlx::query_scalar(self.sql.hold)
                .bind(zone)
                .bind(at_most)
                .bind(&aside)
                .bind(only)
                .fetch_all(&mut *connection)
                .await?;
            moving = moving.bind(held);
        }
        Ok(moving.fetch_all(connection).await?)
    }

    /// Moves a page that the database refused in halves, and sets the refused timers aside.
    async fn move_in_halves(&self, pool: &PgPool, at_most: i64) -> Result<Moving, StoreError> {
        let page: Vec<String> = sqlx::query_scalar(self.sql.due_ids)
            .bind(self.zone.judged())
            .bind(at_most)
            .bind(self.aside.ids())
            .fetch_all(pool)
            .await?;
        let mut moved = Moving {
            is_cut: i64::try_from(page.len()).is_ok_and(|count| count >= at_most),
            ..Moving::default()
        };
        let began = Instant::now();
        let mut parts = vec![page];
        while let Some(mut part) = parts.pop() {
            if began.elapsed() >= LONGEST {
                moved.is_cut = true;
                break;
            }
            match self.move_page(pool, at_most, Some(&part)).await {
                Ok(page) => moved.rows.extend(page.rows),
                Err(error) if error.is_row_fault() => {
                    if part.len() > 1 {
                        parts.push(part.split_off(part.len() / 2));
                        parts.push(part);
                    } else if let Some(timer) = part.pop() {
                        tracing::warn!(
                            %timer,
                            %error,
                            "the database refuses to make this due timer executable; trying again in a minute"
                        );
                        self.aside.put(timer);
                    }
                }
                // The timers that were moved need their hints.
                Err(error) if !moved.rows.is_empty() => {
                    tracing::warn!(%error, "could not move all due timers; trying again");
                    moved.is_cut = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }
}
