//! Operators' queries, with the statements of a dialect.

use jobwire_core::job::query::{JobFilter, JobView};
use jobwire_core::{Job, JobId, StoreError};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgPool, Postgres, Row};

use crate::decode::{OTHER, states};
use crate::dialect::Dialect;
use crate::id::engine_id;
use crate::row::EngineRow;

fn bound<'q>(
    dialect: &'q dyn Dialect,
    sql: &'static str,
    filter: &'q JobFilter,
) -> Query<'q, Postgres, PgArguments> {
    let decoder = dialect.decoder();
    // The correlation id of a job is its id.
    let ids = filter.id.into_iter();
    let ids: Vec<JobId> = ids
        .chain(filter.correlation_id.map(JobId::from_uuid))
        .collect();
    let id = ids.first().map(|first| {
        let is_one = ids.iter().all(|id| id == first);
        engine_id(*first).filter(|_| is_one).unwrap_or_default()
    });
    sqlx::query(sql)
        .bind(dialect.zone())
        .bind(id)
        .bind(states(filter))
        .bind(&filter.job_type)
        .bind(&filter.process_instance)
        .bind(&filter.process_definition)
        .bind(&filter.element)
        .bind(&filter.tenant)
        .bind(filter.locked)
        .bind(filter.with_exception)
        .bind(filter.due_before)
        .bind(&filter.lane)
        .bind(decoder.lane.as_str())
        .bind(OTHER)
        .bind(decoder.types)
}

/// Returns the jobs that match, oldest first.
pub(crate) async fn find(
    dialect: &dyn Dialect,
    pool: &PgPool,
    filter: &JobFilter,
) -> Result<Vec<JobView>, StoreError> {
    let found = rows(dialect, pool, filter).await?;
    Ok(found.into_iter().map(|(view, _)| view).collect())
}

async fn rows(
    dialect: &dyn Dialect,
    pool: &PgPool,
    filter: &JobFilter,
) -> Result<Vec<(JobView, Job)>, StoreError> {
    let rows = bound(dialect, dialect.queries().find, filter)
        .bind(filter.offset.max(0))
        .bind(filter.limit.clamp(0, 100_000))
        .fetch_all(pool)
        .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        found.extend(dialect.decoder().view(&EngineRow::read_with_lock(row)?));
    }
    Ok(found)
}

/// Returns the number of jobs that match.
pub(crate) async fn count(
    dialect: &dyn Dialect,
    pool: &PgPool,
    filter: &JobFilter,
) -> Result<i64, StoreError> {
    let count = bound(dialect, dialect.queries().count, filter);
    Ok(count.fetch_one(pool).await?.try_get(0)?)
}

/// Returns one job with the stack of its last failure.
pub(crate) async fn get(
    dialect: &dyn Dialect,
    pool: &PgPool,
    id: JobId,
) -> Result<Option<(JobView, Job, Option<String>)>, StoreError> {
    let filter = JobFilter::default().id(id);
    let Some((view, job)) = rows(dialect, pool, &filter).await?.pop() else {
        return Ok(None);
    };
    let stack: Option<String> = sqlx::query_scalar(dialect.queries().stack)
        .bind(engine_id(id))
        .fetch_optional(pool)
        .await?;
    Ok(Some((view, job, stack)))
}
