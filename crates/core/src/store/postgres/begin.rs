//! A transaction begins whole or not at all, whoever stops waiting for it.
//!
//! sqlx forgets a BEGIN whose answer nobody waited for: a request that was cancelled, a deadline that
//! passed. The connection would go back to the pool inside a transaction, where the next statement seems
//! to work and is not committed. So the answer is always waited for, in a task of its own; a transaction
//! that nobody takes any more is rolled back like any other that is dropped.

use sqlx::postgres::PgPool;
use sqlx::{Postgres, Transaction};

use crate::error::StoreError;

pub(super) async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, StoreError> {
    let pool = pool.clone();
    match tokio::spawn(async move { pool.begin().await }).await {
        Ok(begun) => Ok(begun?),
        // Only where the runtime ends before the answer came.
        Err(_) => Err(sqlx::Error::WorkerCrashed.into()),
    }
}
