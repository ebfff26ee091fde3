//! Operators' actions.

use std::collections::BTreeSet;

use sqlx::{Row, SqliteConnection};

use super::event_stream::{self, Cause};
use super::sql::{moved_columns, ready_columns, unlocked};
use super::{SqliteStore, decode, exclusive, unique};
use crate::hint::Ready;
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::statements::Operating;
use crate::store::{Operated, OperatedJobs};

/// Marks the lease of a running job as cancelled. Its node reads the mark with the next renewal, and
/// each statement that ends the lease otherwise reads it as well.
const MARK_CANCELLED: &str = "
UPDATE job_lease SET cancelled_at = coalesce(cancelled_at, ?2) WHERE job_id = ?1 AND owner IS NOT NULL";

/// Selects the jobs that are locked.
const RUNNING: &str = concat!(
    "SELECT j.id FROM job j WHERE j.id IN (SELECT value FROM json_each(?1)) AND NOT ",
    unlocked!("j")
);

macro_rules! delete_these {
    ($table:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE id IN (SELECT value FROM json_each(?1)) RETURNING id, exclusive, process_instance"
        )
    };
}

const DELETE_MANY: [&str; 4] = [
    delete_these!("job"),
    delete_these!("timer_job"),
    delete_these!("suspended_job"),
    delete_these!("dead_letter_job"),
];
/// Deletes the leases and the stacks of these jobs.
const DELETE_THEIR: [&str; 3] = [
    "DELETE FROM job_lease WHERE job_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM job_exception WHERE job_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM job_progress WHERE job_id IN (SELECT value FROM json_each(?1))",
];

/// Computes the number of used attempts when `?2` are left. So a revival changes the attempts that
/// are left and not their total: the next occurrence of a repeating job has the same total, unless
/// the operator gives more.
macro_rules! used_attempts {
    () => {
        "min(max(retries + failures - ?2, 0), 1000000000)"
    };
}

macro_rules! revive_from {
    ($table:literal) => {
        concat!(
            "
INSERT INTO job (",
            moved_columns!(),
            ")
SELECT id, seq, min(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
    category, deployment, priority, exclusive, ?2, ",
            used_attempts!(),
            ", retry_policy, due_at, repeat, repeat_until,
    correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, ?3,
    min(hints, 999999999) + 1, lane_named
FROM ",
            $table,
            " WHERE id = ?1 RETURNING ",
            ready_columns!()
        )
    };
}

/// Moves a job from its table to the executable table and restores its attempts.
const REVIVE: [(&str, &str); 3] = [
    (
        revive_from!("timer_job"),
        "DELETE FROM timer_job WHERE id = ?1",
    ),
    (
        revive_from!("suspended_job"),
        "DELETE FROM suspended_job WHERE id = ?1",
    ),
    (
        revive_from!("dead_letter_job"),
        "DELETE FROM dead_letter_job WHERE id = ?1",
    ),
];
/// Hints again a job that is already executable.
const AGAIN: &str = concat!(
    "
UPDATE job AS j SET retries = ?2, failures = ",
    used_attempts!(),
    ", revision = min(revision, 999999999) + 1, hints = min(hints, 999999999) + 1, ready_at = ?3
WHERE j.id = ?1 AND ",
    unlocked!("j"),
    " RETURNING ",
    ready_columns!()
);
const EXISTS: &str = "SELECT EXISTS (SELECT 1 FROM job WHERE id = ?1)";
const EXISTS_ANYWHERE: &str = "
SELECT EXISTS (SELECT 1 FROM job WHERE id = ?1) OR EXISTS (SELECT 1 FROM timer_job WHERE id = ?1)
    OR EXISTS (SELECT 1 FROM suspended_job WHERE id = ?1)
    OR EXISTS (SELECT 1 FROM dead_letter_job WHERE id = ?1)";

const IS_STRICT: &str = "SELECT EXISTS (SELECT 1 FROM strict_order)";
const MAKE_STRICT: &str =
    "INSERT INTO strict_order (only_row, since) VALUES (1, ?1) ON CONFLICT DO NOTHING";
const RELAX: &str = "DELETE FROM strict_order";

impl Operating for SqliteStore {
    async fn write_strict_order(&self, strict: bool) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        let query = if strict {
            sqlx::query(MAKE_STRICT).bind(decode::now_micros())
        } else {
            sqlx::query(RELAX)
        };
        query.execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    async fn delete_jobs(&self, ids: &[JobId]) -> Result<OperatedJobs, StoreError> {
        let mut tx = self.write().await?;
        let deleted = delete_many(&mut tx, ids).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    async fn mark_cancelled(&self, id: JobId) -> Result<bool, StoreError> {
        let mut tx = self.write().await?;
        let marked = mark_cancelled(&mut tx, id).await?;
        tx.commit().await?;
        Ok(marked)
    }

    async fn retry_jobs(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs, StoreError> {
        let mut tx = self.write().await?;
        let retried = retry(&mut tx, ids, retries).await?;
        tx.commit().await?;
        Ok(retried)
    }

    async fn is_strict(&self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(IS_STRICT)
            .fetch_one(&self.readers)
            .await?)
    }
}

/// Deletes the jobs that are not running.
pub(super) async fn delete_many(
    connection: &mut SqliteConnection,
    ids: &[JobId],
) -> Result<OperatedJobs, StoreError> {
    let running = sqlx::query(RUNNING)
        .bind(decode::array(ids)?)
        .fetch_all(&mut *connection)
        .await?;
    let running: BTreeSet<JobId> = decode::job_ids(&running)?.into_iter().collect();
    let mut asked: BTreeSet<JobId> = ids.iter().copied().collect();
    asked.retain(|id| !running.contains(id));
    let these = decode::array(&asked)?;
    let mut deleted = OperatedJobs::default();
    let mut left = BTreeSet::new();
    for statement in DELETE_MANY {
        let gone = sqlx::query(statement)
            .bind(&these)
            .fetch_all(&mut *connection)
            .await?;
        for (id, gone) in decode::job_ids(&gone)?.into_iter().zip(&gone) {
            if asked.remove(&id) {
                deleted.operated.push((id, Operated::Done));
            }
            if gone.try_get::<bool, _>(1)? {
                left.extend(decode::instance(gone, 2));
            }
        }
    }
    for statement in DELETE_THEIR {
        sqlx::query(statement)
            .bind(&these)
            .execute(&mut *connection)
            .await?;
    }
    if !left.is_empty() {
        deleted.ready = exclusive::next(connection, &Vec::from_iter(left)).await?;
    }
    let others = |ids: BTreeSet<JobId>, why| ids.into_iter().map(move |id| (id, why));
    deleted.operated.extend(others(asked, Operated::NotFound));
    deleted.operated.extend(others(running, Operated::Running));
    Ok(deleted)
}

/// Marks a running job as cancelled. Returns false if no node runs the job.
pub(super) async fn mark_cancelled(
    connection: &mut SqliteConnection,
    id: JobId,
) -> Result<bool, StoreError> {
    let marked = sqlx::query(MARK_CANCELLED)
        .bind(id.to_string())
        .bind(decode::now_micros())
        .execute(connection)
        .await?;
    Ok(marked.rows_affected() == 1)
}

/// Makes the jobs executable.
pub(super) async fn retry(
    connection: &mut SqliteConnection,
    ids: &[JobId],
    retries: i32,
) -> Result<OperatedJobs, StoreError> {
    let now = decode::now_micros();
    let mut retried = OperatedJobs::default();
    event_stream::begin_cause(connection, Cause::Retried).await?;
    for id in ids {
        let (operated, hinted) = retry_one(connection, *id, retries, now).await?;
        retried.operated.push((*id, operated));
        retried.ready.extend(hinted);
    }
    event_stream::end_cause(connection).await?;
    Ok(retried)
}

/// Returns whether the job exists, in any state.
pub(super) async fn exists(
    connection: &mut SqliteConnection,
    id: JobId,
) -> Result<bool, StoreError> {
    let found = sqlx::query_scalar(EXISTS_ANYWHERE).bind(id.to_string());
    Ok(found.fetch_one(connection).await?)
}

async fn retry_one(
    connection: &mut SqliteConnection,
    id: JobId,
    retries: i32,
    now: i64,
) -> Result<(Operated, Option<Ready>), StoreError> {
    // The executable table comes first: a revived job is in it and must not be counted twice.
    let statements =
        std::iter::once((AGAIN, None)).chain(REVIVE.map(|(insert, delete)| (insert, Some(delete))));
    for (statement, delete) in statements {
        let found = sqlx::query(statement)
            .bind(id.to_string())
            .bind(retries)
            .bind(now)
            .fetch_optional(&mut *connection)
            .await?;
        let Some(found) = found else { continue };
        if let Some(delete) = delete {
            let query = sqlx::query(delete).bind(id.to_string());
            if let Err(error) = query.execute(&mut *connection).await {
                return Err(unique::refused_revival(connection, id, error.into()).await);
            }
        }
        return Ok((Operated::Done, Some(decode::ready(&found)?)));
    }
    let exists: bool = sqlx::query_scalar(EXISTS)
        .bind(id.to_string())
        .fetch_one(&mut *connection)
        .await?;
    let why = if exists {
        Operated::Running
    } else {
        Operated::NotFound
    };
    Ok((why, None))
}
