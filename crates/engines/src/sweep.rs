//! What the leader reads: jobs whose hint was lost, and the numbers of jobs. With the statements of
//! a dialect.

use jobwire_core::StoreError;
use jobwire_core::store::{COUNT_LIMIT, OrphanPage, OrphanQuery};
use sqlx::{PgPool, Row};

use crate::columns::texts;
use crate::dialect::{Backlog, Dialect};
use crate::id::engine_id;

/// Returns jobs whose hint was lost.
pub(crate) async fn orphans(
    dialect: &dyn Dialect,
    pool: &PgPool,
    query: &OrphanQuery,
) -> Result<OrphanPage, StoreError> {
    let decoder = dialect.decoder();
    if query.lane != decoder.lane {
        return Ok(OrphanPage::default());
    }
    let rows = sqlx::query(dialect.sweep().orphans)
        .bind(dialect.zone())
        .bind(query.after.and_then(engine_id))
        .bind(query.horizon.map(|horizon| horizon.0))
        .bind(query.ready_before)
        .bind(texts(query.held.iter().copied()))
        .bind(query.limit)
        .bind(query.mark)
        .fetch_all(pool)
        .await?;
    let mut page = OrphanPage::default();
    let mut last = None;
    let mut read_to = None;
    for row in &rows {
        if let Ok(Some(to)) = row.try_get::<Option<String>, _>("read_to") {
            read_to = decoder.job_id(&to);
        }
        let Some(id) = row.try_get::<Option<String>, _>("id_")? else {
            continue;
        };
        last = decoder.job_id(&id).or(last);
        if row.try_get("is_free")? {
            page.ready.extend(decoder.ready_row(row)?);
        }
    }
    let is_full = i64::try_from(rows.len()).is_ok_and(|found| found >= query.limit);
    page.next = if is_full { last } else { read_to };
    Ok(page)
}

/// Counts the jobs.
pub(crate) async fn backlog(dialect: &dyn Dialect, pool: &PgPool) -> Result<Backlog, StoreError> {
    let row = sqlx::query(dialect.sweep().backlog)
        .bind(dialect.zone())
        .bind(COUNT_LIMIT + 1)
        .fetch_one(pool)
        .await?;
    let counted: i64 = row.try_get(1)?;
    let estimate: Option<i64> = row.try_get(6)?;
    Ok(Backlog {
        leased: row.try_get(0)?,
        executable: if counted > COUNT_LIMIT {
            counted.max(estimate.unwrap_or_default())
        } else {
            counted
        },
        timers: row.try_get(2)?,
        dead_letters: row.try_get(3)?,
        oldest: row.try_get(4)?,
        next_due: row.try_get(5)?,
    })
}
