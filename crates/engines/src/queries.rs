//! Operators' queries, with the statements of a dialect.

use jobwire_core::job::query::{JobQuery, JobView};
use jobwire_core::{Job, JobId, StoreError};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgPool, Postgres, Row};

use crate::decode::OTHER;
use crate::dialect::Dialect;
use crate::id::engine_id;
use crate::listing::{Listing, MOST_READ, page, selected};
use crate::row::EngineRow;

fn bound<'q>(
    dialect: &'q dyn Dialect,
    sql: &'static str,
    of: &'q Listing,
) -> Query<'q, Postgres, PgArguments> {
    let decoder = dialect.decoder();
    let id = of.ids.first().map(|first| {
        let is_one = of.ids.iter().all(|id| id == first);
        engine_id(*first).filter(|_| is_one).unwrap_or_default()
    });
    sqlx::query(sql)
        .bind(dialect.zone().name())
        .bind(id)
        .bind(&of.states)
        .bind(&of.job_type)
        .bind(&of.instance)
        .bind(&of.definition)
        .bind(&of.element)
        .bind(&of.tenant)
        .bind(of.locked)
        .bind(of.with_exception)
        .bind(of.due_before)
        .bind(&of.lane)
        .bind(decoder.lane.as_str())
        .bind(OTHER)
        .bind(decoder.types)
}

/// Returns a page of the jobs that match.
pub(crate) async fn find(
    dialect: &dyn Dialect,
    pool: &PgPool,
    query: &JobQuery,
) -> Result<Vec<JobView>, StoreError> {
    let of = Listing::of(query);
    let found = if of.is_whole() {
        rows(dialect, pool, &of, query.offset, query.limit).await?
    } else {
        page(&of.rest, read(dialect, pool, &of).await?)
    };
    Ok(found.into_iter().map(|(view, _)| view).collect())
}

/// Reads all jobs that fulfil the conditions of the statement, and returns those that fulfil the
/// others, too.
async fn read(
    dialect: &dyn Dialect,
    pool: &PgPool,
    of: &Listing,
) -> Result<Vec<(JobView, Job)>, StoreError> {
    let found = rows(dialect, pool, of, 0, MOST_READ + 1).await?;
    if i64::try_from(found.len()).is_ok_and(|found| found > MOST_READ) {
        return Err(Listing::too_many());
    }
    Ok(selected(&of.rest, found))
}

async fn rows(
    dialect: &dyn Dialect,
    pool: &PgPool,
    of: &Listing,
    offset: i64,
    limit: i64,
) -> Result<Vec<(JobView, Job)>, StoreError> {
    let rows = bound(dialect, dialect.queries().find, of)
        .bind(offset.max(0))
        .bind(limit.clamp(0, JobQuery::MAX_LIMIT))
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
    query: &JobQuery,
) -> Result<i64, StoreError> {
    let mut of = Listing::of(query);
    if !of.has_all_conditions() {
        of.rest.after = None;
        let found = read(dialect, pool, &of).await?;
        return Ok(i64::try_from(found.len()).unwrap_or(i64::MAX));
    }
    let count = bound(dialect, dialect.queries().count, &of);
    Ok(count.fetch_one(pool).await?.try_get(0)?)
}

/// Returns one job with the stack of its last failure.
pub(crate) async fn get(
    dialect: &dyn Dialect,
    pool: &PgPool,
    id: JobId,
) -> Result<Option<(JobView, Job, Option<String>)>, StoreError> {
    let of = Listing::of(&JobQuery::default().id(id));
    let Some((view, job)) = rows(dialect, pool, &of, 0, 1).await?.pop() else {
        return Ok(None);
    };
    let stack: Option<String> = sqlx::query_scalar(dialect.queries().stack)
        .bind(engine_id(id))
        .fetch_optional(pool)
        .await?;
    Ok(Some((view, job, stack)))
}
