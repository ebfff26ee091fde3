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
//!
//! And they read what has been committed by each of their statements (READ COMMITTED, protocol rule 9), whatever the
//! database's default is. A creator's transaction keeps that default.

use sqlx::{Executor, PgConnection, Postgres, Transaction};

use super::line::Line;
use super::session::{Isolation, lock_timeout};
use crate::store::error::StoreError;

/// Said by each transaction, since a handler may have changed what its connection does by default.
macro_rules! begin {
    ($($then:expr),*) => {
        concat!("BEGIN ISOLATION LEVEL READ COMMITTED" $(, $then)*)
    };
}

const NODES: &str = begin!();
const DURABLY: &str = begin!("; SET LOCAL synchronous_commit TO DEFAULT");
const IMPATIENTLY: &str = begin!("; SET LOCAL ", lock_timeout!());
const BY_KEY: &str = begin!("; SET LOCAL enable_seqscan = off");
const TO_CLAIM: &str = begin!(
    "; SET LOCAL enable_seqscan = off; SET LOCAL ",
    lock_timeout!()
);
const PART: &str = begin!("; SET LOCAL enable_seqscan = off; SET LOCAL statement_timeout = 1000");

/// An application's statements are planned as the server thinks best, as everywhere; so is our insert, which reads no
/// table that grows. Planned anew each time, one job took three quarters of its time to plan (0.31 of 0.43 ms).
macro_rules! creators {
    ($level:literal) => {
        concat!(
            "BEGIN ISOLATION LEVEL ",
            $level,
            "; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL plan_cache_mode = auto"
        )
    };
}

const fn creators(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => creators!("READ COMMITTED"),
        Isolation::RepeatableRead => creators!("REPEATABLE READ"),
        Isolation::Serializable => creators!("SERIALIZABLE"),
    }
}

/// A transaction of a node.
pub(super) async fn begin(line: &Line) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(line, NODES).await
}

/// A transaction of a node whose commit waits for the disk where the connection's statements do not.
pub(super) async fn begin_durably(
    line: &Line,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(line, DURABLY).await
}

/// A transaction of a node that waits a quarter of a second for a row at most: many jobs that have nothing to do with
/// that row wait for this transaction.
pub(super) async fn begin_impatiently(
    line: &Line,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(line, IMPATIENTLY).await
}

/// A transaction of a node that looks at many jobs, each by its key. Its statements may take seconds while other
/// nodes fill tables that were empty when the plan was made: a plan that reads those from end to end for every
/// job took ten seconds for a page of ten thousand, and one that reads by key takes a tenth of a second.
pub(super) async fn begin_by_key(
    line: &Line,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(line, BY_KEY).await
}

/// The same, which waits a quarter of a second for a row at most.
pub(super) async fn begin_to_claim(
    line: &Line,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(line, TO_CLAIM).await
}

/// A transaction of a node that tries these rows of a refused page. A row whose trigger or foreign key waits holds the
/// others of its page up for a second, and not for as long as a statement may take. Without rows it has the time of any
/// other statement.
pub(super) async fn begin_part<R>(
    line: &Line,
    rows: &[R],
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(line, if rows.is_empty() { BY_KEY } else { PART }).await
}

/// A transaction of an application, which may think as long as it likes, and is isolated as the database says.
pub(super) async fn begin_creating(
    line: &Line,
    isolation: Isolation,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(line, creators(isolation)).await
}

/// Where a statement has failed, COMMIT rolls back and is answered like any other by sqlx, which does not look at what
/// the server says that it did. The setting, which is that of [`creators`] and ends with the transaction, fails there, and
/// COMMIT, which comes in the same message, is not reached. (An empty SELECT fails, too, and is planned each time: 9 µs.)
///
/// sqlx has to end what it believes to be open. So another transaction is begun, an empty one, and its ROLLBACK leaves
/// with the question that the pool asks of each connection that comes back. (Asking beforehand is a round trip more:
/// with a client beside the server 0.11 ms instead of 0.08 for a row in an unlogged table.)
const COMMIT_INTACT: &str = "SET LOCAL plan_cache_mode = auto; COMMIT AND CHAIN";

/// Commit a transaction of the pool, or fail.
pub(super) async fn commit_intact(
    mut transaction: Transaction<'static, Postgres>,
) -> Result<(), sqlx::Error> {
    transaction.execute(sqlx::raw_sql(COMMIT_INTACT)).await?;
    Ok(())
}

/// Fails where COMMIT would roll back.
pub(super) async fn ensure_intact(connection: &mut PgConnection) -> Result<(), StoreError> {
    connection.execute(sqlx::raw_sql("SELECT")).await?;
    Ok(())
}

async fn begin_with(
    line: &Line,
    statement: &'static str,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    let line = line.clone();
    // Without an answer in time the connection is suspected, and closed instead of being given back.
    let begins = async move {
        let begins = line.pool.begin_with(statement);
        line.answer(async { Ok(begins.await?) }).await
    };
    match tokio::spawn(begins).await {
        Ok(begun) => begun,
        // Only where the runtime ends before the answer came.
        Err(_) => Err(sqlx::Error::WorkerCrashed.into()),
    }
}
