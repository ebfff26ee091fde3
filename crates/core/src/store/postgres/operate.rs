//! Operators' queries and actions.

use std::collections::HashSet;

use sqlx::postgres::{PgArguments, PgPool};
use sqlx::query::Query;
use sqlx::{Postgres, Row};
use uuid::Uuid;

use super::begin::begin;
use super::line::Line;
use super::sql::{job_columns, moved_columns, ready_columns, unlocked};
use super::{decode, exclusive};
use crate::hint::Ready;
use crate::job::query::{JobFilter, JobView};
use crate::job::{Job, JobId};
use crate::store::error::StoreError;
use crate::store::{Operated, OperatedJobs};

macro_rules! matching {
    () => {
        concat!(
            "
FROM (SELECT 'executable' AS state, ",
            moved_columns!(),
            " FROM jobwire.job
      UNION ALL SELECT 'timer', ",
            moved_columns!(),
            " FROM jobwire.timer_job
      UNION ALL SELECT 'suspended', ",
            moved_columns!(),
            " FROM jobwire.suspended_job
      UNION ALL SELECT 'dead-letter', ",
            moved_columns!(),
            " FROM jobwire.dead_letter_job) j
LEFT JOIN jobwire.job_lease l
       ON l.job_id = j.id AND j.state = 'executable' AND l.owner IS NOT NULL
WHERE ($1::uuid IS NULL OR j.id = $1) AND (cardinality($2::text[]) = 0 OR j.state = ANY($2))
  AND ($3::text IS NULL OR j.type = $3) AND ($4::text IS NULL OR j.process_instance = $4)
  AND ($5::text IS NULL OR j.process_definition = $5) AND ($6::text IS NULL OR j.element = $6)
  AND ($7::text IS NULL OR j.tenant = $7) AND ($8::text IS NULL OR j.lane = $8)
  AND ($9::uuid IS NULL OR j.correlation_id = $9) AND ($10::boolean IS NULL OR (l.job_id IS NOT NULL) = $10)
  AND ($11::boolean IS NULL OR (j.exception_message IS NOT NULL) = $11)
  AND ($12::timestamptz IS NULL OR j.due_at < $12)"
        )
    };
}

const FIND: &str = concat!(
    "SELECT j.*, l.owner, l.fence,
    CASE WHEN l.expires_at BETWEEN '0001-01-01' AND '9999-12-31' THEN l.expires_at END AS expires_at,
    CASE WHEN l.locked_at BETWEEN '0001-01-01' AND '9999-12-31' THEN l.locked_at END AS locked_at",
    matching!(),
    " ORDER BY j.seq OFFSET $13 LIMIT $14"
);
const COUNT: &str = concat!("SELECT count(*)", matching!());

fn bound<'q>(sql: &'static str, f: &'q JobFilter) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(sql)
        .bind(f.id.map(|id| id.0))
        .bind(f.states.iter().map(|s| s.as_str()).collect::<Vec<_>>())
        .bind(&f.job_type)
        .bind(&f.process_instance)
        .bind(&f.process_definition)
        .bind(&f.element)
        .bind(&f.tenant)
        .bind(&f.lane)
        .bind(f.correlation_id)
        .bind(f.locked)
        .bind(f.with_exception)
        .bind(f.due_before)
}

pub(super) async fn find(pool: &PgPool, filter: &JobFilter) -> Result<Vec<JobView>, StoreError> {
    bound(FIND, filter)
        .bind(filter.offset.max(0))
        .bind(filter.limit.clamp(0, 100_000))
        .fetch_all(pool)
        .await?
        .iter()
        .map(decode::view)
        .collect()
}

pub(super) async fn count(pool: &PgPool, filter: &JobFilter) -> Result<i64, StoreError> {
    Ok(bound(COUNT, filter).fetch_one(pool).await?.try_get(0)?)
}

const GET: &str = concat!(
    "
SELECT (SELECT stack FROM jobwire.job_exception WHERE job_id = $1), ",
    job_columns!("j"),
    "
FROM (SELECT ",
    moved_columns!(),
    " FROM jobwire.job WHERE id = $1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM jobwire.timer_job WHERE id = $1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM jobwire.suspended_job WHERE id = $1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM jobwire.dead_letter_job WHERE id = $1) j"
);

pub(super) async fn get(
    pool: &PgPool,
    id: JobId,
) -> Result<Option<(JobView, Job, Option<String>)>, StoreError> {
    let filter = JobFilter {
        id: Some(id),
        ..JobFilter::default()
    };
    let Some(view) = find(pool, &filter).await?.pop() else {
        return Ok(None);
    };
    let Some(found) = sqlx::query(GET).bind(id.0).fetch_optional(pool).await? else {
        return Ok(None);
    };
    Ok(Some((view, decode::job(&found, 1)?, found.try_get(0)?)))
}

const IS_STRICT: &str = "SELECT EXISTS (SELECT FROM jobwire.strict_order)";
const MAKE_STRICT: &str = "INSERT INTO jobwire.strict_order DEFAULT VALUES ON CONFLICT DO NOTHING";
const RELAX: &str = "DELETE FROM jobwire.strict_order";

pub(super) async fn strict_order(pool: &PgPool) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar(IS_STRICT).fetch_one(pool).await?)
}

pub(super) async fn set_strict_order(pool: &PgPool, strict: bool) -> Result<(), StoreError> {
    let statement = if strict { MAKE_STRICT } else { RELAX };
    sqlx::query(statement).execute(pool).await?;
    Ok(())
}

const ROW_LOCK: &str = "
SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE";
const IS_UNLOCKED: &str = concat!("SELECT ", unlocked!("j"), " FROM (SELECT $1::uuid AS id) j");
const DELETE: &str = "
WITH executable AS (DELETE FROM jobwire.job WHERE id = $1 RETURNING exclusive, process_instance),
     timer AS (DELETE FROM jobwire.timer_job WHERE id = $1 RETURNING exclusive, process_instance),
     suspended AS (DELETE FROM jobwire.suspended_job WHERE id = $1 RETURNING exclusive, process_instance),
     letter AS (DELETE FROM jobwire.dead_letter_job WHERE id = $1 RETURNING exclusive, process_instance),
     lease AS (DELETE FROM jobwire.job_lease WHERE job_id = $1),
     stack AS (DELETE FROM jobwire.job_exception WHERE job_id = $1)
SELECT count(*), max(process_instance) FILTER (WHERE exclusive) FROM (SELECT * FROM executable UNION ALL SELECT * FROM timer UNION ALL SELECT * FROM suspended
                      UNION ALL SELECT * FROM letter) gone";

/// Deletes a job that no node runs. Locks the row first and checks the lease in a later statement,
/// so that it sees a lock that was being taken. Returns the younger sibling that the job kept
/// waiting, to be hinted.
pub(super) async fn delete(line: &Line, id: JobId) -> Result<(Operated, Vec<Ready>), StoreError> {
    let mut tx = begin(line).await?;
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
    let ready = exclusive::next_since(line, &left).await;
    let done = if gone == 0 {
        Operated::NotFound
    } else {
        Operated::Done
    };
    Ok((done, ready))
}

/// Locks those of the rows that no other transaction has locked, as [`ROW_LOCK`] does. A batch that
/// waited for rows could meet another one that has some of them and waits for the rest.
const ROW_LOCKS: &str = "
SELECT id FROM jobwire.job WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED";
const DELETE_MANY: &str = concat!(
    "
WITH executable AS (DELETE FROM jobwire.job j WHERE j.id = ANY($2) AND ",
    unlocked!("j"),
    " RETURNING j.id, j.exclusive, j.process_instance),
     timer AS (DELETE FROM jobwire.timer_job WHERE id = ANY($1) RETURNING id, exclusive, process_instance),
     suspended AS (DELETE FROM jobwire.suspended_job WHERE id = ANY($1) RETURNING id, exclusive, process_instance),
     letter AS (DELETE FROM jobwire.dead_letter_job WHERE id = ANY($1) RETURNING id, exclusive, process_instance),
     gone AS (SELECT * FROM executable UNION ALL SELECT * FROM timer UNION ALL SELECT * FROM suspended
              UNION ALL SELECT * FROM letter),
     lease AS (DELETE FROM jobwire.job_lease l USING gone WHERE l.job_id = gone.id),
     stack AS (DELETE FROM jobwire.job_exception x USING gone WHERE x.job_id = gone.id)
SELECT id, CASE WHEN exclusive THEN process_instance END FROM gone"
);

/// Deletes those jobs that no node runs. The second list has the jobs whose rows were locked.
pub(super) async fn delete_many(
    line: &Line,
    ids: &[JobId],
) -> Result<(OperatedJobs, Vec<JobId>), StoreError> {
    let mut asked: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    asked.sort_unstable();
    asked.dedup();
    let mut tx = begin(line).await?;
    let entered: Vec<Uuid> = sqlx::query_scalar(ROW_LOCKS)
        .bind(&asked)
        .fetch_all(&mut *tx)
        .await?;
    let gone: Vec<(Uuid, Option<String>)> = sqlx::query_as(DELETE_MANY)
        .bind(&asked)
        .bind(&entered)
        .fetch_all(&mut *tx)
        .await?;
    let is_gone: HashSet<Uuid> = gone.iter().map(|(id, _)| *id).collect();
    asked.retain(|id| !is_gone.contains(id));
    let still: HashSet<Uuid> = if asked.is_empty() {
        HashSet::new()
    } else {
        let still = sqlx::query_scalar(STILL).bind(&asked);
        still.fetch_all(&mut *tx).await?.into_iter().collect()
    };
    tx.commit().await?;
    let mut deleted = OperatedJobs::default();
    let mut busy = Vec::new();
    let mut left = Vec::new();
    for (id, instance) in gone {
        deleted.operated.push((JobId(id), Operated::Done));
        left.extend(instance);
    }
    let entered: HashSet<Uuid> = entered.into_iter().collect();
    for id in asked {
        if !still.contains(&id) {
            deleted.operated.push((JobId(id), Operated::NotFound));
        } else if entered.contains(&id) {
            deleted.operated.push((JobId(id), Operated::Running));
        } else {
            busy.push(JobId(id));
        }
    }
    left.sort_unstable();
    left.dedup();
    deleted.ready = exclusive::next_since(line, &left).await;
    Ok((deleted, busy))
}

/// The number of used attempts when `$2` are left. A retry changes how many attempts are left and
/// not how many there are in total, so the next occurrence of a repeating job has as many, unless
/// more are given.
macro_rules! used_attempts {
    () => {
        "least(greatest(retries::bigint + failures - $2, 0), 1000000000)::integer"
    };
}

/// Moves jobs from any other table into the executable table, with their attempts restored. A job
/// that is executable already is hinted again.
const RETRY: &str = concat!(
    "
WITH timer AS (DELETE FROM jobwire.timer_job WHERE id = ANY($1) RETURNING *),
     suspended AS (DELETE FROM jobwire.suspended_job WHERE id = ANY($1) RETURNING *),
     letter AS (DELETE FROM jobwire.dead_letter_job WHERE id = ANY($1) RETURNING *),
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
        least(hints, 999999999) + 1
    FROM source
    RETURNING id, lane, exclusive, process_instance, trace_parent, type
), again AS (
    UPDATE jobwire.job j SET retries = $2, failures = ",
    used_attempts!(),
    ", revision = least(revision, 999999999) + 1, hints = least(hints, 999999999) + 1, ready_at = clock_timestamp()
    WHERE j.id = ANY($1) AND ",
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

/// Selects, of the jobs that were not made executable, those that are executable and run. The
/// others do not exist.
const STILL: &str = "SELECT id FROM jobwire.job WHERE id = ANY($1)";

pub(super) async fn retry(
    pool: &PgPool,
    ids: &[JobId],
    retries: i32,
) -> Result<OperatedJobs, StoreError> {
    let mut asked: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    asked.sort_unstable();
    asked.dedup();
    let rows = sqlx::query(RETRY)
        .bind(&asked)
        .bind(retries)
        .fetch_all(pool)
        .await?;
    let ready = decode::all_ready(&rows)?;
    let done: HashSet<Uuid> = ready.iter().map(|ready| ready.hint.id.0).collect();
    let mut operated: Vec<_> = ready
        .iter()
        .map(|ready| (ready.hint.id, Operated::Done))
        .collect();
    asked.retain(|id| !done.contains(id));
    if !asked.is_empty() {
        let running: HashSet<Uuid> = sqlx::query_scalar(STILL)
            .bind(&asked)
            .fetch_all(pool)
            .await?
            .into_iter()
            .collect();
        operated.extend(asked.into_iter().map(|id| {
            let why = if running.contains(&id) {
                Operated::Running
            } else {
                Operated::NotFound
            };
            (JobId(id), why)
        }));
    }
    Ok(OperatedJobs {
        operated,
        ready,
        ..OperatedJobs::default()
    })
}
