//! Operators' actions.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::Instant;
use uuid::Uuid;

use super::begin::begin;
use super::change_statements::{ENTER, STILL};
use super::connection_pool::ConnectionPool;
use super::sql::{moved_columns, ready_columns, unlocked};
use super::{PgStore, decode, exclusive};
use crate::job::{JobId, JobState};
use crate::store::error::StoreError;
use crate::store::statements::Operating;
use crate::store::{Operated, OperatedJobs};

const IS_STRICT: &str = "SELECT EXISTS (SELECT FROM jobwire.strict_order)";
const MAKE_STRICT: &str = "INSERT INTO jobwire.strict_order DEFAULT VALUES ON CONFLICT DO NOTHING";
const RELAX: &str = "DELETE FROM jobwire.strict_order";

/// Marks the lease of a running job as cancelled. Its node reads the mark with the next renewal, and
/// each statement that ends the lease otherwise reads it as well.
const MARK_CANCELLED: &str = "
UPDATE jobwire.job_lease SET cancelled_at = coalesce(cancelled_at, clock_timestamp())
WHERE job_id = $1 AND owner IS NOT NULL";

/// Selects the asked rows of a table that no other transaction has locked, and locks them.
macro_rules! free_rows {
    ($table:literal) => {
        concat!(
            "SELECT id FROM jobwire.",
            $table,
            " WHERE id = ANY($1) FOR UPDATE SKIP LOCKED"
        )
    };
}

const DELETE_MANY: &str = concat!(
    "
WITH executable AS (DELETE FROM jobwire.job j WHERE j.id = ANY($2) AND ",
    unlocked!("j"),
    " RETURNING j.id, j.exclusive, j.process_instance),
     timer AS (DELETE FROM jobwire.timer_job WHERE id IN (", free_rows!("timer_job"), ") RETURNING id, exclusive, process_instance),
     suspended AS (DELETE FROM jobwire.suspended_job WHERE id IN (", free_rows!("suspended_job"), ") RETURNING id, exclusive, process_instance),
     letter AS (DELETE FROM jobwire.dead_letter_job WHERE id IN (", free_rows!("dead_letter_job"), ") RETURNING id, exclusive, process_instance),
     gone AS (SELECT * FROM executable UNION ALL SELECT * FROM timer UNION ALL SELECT * FROM suspended
              UNION ALL SELECT * FROM letter),
     lease AS (DELETE FROM jobwire.job_lease l USING gone WHERE l.job_id = gone.id),
     stack AS (DELETE FROM jobwire.job_exception x USING gone WHERE x.job_id = gone.id),
     progress AS (DELETE FROM jobwire.job_progress p USING gone WHERE p.job_id = gone.id)
SELECT id, CASE WHEN exclusive THEN process_instance END FROM gone"
);

/// Deletes those of the jobs that no node runs and whose rows are free, and leaves in `asked` those
/// whose rows are locked. Adds the instances that the jobs have left.
pub(super) async fn delete_free(
    connection: &mut PgConnection,
    asked: &mut Vec<Uuid>,
    deleted: &mut OperatedJobs,
    left: &mut Vec<String>,
) -> Result<(), StoreError> {
    let entered: Vec<Uuid> = sqlx::query_scalar(ENTER)
        .bind(&*asked)
        .fetch_all(&mut *connection)
        .await?;
    let gone: Vec<(Uuid, Option<String>)> = sqlx::query_as(DELETE_MANY)
        .bind(&*asked)
        .bind(&entered)
        .fetch_all(&mut *connection)
        .await?;
    let is_gone: HashSet<Uuid> = gone.iter().map(|(id, _)| *id).collect();
    asked.retain(|id| !is_gone.contains(id));
    for (id, instance) in gone {
        deleted.operated.push((JobId(id), Operated::Done));
        left.extend(instance);
    }
    refuse(connection, asked, deleted).await
}

/// Deletes the jobs that no node runs. Rows that other transactions lock delay no other job; they are
/// tried again for [`ROWS_WITHIN`].
async fn delete(pool: &ConnectionPool, ids: &[JobId]) -> Result<OperatedJobs, StoreError> {
    let (mut asked, mut deleted) = (sorted(ids), OperatedJobs::default());
    let until = Instant::now() + ROWS_WITHIN;
    while !asked.is_empty() {
        let round = delete_round(pool, &mut asked, &mut deleted).await;
        after_round(round, until, &mut asked, &mut deleted).await?;
    }
    Ok(deleted)
}

/// Deletes those of the jobs that no node runs and whose rows are free in one transaction, and leaves
/// in `asked` those whose rows are locked.
async fn delete_round(
    pool: &ConnectionPool,
    asked: &mut Vec<Uuid>,
    deleted: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let (mut rest, mut round, mut left) = (asked.clone(), OperatedJobs::default(), Vec::new());
    let mut tx = begin(pool).await?;
    delete_free(&mut tx, &mut rest, &mut round, &mut left).await?;
    tx.commit().await?;
    left.sort_unstable();
    left.dedup();
    deleted.operated.extend(round.operated);
    let next = exclusive::next_since(pool, &left).await;
    deleted.ready.extend(next);
    *asked = rest;
    Ok(())
}

/// Returns the ids in their order, each once.
pub(super) fn sorted(ids: &[JobId]) -> Vec<Uuid> {
    let mut ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The number of used attempts when `$2` are left. A retry changes the number of attempts left and
/// not their total, so the next occurrence of a repeating job has the same total, unless more are
/// given.
macro_rules! used_attempts {
    () => {
        "least(greatest(retries::bigint + failures - $2, 0), 1000000000)::integer"
    };
}

/// Moves jobs from any other table into the executable table, with their attempts restored. A job
/// that is executable already is hinted again, if its row is entered (`$3`). The comment is for the event
/// stream.
const RETRY: &str = concat!(
    "/* jobwire: retried */
WITH timer AS (DELETE FROM jobwire.timer_job WHERE id IN (", free_rows!("timer_job"), ") RETURNING *),
     suspended AS (DELETE FROM jobwire.suspended_job WHERE id IN (", free_rows!("suspended_job"), ") RETURNING *),
     letter AS (DELETE FROM jobwire.dead_letter_job WHERE id IN (", free_rows!("dead_letter_job"), ") RETURNING *),
     source AS (SELECT ",
    moved_columns!(),
    " FROM timer UNION ALL SELECT ",
    moved_columns!(),
    " FROM suspended UNION ALL SELECT ",
    moved_columns!(),
    " FROM letter),
     moved AS (
    INSERT INTO jobwire.job (",
    moved_columns!(),
    ")
    SELECT id, seq, least(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
        category, deployment, priority, exclusive, $2, ",
    used_attempts!(),
    ", retry_policy, due_at, repeat, repeat_until,
        correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, clock_timestamp(),
        least(hints, 999999999) + 1, lane_named
    FROM source
    RETURNING id, lane, exclusive, process_instance, trace_parent, type
), again AS (
    UPDATE jobwire.job j SET retries = $2, failures = ",
    used_attempts!(),
    ", revision = least(revision, 999999999) + 1, hints = least(hints, 999999999) + 1, ready_at = clock_timestamp()
    WHERE j.id = ANY($3) AND ",
    unlocked!("j"),
    "
    RETURNING j.id, j.lane, j.exclusive, j.process_instance, j.trace_parent, j.type
)
SELECT ",
    ready_columns!("m"),
    " FROM moved m UNION ALL SELECT ",
    ready_columns!("a"),
    " FROM again a"
);

/// Returns the states of those of the jobs that exist, and whether a lock or a suspension keeps them
/// from a change.
pub(super) async fn still(
    connection: &mut PgConnection,
    jobs: &[Uuid],
) -> Result<HashMap<Uuid, (JobState, bool)>, StoreError> {
    let rows: Vec<(Uuid, String, bool)> = sqlx::query_as(STILL)
        .bind(jobs)
        .fetch_all(connection)
        .await?;
    let still = rows.into_iter().filter_map(|(id, state, kept)| {
        let state = JobState::parse(&state)?;
        Some((id, (state, kept)))
    });
    Ok(still.collect())
}

/// Names the jobs that don't exist or that a node runs. Leaves those in `asked` whose rows are locked.
async fn refuse(
    connection: &mut PgConnection,
    asked: &mut Vec<Uuid>,
    named: &mut OperatedJobs,
) -> Result<(), StoreError> {
    if asked.is_empty() {
        return Ok(());
    }
    let still = still(connection, asked).await?;
    asked.retain(|id| {
        let why = match still.get(id) {
            None => Operated::NotFound,
            Some((JobState::Executable, true)) => Operated::Running,
            Some(_) => return true,
        };
        named.operated.push((JobId(*id), why));
        false
    });
    Ok(())
}

/// The time for which an operation waits for locked rows, and the pause between two attempts.
pub(super) const ROWS_WITHIN: Duration = Duration::from_secs(2);
pub(super) const ROWS_AGAIN: Duration = Duration::from_millis(50);

/// Waits for the next round of an operation if rows are locked. After [`ROWS_WITHIN`] it refuses those
/// jobs, and leaves none in `asked`. It does so, too, after an error, if jobs are changed already: they
/// need their hints.
pub(super) async fn after_round(
    round: Result<(), StoreError>,
    until: Instant,
    asked: &mut Vec<Uuid>,
    acted: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let why = match round {
        Err(error) if acted.operated.is_empty() => return Err(error),
        Err(error) => error.to_string(),
        Ok(()) if asked.is_empty() => return Ok(()),
        Ok(()) if Instant::now() < until => {
            tokio::time::sleep(ROWS_AGAIN).await;
            return Ok(());
        }
        Ok(()) => LOCKED.to_owned(),
    };
    let refused = asked.drain(..).map(|id| (JobId(id), why.clone()));
    acted.refused.extend(refused);
    Ok(())
}

/// Makes the jobs executable. Rows that other transactions lock delay no other job; they are tried
/// again for [`ROWS_WITHIN`].
async fn retry(
    pool: &ConnectionPool,
    ids: &[JobId],
    retries: i32,
) -> Result<OperatedJobs, StoreError> {
    let (mut asked, mut retried) = (sorted(ids), OperatedJobs::default());
    let until = Instant::now() + ROWS_WITHIN;
    while !asked.is_empty() {
        let round = retry_round(pool, &mut asked, retries, &mut retried).await;
        after_round(round, until, &mut asked, &mut retried).await?;
    }
    Ok(retried)
}

/// Makes those of the jobs executable whose rows are free, in one transaction, and leaves the locked ones
/// in `asked`.
async fn retry_round(
    pool: &ConnectionPool,
    asked: &mut Vec<Uuid>,
    retries: i32,
    retried: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let (mut rest, mut round) = (asked.clone(), OperatedJobs::default());
    let mut tx = begin(pool).await?;
    retry_free(&mut tx, &mut rest, retries, &mut round).await?;
    tx.commit().await?;
    retried.operated.extend(round.operated);
    retried.ready.extend(round.ready);
    *asked = rest;
    Ok(())
}

const LOCKED: &str = "another transaction locks the row of this job; end it, or try again";

/// Makes those of the jobs executable whose rows are free, and leaves the locked ones in `asked`.
pub(super) async fn retry_free(
    connection: &mut PgConnection,
    asked: &mut Vec<Uuid>,
    retries: i32,
    retried: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let entered: Vec<Uuid> = sqlx::query_scalar(ENTER)
        .bind(&*asked)
        .fetch_all(&mut *connection)
        .await?;
    let rows = sqlx::query(RETRY)
        .bind(&*asked)
        .bind(retries)
        .bind(&entered)
        .fetch_all(&mut *connection)
        .await?;
    let ready = decode::all_ready(&rows)?;
    let done: HashSet<Uuid> = ready.iter().map(|ready| ready.hint.id.0).collect();
    let operated = ready.iter().map(|ready| (ready.hint.id, Operated::Done));
    retried.operated.extend(operated);
    retried.ready.extend(ready);
    asked.retain(|id| !done.contains(id));
    refuse(connection, asked, retried).await
}

impl Operating for PgStore {
    async fn delete_jobs(&self, ids: &[JobId]) -> Result<OperatedJobs, StoreError> {
        delete(&self.pool, ids).await
    }

    async fn mark_cancelled(&self, id: JobId) -> Result<bool, StoreError> {
        let marked = sqlx::query(MARK_CANCELLED).bind(id.0);
        let marked = marked.execute(&self.pool.inner).await?;
        Ok(marked.rows_affected() == 1)
    }

    async fn retry_jobs(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs, StoreError> {
        retry(&self.pool, ids, retries).await
    }

    async fn is_strict(&self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(IS_STRICT)
            .fetch_one(&self.pool.inner)
            .await?)
    }

    async fn write_strict_order(&self, strict: bool) -> Result<(), StoreError> {
        let statement = if strict { MAKE_STRICT } else { RELAX };
        sqlx::query(statement).execute(&self.pool.inner).await?;
        Ok(())
    }
}
