//! A transaction begins whole or not at all, whoever stops waiting for it.
//!
//! sqlx forgets a BEGIN whose answer nobody waited for: a request that was cancelled, a deadline that
//! passed. The connection would go back to the pool inside a transaction, where the next statement seems
//! to work and is not committed. So the answer is always waited for, in a task of its own; a transaction
//! that nobody takes any more is rolled back like any other that is dropped.
//!
//! A node's own transactions end when the node falls silent inside one: a process that is frozen, or
//! behind a line that is cut without a word, would hold its rows for hours, and a job among them could not
//! be taken over however long ago its lease ended. That limit is the connection's
//! ([`PgOptions::idle_in_transaction_timeout`](super::PgOptions::idle_in_transaction_timeout)); a creator's
//! transaction is the application's, and has none.

use sqlx::postgres::PgPool;
use sqlx::{Postgres, Transaction};

use crate::error::StoreError;

const NODES: &str = "BEGIN";
const CREATORS: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0";

/// A transaction of a node.
pub(super) async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(pool, NODES).await
}

/// A transaction of an application, which may think as long as it likes.
pub(super) async fn begin_creating(
    pool: &PgPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(pool, CREATORS).await
}

async fn begin_with(
    pool: &PgPool,
    statement: &'static str,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    let pool = pool.clone();
    match tokio::spawn(async move { pool.begin_with(statement).await }).await {
        Ok(begun) => Ok(begun?),
        // Only where the runtime ends before the answer came.
        Err(_) => Err(sqlx::Error::WorkerCrashed.into()),
    }
}
