//! Suspending and activating a scope in the caller's transaction. A change that fails is undone by a
//! savepoint.

use sqlx::SqliteConnection;

use super::suspend::{end_part_in, note};
use crate::store::error::StoreError;
use crate::store::{Gate, SuspensionScope, gates};

const SAVEPOINT: &str = "SAVEPOINT jobwire_gate";
const DONE: &str = "RELEASE jobwire_gate";
const UNDO: &str = "ROLLBACK TO jobwire_gate; RELEASE jobwire_gate";

/// Records a suspension. Returns false if it was recorded before.
pub(super) async fn suspend(
    connection: &mut SqliteConnection,
    scope: &SuspensionScope,
) -> Result<bool, StoreError> {
    note(connection, &Gate::from(scope.clone())).await
}

/// Ends a suspension, and brings back its jobs. Returns their number, or `None` if there is no such
/// suspension.
pub(super) async fn activate(
    connection: &mut SqliteConnection,
    scope: &SuspensionScope,
) -> Result<Option<u64>, StoreError> {
    sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
    let activated = bring_back_all(connection, scope).await;
    let end = if activated.is_ok() { DONE } else { UNDO };
    let ended = sqlx::raw_sql(end).execute(&mut *connection).await;
    let activated = activated?;
    ended?;
    Ok(activated)
}

async fn bring_back_all(
    connection: &mut SqliteConnection,
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
