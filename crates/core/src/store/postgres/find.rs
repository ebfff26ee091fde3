//! Finding and counting jobs, for operators.

use sqlx::postgres::{PgArguments, PgPool};
use sqlx::query::Query;
use sqlx::{Postgres, Row};

use super::sql::{gate_of, job_columns, moved_columns};
use super::{PgStore, decode};
use crate::job::query::{JobFilter, JobView};
use crate::job::{Job, JobId};
use crate::store::error::StoreError;
use crate::store::statements::Finding;

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
LEFT JOIN jobwire.job_progress p ON p.job_id = j.id
WHERE ($1::uuid IS NULL OR j.id = $1) AND (cardinality($2::text[]) = 0 OR j.state = ANY($2))
  AND ($3::text IS NULL OR j.type = $3) AND ($4::text IS NULL OR j.process_instance = $4)
  AND ($5::text IS NULL OR j.process_definition = $5) AND ($6::text IS NULL OR j.element = $6)
  AND ($7::text IS NULL OR j.tenant = $7) AND ($8::text IS NULL OR j.lane = $8)
  AND ($9::uuid IS NULL OR j.correlation_id = $9) AND ($10::boolean IS NULL OR (l.job_id IS NOT NULL) = $10)
  AND ($11::boolean IS NULL OR (j.exception_message IS NOT NULL) = $11)
  AND ($12::timestamptz IS NULL OR j.due_at < $12) AND ($13::text IS NULL OR j.category = $13)
  AND ($14::bigint IS NULL OR j.priority <> $14)
  AND CASE WHEN cardinality($15::text[]) = 0 THEN true
      WHEN position('\\u0000' IN j.custom_values::text) > 0 THEN false
      WHEN json_typeof(j.custom_values) = 'object' AND json_typeof(j.custom_values -> '$tags') = 'array'
      THEN (j.custom_values -> '$tags')::jsonb ?& $15 ELSE false END"
        )
    };
}

const FIND: &str = concat!(
    "SELECT j.*, l.owner, l.fence,
    CASE WHEN l.expires_at BETWEEN '0001-01-01' AND '9999-12-31' THEN l.expires_at END AS expires_at,
    CASE WHEN l.locked_at BETWEEN '0001-01-01' AND '9999-12-31' THEN l.locked_at END AS locked_at,
    CASE WHEN l.cancelled_at BETWEEN '0001-01-01' AND '9999-12-31' THEN l.cancelled_at END AS cancelled_at,
    p.done, p.total, p.message,
    CASE WHEN p.reported_at BETWEEN '0001-01-01' AND '9999-12-31' THEN p.reported_at END AS reported_at,
    CASE WHEN p.checkpoint_at BETWEEN '0001-01-01' AND '9999-12-31' THEN p.checkpoint_at END AS checkpoint_at, ",
    gate_of!("jobwire."),
    matching!(),
    " ORDER BY j.seq OFFSET $16 LIMIT $17"
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
        .bind(&f.category)
        .bind(f.priority_other_than)
        .bind(&f.tags)
}

async fn find(pool: &PgPool, filter: &JobFilter) -> Result<Vec<JobView>, StoreError> {
    bound(FIND, filter)
        .bind(filter.offset.max(0))
        .bind(filter.limit.clamp(0, 100_000))
        .fetch_all(pool)
        .await?
        .iter()
        .map(decode::view)
        .collect()
}

async fn count(pool: &PgPool, filter: &JobFilter) -> Result<i64, StoreError> {
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

async fn get(pool: &PgPool, id: JobId) -> Result<Option<(Job, Option<String>)>, StoreError> {
    let found = sqlx::query(GET).bind(id.0).fetch_optional(pool).await?;
    let job = found.map(|row| Ok((decode::job(&row, 1)?, row.try_get(0)?)));
    job.transpose()
}

impl Finding for PgStore {
    async fn find_jobs(&self, filter: &JobFilter) -> Result<Vec<JobView>, StoreError> {
        find(&self.pool.inner, filter).await
    }

    async fn count_jobs(&self, filter: &JobFilter) -> Result<i64, StoreError> {
        count(&self.pool.inner, filter).await
    }

    async fn get_job(&self, id: JobId) -> Result<Option<(Job, Option<String>)>, StoreError> {
        get(&self.pool.inner, id).await
    }
}
