//! Schedules whose name is not UTF-8: another program wrote them, and no statement can name them.

use super::{SqliteStore, decode};
use crate::store::Result;

/// Takes the next due date from a schedule, like that of one that can't be read.
const STOP: &str = "UPDATE periodic_job SET next_due = NULL WHERE name = CAST(?1 AS TEXT)";

/// Returns the names of due schedules with their dates and the times of their last change. Returns `None` if some of the names are not
/// UTF-8: those schedules are stopped, so the next look does not find them.
pub(super) async fn named(
    store: &SqliteStore,
    due: Vec<(Vec<u8>, i64, i64)>,
) -> Result<Option<Vec<(String, i64, i64)>>> {
    let mut names = Vec::with_capacity(due.len());
    let mut unnamed = Vec::new();
    for (name, due, changed) in due {
        match String::from_utf8(name) {
            Ok(name) => names.push((name, due, changed)),
            Err(error) => unnamed.push(error.into_bytes()),
        }
    }
    if unnamed.is_empty() {
        return Ok(Some(names));
    }
    let mut tx = store.write().await?;
    let mut stopped = 0;
    for name in unnamed {
        let stop = sqlx::query(STOP).bind(&name);
        stopped += stop.execute(&mut *tx).await?.rows_affected();
        tracing::error!(
            name = %decode::lossy(name).escape_debug(),
            "the name of a periodic job is not UTF-8; it is stopped. Delete its row"
        );
    }
    tx.commit().await?;
    Ok((stopped == 0).then_some(names))
}
