//! Suspension and activation (protocol rule 27).

use super::sql::{in_scope, moved_columns, ready_columns, suspended, unlocked};
use super::{SqliteStore, decode, exclusive};
use crate::hint::Ready;
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::statements::Suspending;
use crate::store::{Suspended, SuspensionScope};

const NOTE: &str = "
INSERT INTO suspension (scope, value, since) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

macro_rules! put_aside {
    ($where:literal) => {
        [
            concat!(
                "INSERT INTO suspended_job (",
                moved_columns!(),
                ") SELECT ",
                moved_columns!(),
                " FROM job j WHERE ",
                in_scope!("j"),
                $where,
                " AND ",
                unlocked!("j")
            ),
            // Removes the leases without an owner.
            concat!(
                "DELETE FROM job_lease WHERE job_id IN (SELECT j.id FROM job j WHERE ",
                in_scope!("j"),
                $where,
                " AND ",
                unlocked!("j"),
                ")"
            ),
            concat!(
                "DELETE FROM job AS j WHERE ",
                in_scope!("j"),
                $where,
                " AND ",
                unlocked!("j")
            ),
            concat!(
                "INSERT INTO suspended_job (",
                moved_columns!(),
                ") SELECT ",
                moved_columns!(),
                " FROM timer_job j WHERE ",
                in_scope!("j"),
                $where
            ),
            concat!("DELETE FROM timer_job AS j WHERE ", in_scope!("j"), $where),
        ]
    };
}

/// Moves jobs to the suspended table. Locked jobs continue, and are suspended when they fail.
const PUT_ASIDE: [&str; 5] = put_aside!("");
/// Like [`PUT_ASIDE`], for given jobs, in the search for a refused row.
const PUT_THESE_ASIDE: [&str; 5] = put_aside!(" AND j.id IN (SELECT value FROM json_each(?4))");

macro_rules! left {
    ($where:literal) => {
        concat!(
            "SELECT DISTINCT j.process_instance FROM job j WHERE j.exclusive AND j.process_instance IS NOT NULL AND ",
            in_scope!("j"),
            $where,
            " AND ",
            unlocked!("j")
        )
    };
}

/// Selects the instances of the exclusive jobs to be suspended.
const LEFT: &str = left!("");
const LEFT_BY_THESE: &str = left!(" AND j.id IN (SELECT value FROM json_each(?4))");

/// Selects the jobs that a suspension moves.
const SUSPENDABLE: &str = concat!(
    "SELECT j.id FROM job j WHERE ",
    in_scope!("j"),
    " AND ",
    unlocked!("j"),
    " UNION ALL SELECT j.id FROM timer_job j WHERE ",
    in_scope!("j"),
    " ORDER BY 1"
);

const FORGET: &str = "DELETE FROM suspension WHERE scope = ?1 AND value = ?2";
const LIFT: &str = "DELETE FROM suspension WHERE scope = ?1 AND value = ?2 RETURNING since";

/// Hints again the jobs in the executable table that were refused during the suspension.
const WAITED: &str = concat!(
    "UPDATE job AS j SET ready_at = ?3, hints = min(hints, 999999999) + 1 WHERE ",
    in_scope!("j"),
    " AND ",
    unlocked!("j"),
    " RETURNING ",
    ready_columns!(),
    ", seq"
);

/// True if the job is in the scope and no other suspension covers it.
macro_rules! back {
    ($where:literal) => {
        concat!(in_scope!("j"), $where, " AND NOT ", suspended!("j"))
    };
}

macro_rules! back_to_timers {
    ($where:literal) => {
        concat!(
            "INSERT INTO timer_job (",
            moved_columns!(),
            ") SELECT ",
            moved_columns!(),
            " FROM suspended_job j WHERE j.due_at > ?3 AND ",
            back!($where)
        )
    };
}
macro_rules! back_to_jobs {
    ($where:literal) => {
        concat!(
    "
INSERT INTO job (",
    moved_columns!(),
    ")
SELECT id, seq, min(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
    category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
    correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, ?3, min(hints, 999999999) + 1
FROM suspended_job j WHERE coalesce(j.due_at, 0) <= ?3 AND ",
    back!($where),
    " RETURNING ",
    ready_columns!(),
    ", seq"
        )
    };
}
macro_rules! not_aside {
    ($where:literal) => {
        concat!("DELETE FROM suspended_job AS j WHERE ", back!($where))
    };
}

const BRING_BACK: [&str; 3] = [back_to_timers!(""), back_to_jobs!(""), not_aside!("")];

/// Like [`BRING_BACK`], for given jobs, in the search for a refused row.
const BRING_THESE_BACK: [&str; 3] = [
    back_to_timers!(" AND j.id IN (SELECT value FROM json_each(?4))"),
    back_to_jobs!(" AND j.id IN (SELECT value FROM json_each(?4))"),
    not_aside!(" AND j.id IN (SELECT value FROM json_each(?4))"),
];

const ASIDE: &str = concat!(
    "SELECT j.id FROM suspended_job j WHERE ",
    in_scope!("j"),
    " ORDER BY j.id"
);

impl Suspending for SqliteStore {
    /// Records the suspension, and returns the jobs that it moves. From then on no node locks one
    /// of these jobs, even if its row is not moved.
    async fn suspendable(&self, scope: &SuspensionScope) -> Result<Vec<JobId>, StoreError> {
        let (kind, value) = scope.parts();
        let mut tx = self.write().await?;
        sqlx::query(NOTE)
            .bind(kind)
            .bind(value)
            .bind(decode::now_micros())
            .execute(&mut *tx)
            .await?;
        let query = sqlx::query(SUSPENDABLE).bind(kind).bind(value);
        let rows = query.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        decode::job_ids(&rows)
    }

    /// Moves the jobs in the scope to the suspended table, or only `these`, if given.
    async fn suspend_scope(
        &self,
        scope: &SuspensionScope,
        these: Option<&[JobId]>,
    ) -> Result<Suspended, StoreError> {
        let (kind, value) = scope.parts();
        let (left, put_aside) = match these {
            Some(_) => (LEFT_BY_THESE, PUT_THESE_ASIDE),
            None => (LEFT, PUT_ASIDE),
        };
        let these = decode::array(these.unwrap_or_default())?;
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let left: Vec<String> = sqlx::query_scalar(left)
            .bind(kind)
            .bind(value)
            .bind(now)
            .bind(&these)
            .fetch_all(&mut *tx)
            .await?;
        let mut moved = 0;
        for statement in std::iter::once(NOTE).chain(put_aside) {
            let result = sqlx::query(statement)
                .bind(kind)
                .bind(value)
                .bind(now)
                .bind(&these)
                .execute(&mut *tx)
                .await?;
            if statement.starts_with("INSERT INTO suspended_job") {
                moved += result.rows_affected();
            }
        }
        let ready = exclusive::next(&mut tx, &left).await?;
        tx.commit().await?;
        Ok(Suspended {
            moved,
            ready,
            refused: Vec::new(),
        })
    }

    /// Returns the jobs that a suspension moved.
    async fn put_aside(&self, scope: &SuspensionScope) -> Result<Vec<JobId>, StoreError> {
        let (kind, value) = scope.parts();
        let query = sqlx::query(ASIDE).bind(kind).bind(value);
        decode::job_ids(&query.fetch_all(&self.readers).await?)
    }

    /// Brings these jobs back. The suspension itself continues.
    async fn bring_back(
        &self,
        scope: &SuspensionScope,
        these: &[JobId],
    ) -> Result<Vec<Ready>, StoreError> {
        let (kind, value) = scope.parts();
        let these = decode::array(these)?;
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        // Deleted only while the statements run, because they skip every job that a suspension
        // covers.
        let since: Option<i64> = sqlx::query_scalar(LIFT)
            .bind(kind)
            .bind(value)
            .fetch_optional(&mut *tx)
            .await?;
        let mut ready = Vec::new();
        for statement in BRING_THESE_BACK {
            let rows = sqlx::query(statement)
                .bind(kind)
                .bind(value)
                .bind(now)
                .bind(&these)
                .fetch_all(&mut *tx)
                .await?;
            ready.extend(decode::ready_in_order(&rows)?);
        }
        sqlx::query(NOTE)
            .bind(kind)
            .bind(value)
            .bind(since.unwrap_or(now))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(ready)
    }

    /// Returns the jobs that are executable after the end of a suspension, to be hinted.
    async fn waited(&self, scope: &SuspensionScope, _: &[Ready]) -> Result<Vec<Ready>, StoreError> {
        let (kind, value) = scope.parts();
        let mut tx = self.write().await?;
        let rows = sqlx::query(WAITED)
            .bind(kind)
            .bind(value)
            .bind(decode::now_micros())
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        decode::ready_in_order(&rows)
    }

    /// Ends the suspension and returns its jobs to the tables they came from. Returns `None` if
    /// there was no such suspension.
    async fn end_suspension(
        &self,
        scope: &SuspensionScope,
    ) -> Result<Option<Vec<Ready>>, StoreError> {
        let (kind, value) = scope.parts();
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let gone = sqlx::query(FORGET)
            .bind(kind)
            .bind(value)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        if gone == 0 {
            return Ok(None);
        }
        let mut ready = Vec::new();
        for statement in BRING_BACK {
            let rows = sqlx::query(statement)
                .bind(kind)
                .bind(value)
                .bind(now)
                .fetch_all(&mut *tx)
                .await?;
            ready.extend(decode::ready_in_order(&rows)?);
        }
        tx.commit().await?;
        Ok(Some(ready))
    }
}
