//! Operators' actions.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tokio::time::Instant;
use uuid::Uuid;

use super::begin::begin;
use super::change_statements::{ENTER, STILL};
use super::connection_pool::ConnectionPool;
use super::sql::{moved_columns, ready_columns, unlocked};
use super::{PgStore, decode, exclusive};
use crate::hint::Ready;
use crate::job::{JobId, JobState};
use crate::store::error::StoreError;
use crate::store::statements::Operating;
use crate::store::{Operated, OperatedJobs};

const IS_STRICT: &str = "SELECT EXISTS (SELECT FROM jobwire.strict_order)";
const MAKE_STRICT: &str = "INSERT INTO jobwire.strict_order DEFAULT VALUES ON CONFLICT DO NOTHING";
const RELAX: &str = "DELETE FROM jobwire.strict_order";

const ROW_LOCK: &str = "
SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE";
const IS_UNLOCKED: &str = concat!("SELECT ", unlocked!("j"), " FROM (SELECT $1::uuid AS id) j");
const DELETE: &str = "
WITH executable AS (DELETE FROM jobwire.job WHERE id = $1 RETURNING exclusive, process_instance),
     timer AS (DELETE FROM jobwire.timer_job WHERE id = $1 RETURNING exclusive, process_instance),
     suspended AS (DELETE FROM jobwire.suspended_job WHERE id = $1 RETURNING exclusive, process_instance),
     letter AS (DELETE FROM jobwire.dead_letter_job WHERE id = $1 RETURNING exclusive, process_instance),
     lease AS (DELETE FROM jobwire.job_lease WHERE job_id = $1),
     stack AS (DELETE FROM jobwire.job_exception WHERE job_id = $1),
     progress AS (DELETE FROM jobwire.job_progress WHERE job_id = $1)
SELECT count(*), max(process_instance) FILTER (WHERE exclusive) FROM (SELECT * FROM executable UNION ALL SELECT * FROM timer UNION ALL SELECT * FROM suspended
                      UNION ALL SELECT * FROM letter) gone";

/// Deletes a job that no node runs. Locks the row first and checks the lease in a later statement,
/// so that it sees a lock that was taken at the same time. Returns the younger sibling that waited
/// for the job, to be hinted.
async fn delete(pool: &ConnectionPool, id: JobId) -> Result<(Operated, Vec<Ready>), StoreError> {
    let mut tx = begin(pool).await?;
    sqlx::query(ROW_LOCK).bind(id.0).execute(&mut *tx).await?;
    let unlocked: bool = sqlx::query_scalar(IS_UNLOCKED)
        .bind(id.0)
        .fetch_one(&mut *tx)
        .await?;
    if !unlocked {
        return Ok((Operated::Running, Vec::new()));
    }
    let (gone, instance): (i64, Option<String>) = sqlx::query_as(DELETE)
        .bind(id.0)
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    let left: Vec<String> = instance.into_iter().collect();
    let ready = exclusive::next_since(pool, &left).await;
    let done = if gone == 0 {
        Operated::NotFound
    } else {
        Operated::Done
    };
    Ok((done, ready))
}

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

/// Deletes the jobs that no node runs. The second list has the jobs whose rows were locked.
async fn delete_many(
    pool: &ConnectionPool,
    ids: &[JobId],
) -> Result<(OperatedJobs, Vec<JobId>), StoreError> {
    let mut asked = sorted(ids);
    let (mut deleted, mut left) = (OperatedJobs::default(), Vec::new());
    let mut tx = begin(pool).await?;
    delete_free(&mut tx, &mut asked, &mut deleted, &mut left).await?;
    tx.commit().await?;
    left.sort_unstable();
    left.dedup();
    deleted.ready = exclusive::next_since(pool, &left).await;
    Ok((deleted, asked.into_iter().map(JobId).collect()))
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
/// that is executable already is hinted again. The comment is for the event stream.
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
    WHERE j.id IN (SELECT e.id FROM jobwire.job e WHERE e.id = ANY($1) AND ",
    unlocked!("e"),
    " FOR UPDATE OF e SKIP LOCKED) AND ",
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

/// Makes the jobs executable. Rows that other transactions lock delay no other job; they are tried
/// again for [`ROWS_WITHIN`].
async fn retry(pool: &PgPool, ids: &[JobId], retries: i32) -> Result<OperatedJobs, StoreError> {
    let mut asked = sorted(ids);
    let mut retried = OperatedJobs::default();
    let until = Instant::now() + ROWS_WITHIN;
    loop {
        let round = async {
            let mut connection = pool.acquire().await?;
            retry_free(&mut connection, &mut asked, retries, &mut retried).await
        };
        if let Err(error) = round.await {
            // The jobs that are changed already need their hints.
            if retried.operated.is_empty() {
                return Err(error);
            }
            let unknown = asked.into_iter().map(|id| (JobId(id), error.to_string()));
            retried.refused.extend(unknown);
            return Ok(retried);
        }
        if asked.is_empty() {
            return Ok(retried);
        }
        if Instant::now() >= until {
            let locked = asked.into_iter().map(|id| (JobId(id), LOCKED.to_owned()));
            retried.refused.extend(locked);
            return Ok(retried);
        }
        tokio::time::sleep(ROWS_AGAIN).await;
    }
}

pub(super) const LOCKED: &str =
    "another transaction locks the row of this job; end it, or try again";

/// Makes those of the jobs executable whose rows are free, and leaves the locked ones in `asked`.
pub(super) async fn retry_free(
    connection: &mut PgConnection,
    asked: &mut Vec<Uuid>,
    retries: i32,
    retried: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let rows = sqlx::query(RETRY)
        .bind(&*asked)
        .bind(retries)
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
    async fn delete_job(&self, id: JobId) -> Result<(Operated, Vec<Ready>), StoreError> {
        delete(&self.pool, id).await
    }

    async fn delete_jobs(&self, ids: &[JobId]) -> Result<(OperatedJobs, Vec<JobId>), StoreError> {
        delete_many(&self.pool, ids).await
    }

    async fn mark_cancelled(&self, id: JobId) -> Result<bool, StoreError> {
        let marked = sqlx::query(MARK_CANCELLED).bind(id.0);
        let marked = marked.execute(&self.pool.inner).await?;
        Ok(marked.rows_affected() == 1)
    }

    async fn retry_jobs(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs, StoreError> {
        retry(&self.pool.inner, ids, retries).await
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
