//! Suspending and activating a scope in the caller's transaction.
//!
//! Neither waits for a locked row for longer than two seconds, and one that fails is undone by a savepoint.
//! The settings of the caller are remembered; the end of the savepoint would not restore them.

use sqlx::PgConnection;

use super::acting::{end_savepoint, sees_latest};
use super::suspend::{KEEP, NOTE, end_part_in};
use crate::store::error::StoreError;
use crate::store::{SuspensionScope, gates};

/// Plans each statement when it runs: a plan that the server keeps may be one for empty tables.
const SAVEPOINT: &str = "
SAVEPOINT jobwire_gate;
SELECT set_config('jobwire.lock_timeout', current_setting('lock_timeout'), true),
    set_config('jobwire.plan_cache_mode', current_setting('plan_cache_mode'), true);
SET LOCAL lock_timeout = 2000;
SET LOCAL plan_cache_mode = force_custom_plan";
const DONE: &str = "
SELECT set_config('lock_timeout', current_setting('jobwire.lock_timeout'), true),
    set_config('plan_cache_mode', current_setting('jobwire.plan_cache_mode'), true);
RELEASE SAVEPOINT jobwire_gate";
const UNDO: &str = "ROLLBACK TO SAVEPOINT jobwire_gate; RELEASE SAVEPOINT jobwire_gate";

/// Records a suspension, and locks its row, so that it does not end before this transaction. Returns false
/// if it was recorded before.
pub(super) async fn suspend(
    connection: &mut PgConnection,
    scope: &SuspensionScope,
) -> Result<bool, StoreError> {
    sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
    let noted = note(connection, scope).await;
    end_savepoint(connection, noted, DONE, UNDO).await
}

/// Ends a suspension, and brings back its jobs. Returns their number, or `None` if there is no such
/// suspension.
///
/// A transaction with one snapshot would not see a job that a failure has moved to the suspended table since,
/// and would leave it there.
pub(super) async fn activate(
    connection: &mut PgConnection,
    scope: &SuspensionScope,
) -> Result<Option<u64>, StoreError> {
    if !sees_latest(connection).await? {
        return Err(StoreError::TooIsolated);
    }
    sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
    let activated = bring_back_all(connection, scope).await;
    end_savepoint(connection, activated, DONE, UNDO).await
}

async fn note(connection: &mut PgConnection, scope: &SuspensionScope) -> Result<bool, StoreError> {
    let (kind, value) = scope.parts();
    loop {
        let note = sqlx::query(NOTE).bind(kind).bind(&*value);
        let is_new = note.execute(&mut *connection).await?.rows_affected() > 0;
        let keep = sqlx::query(KEEP).bind(kind).bind(&*value);
        if keep.fetch_optional(&mut *connection).await?.is_some() {
            return Ok(is_new);
        }
        // Another transaction ended the suspension in between.
    }
}

async fn bring_back_all(
    connection: &mut PgConnection,
    scope: &SuspensionScope,
) -> Result<Option<u64>, StoreError> {
    let mut moved = 0;
    loop {
        let part = end_part_in(connection, scope, gates::PAGE).await?;
        moved += part.moved;
        if part.ended || !part.was_there {
            return Ok(part.was_there.then_some(moved));
        }
    }
}
