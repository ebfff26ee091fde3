//! Operators' queries. The state of a job follows from the columns of its row.

use jobwire_core::job::query::{JobFilter, JobView};
use jobwire_core::{Job, JobId, StoreError};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgPool, Postgres, Row};

use super::sql::{due, job_columns};
use super::{Camunda, HANDLER_TYPES, OTHER};
use crate::decode::states;
use crate::id::engine_id;

/// `$1` is the zone.
macro_rules! matching {
    () => {
        concat!(
            "
FROM (SELECT j.*, CASE WHEN coalesce(retries_, 0) <= 0 THEN 'dead-letter' WHEN suspension_state_ = 2 THEN 'suspended' WHEN ",
            due!("j"),
            " THEN 'executable' ELSE 'timer' END AS state FROM act_ru_job j) j
WHERE ($2::text IS NULL OR j.id_ = $2) AND j.state = ANY($3)
  AND ($4::text IS NULL OR CASE WHEN $4 = $14 THEN j.handler_type_ <> ALL($15) ELSE j.handler_type_ = $4 END)
  AND ($5::text IS NULL OR j.process_instance_id_ = $5)
  AND ($6::text IS NULL OR j.process_def_id_ = $6) AND ($7::text IS NULL OR j.failed_act_id_ = $7)
  AND ($8::text IS NULL OR j.tenant_id_ = $8)
  AND ($9::boolean IS NULL OR (j.lock_exp_time_ IS NOT NULL) = $9)
  AND ($10::boolean IS NULL OR (j.exception_msg_ IS NOT NULL OR j.exception_stack_id_ IS NOT NULL) = $10)
  AND ($11::timestamptz IS NULL OR j.duedate_ AT TIME ZONE $1 < $11)
  AND ($12::text IS NULL OR $12 = $13)"
        )
    };
}

const FIND: &str = concat!(
    "SELECT j.state, j.lock_owner_, j.lock_exp_time_ AT TIME ZONE $1 AS locked_until, ",
    job_columns!("j"),
    matching!(),
    " ORDER BY j.create_time_, j.id_ OFFSET $16 LIMIT $17"
);
const COUNT: &str = concat!("SELECT count(*)", matching!());

/// Selects the stack of a job's last failure.
const STACK: &str = "
SELECT convert_from(b.bytes_, 'UTF8') FROM act_ge_bytearray b
WHERE b.id_ = (SELECT exception_stack_id_ FROM act_ru_job WHERE id_ = $1)";

impl Camunda {
    fn bound<'q>(
        &'q self,
        sql: &'static str,
        f: &'q JobFilter,
    ) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(sql)
            .bind(&self.zone)
            .bind(f.id.map(|id| engine_id(id).unwrap_or_default()))
            .bind(states(f))
            .bind(&f.job_type)
            .bind(&f.process_instance)
            .bind(&f.process_definition)
            .bind(&f.element)
            .bind(&f.tenant)
            .bind(f.locked)
            .bind(f.with_exception)
            .bind(f.due_before)
            .bind(&f.lane)
            .bind(self.decoder.lane.as_str())
            .bind(OTHER)
            .bind(&HANDLER_TYPES[..])
    }

    /// Returns the jobs that match, oldest first.
    pub(super) async fn find_jobs(
        &self,
        pool: &PgPool,
        filter: &JobFilter,
    ) -> Result<Vec<JobView>, StoreError> {
        let found = self.rows(pool, filter).await?;
        Ok(found.into_iter().map(|(view, _)| view).collect())
    }

    async fn rows(
        &self,
        pool: &PgPool,
        filter: &JobFilter,
    ) -> Result<Vec<(JobView, Job)>, StoreError> {
        let rows = self
            .bound(FIND, filter)
            .bind(filter.offset.max(0))
            .bind(filter.limit.clamp(0, 100_000))
            .fetch_all(pool)
            .await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.extend(self.decoder.view(row)?);
        }
        Ok(found)
    }

    /// Returns the number of jobs that match.
    pub(super) async fn count_jobs(
        &self,
        pool: &PgPool,
        filter: &JobFilter,
    ) -> Result<i64, StoreError> {
        let count = self.bound(COUNT, filter).fetch_one(pool).await?;
        Ok(count.try_get(0)?)
    }

    /// Returns one job with the stack of its last failure.
    pub(super) async fn get_job(
        &self,
        pool: &PgPool,
        id: JobId,
    ) -> Result<Option<(JobView, Job, Option<String>)>, StoreError> {
        let filter = JobFilter::default().id(id);
        let Some((view, job)) = self.rows(pool, &filter).await?.pop() else {
            return Ok(None);
        };
        let stack: Option<String> = sqlx::query_scalar(STACK)
            .bind(engine_id(id))
            .fetch_optional(pool)
            .await?;
        Ok(Some((view, job, stack)))
    }
}
