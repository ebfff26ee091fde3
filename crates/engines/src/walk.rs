//! Reading a large table in pages.
//!
//! No index of an engine names a lock or a transaction, and Jobwire creates none on an engine's
//! tables. So rescue and looks read rows in the order of the table's blocks, page by page. They
//! read for at most two seconds in each leader cycle, and the next cycle continues behind the last
//! page. A table of at most one page is read as a whole each time. Servers before PostgreSQL 14
//! read the whole table for each page.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jobwire_core::StoreError;
use jobwire_core::hint::Ready;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use tokio::time::Instant;

use crate::decode::Decoder;

/// The number of blocks of 8 KiB in one page: 64 MiB, some 200,000 jobs.
const PAGE: i64 = 8_192;
/// Maximum number of jobs of one look. The sweeper finds the others.
pub(crate) const MOST: i64 = 50_000;

/// The condition of a page. `$from` and `$to` are parameters with [`Page::from`] and [`Page::to`].
macro_rules! in_page {
    ($j:literal, $from:literal, $to:literal) => {
        concat!(
            $j,
            ".ctid >= ",
            $from,
            "::text::tid AND ",
            $j,
            ".ctid < ",
            $to,
            "::text::tid"
        )
    };
}
pub(crate) use in_page;

/// The position of a walk through a table.
#[derive(Debug, Default)]
pub(crate) struct Walk(Mutex<Position>);

#[derive(Clone, Debug, Default)]
struct Position {
    block: i64,
    /// The time and the snapshot of the walk's begin; `None` at the first page.
    began: Option<(Instant, Option<String>)>,
    /// The begin of the last walk that has read the whole table.
    whole: Option<Instant>,
}

/// A page of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    block: i64,
    since: Instant,
    /// The place of the first row.
    pub(crate) from: String,
    /// The place behind the last row.
    pub(crate) to: String,
    /// The snapshot with which the walk began; `None` for the first page.
    pub(crate) began: Option<String>,
}

impl Page {
    fn at(position: &Position) -> Self {
        Self {
            block: position.block,
            since: (position.began.as_ref()).map_or_else(Instant::now, |(since, _)| *since),
            from: format!("({},0)", position.block),
            to: format!("({},0)", position.block + PAGE),
            began: position.began.clone().and_then(|(_, snapshot)| snapshot),
        }
    }

    /// Returns the block behind the last one.
    pub(crate) fn end(&self) -> i64 {
        self.block + PAGE
    }
}

impl Walk {
    /// Locks the position. A poisoned lock means that a thread panicked between whole operations;
    /// the position is still right.
    fn position(&self) -> MutexGuard<'_, Position> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the page to read.
    pub(crate) fn page(&self) -> Page {
        Page::at(&self.position())
    }

    /// Records that a page was read, of a table with this number of blocks. `snapshot` is that of
    /// the reading statement.
    fn read(&self, page: &Page, blocks: i64, snapshot: Option<String>) {
        let mut position = self.position();
        if position.block != page.block {
            // Another reader was quicker.
            return;
        }
        if page.end() >= blocks {
            *position = Position {
                whole: Some(page.since),
                ..Position::default()
            };
            return;
        }
        position.block = page.end();
        position.began = Some((page.since, page.began.clone().or(snapshot)));
    }

    /// Records that a page of this table was read.
    pub(crate) async fn passed(
        &self,
        page: &Page,
        pool: &PgPool,
        table: &str,
    ) -> Result<(), StoreError> {
        self.read(page, blocks(pool, table).await?, None);
        Ok(())
    }

    /// Restarts the walk at the first page.
    pub(crate) fn restart(&self) {
        let mut position = self.position();
        *position = Position {
            whole: position.whole,
            ..Position::default()
        };
    }

    /// Returns whether pages are left.
    pub(crate) fn is_under_way(&self) -> bool {
        self.position().block > 0
    }

    /// Returns whether a walk that began at this moment or later has read the whole table.
    pub(crate) fn is_whole_since(&self, moment: Instant) -> bool {
        self.position().whole.is_some_and(|began| began >= moment)
    }
}

/// Returns the number of blocks of a table of the engine.
async fn blocks(pool: &PgPool, table: &str) -> Result<i64, StoreError> {
    let blocks =
        "SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint";
    Ok(sqlx::query_scalar(blocks)
        .bind(table)
        .fetch_one(pool)
        .await?)
}

/// Returns the new jobs that a look has found, and records its progress. Its rows have the columns
/// of the walk: `blocks`, `snapshot` and `leads`, which is false if this node does not lead. A row
/// without an id is no job.
pub(crate) fn looked(
    decoder: &Decoder,
    walk: &Walk,
    page: &Page,
    report: bool,
    rows: &[PgRow],
) -> Result<Vec<Ready>, StoreError> {
    let Some(first) = rows.first() else {
        return Ok(Vec::new());
    };
    if report && first.try_get::<bool, _>("leads")? {
        walk.read(page, first.try_get("blocks")?, first.try_get("snapshot")?);
    } else {
        walk.restart();
    }
    if rows.len() as i64 >= MOST {
        tracing::info!(
            jobs = MOST,
            "more jobs are new than one look reports; the sweeper finds the others"
        );
    }
    let mut ready = Vec::with_capacity(rows.len());
    for row in rows {
        if row.try_get::<Option<String>, _>("id_")?.is_some() {
            ready.extend(decoder.ready_row(row)?);
        }
    }
    Ok(ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_reads_every_block_once_and_begins_anew_with_its_first_snapshot_forgotten() {
        let walk = Walk::default();
        let blocks = 2 * PAGE + 1;
        let mut seen = Vec::new();
        for snapshot in ["1:1:", "2:2:", "3:3:"] {
            let page = walk.page();
            seen.push((page.from.clone(), page.began.clone()));
            walk.read(&page, blocks, Some(snapshot.to_owned()));
        }
        let first = Some("1:1:".to_owned());
        assert_eq!(
            seen,
            [
                ("(0,0)".to_owned(), None),
                (format!("({PAGE},0)"), first.clone()),
                (format!("({},0)", 2 * PAGE), first),
            ]
        );
        assert_eq!((walk.page().block, walk.page().began), (0, None));
    }

    #[test]
    fn a_walk_is_whole_when_its_last_page_was_read_and_counts_from_its_beginning() {
        let walk = Walk::default();
        let before = Instant::now();
        let first = walk.page();
        walk.read(&first, PAGE + 1, None);
        assert!(walk.is_under_way() && !walk.is_whole_since(before));
        let second = walk.page();
        walk.read(&second, PAGE + 1, None);
        assert!(!walk.is_under_way() && walk.is_whole_since(before));
        assert!(!walk.is_whole_since(Instant::now()));
        walk.restart();
        assert!(walk.is_whole_since(before));
    }

    #[test]
    fn a_small_table_is_one_page_and_a_late_reader_moves_nothing() {
        let walk = Walk::default();
        let page = walk.page();
        walk.read(&page, PAGE, None);
        assert_eq!(walk.page().block, page.block);
        walk.read(&page, PAGE + 1, None);
        let second = walk.page();
        assert_ne!(second.block, page.block);
        walk.read(&page, PAGE + 1, None);
        assert_eq!(walk.page(), second);
        walk.restart();
        assert_eq!(walk.page().block, page.block);
    }
}
