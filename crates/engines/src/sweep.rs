//! Reads of the leader, with the statements of a dialect: jobs whose hint was lost, and the numbers
//! of jobs.

use std::time::Duration;

use jobwire_core::StoreError;
use jobwire_core::hint::Ready;
use jobwire_core::store::{COUNT_LIMIT, OrphanPage, OrphanQuery};
use sqlx::{PgPool, Row};
use tokio::time::Instant;

use crate::backlog::Backlog;
use crate::columns::texts;
use crate::dialect::Dialect;
use crate::id::engine_id;

/// The time for which one search for lost hints reads parts of a large table that have none.
const READS: Duration = Duration::from_secs(3);

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
    dialect.zone().learn(dialect.stamps(), pool).await?;
    let mut found = OrphanPage::default();
    let mut after = query.after.and_then(engine_id);
    let until = Instant::now() + READS;
    loop {
        let (ready, read_to) = part(dialect, pool, query, after.as_deref()).await?;
        found.ready.extend(ready);
        let Some(read_to) = read_to else {
            return Ok(found);
        };
        // A part without an orphan is no page: a pass sends a marker behind each page.
        let is_over = !found.ready.is_empty() || Instant::now() >= until;
        // An id of no known form cannot end a page.
        found.next = decoder.job_id(&read_to).filter(|_| is_over);
        if found.next.is_some() {
            return Ok(found);
        }
        after = Some(read_to);
    }
}

/// Returns the orphans of a part of the table, and the last id that was read if more may follow.
async fn part(
    dialect: &dyn Dialect,
    pool: &PgPool,
    query: &OrphanQuery,
    after: Option<&str>,
) -> Result<(Vec<Ready>, Option<String>), StoreError> {
    let decoder = dialect.decoder();
    let rows = sqlx::query(dialect.sweep().orphans)
        .bind(dialect.zone().judged())
        .bind(after)
        .bind(query.horizon.map(|horizon| horizon.0))
        .bind(query.ready_before)
        .bind(texts(query.held.iter().copied()))
        .bind(query.limit)
        .bind(query.mark)
        .bind(query.services.bound())
        .fetch_all(pool)
        .await?;
    let mut ready = Vec::new();
    let (mut last, mut read_to) = (None, None);
    for row in &rows {
        read_to = row.try_get::<Option<String>, _>("read_to").ok().flatten();
        let Some(id) = row.try_get::<Option<String>, _>("id_")? else {
            continue;
        };
        if row.try_get("is_free")? {
            ready.extend(decoder.ready_row(row)?);
        }
        last = Some(id);
    }
    // A full answer has left out the rest of the part.
    let is_full = i64::try_from(rows.len()).is_ok_and(|found| found >= query.limit);
    Ok((ready, if is_full { last } else { read_to }))
}

/// Counts the jobs.
pub(crate) async fn backlog(dialect: &dyn Dialect, pool: &PgPool) -> Result<Backlog, StoreError> {
    let row = sqlx::query(dialect.sweep().backlog)
        .bind(dialect.zone().name())
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
