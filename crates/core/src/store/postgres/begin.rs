//! Beginning and committing transactions.
//!
//! A separate task awaits a BEGIN, even if its caller is cancelled or reaches a deadline.
//! sqlx forgets a BEGIN whose answer is not awaited: the connection would return to the pool inside
//! a transaction, where the next statement seems to succeed and is not committed. A transaction
//! whose caller is gone is rolled back when it is dropped.
//!
//! The server ends a node's transaction that stays idle. Otherwise a process that is frozen, or
//! whose connection is cut silently, would keep its rows locked for hours, and its jobs could not
//! be taken over after their leases ended. The node itself needs at most a tenth of a second between two
//! statements, so its own transactions end after [five idle seconds](super::row_locks::SILENCE): a
//! transaction whose connection was cut would keep leases from their renewal until they end. The
//! transaction of a handler, which may think longer, has the limit of the connection
//! ([`PgOptions::idle_in_transaction_timeout`](super::PgOptions::idle_in_transaction_timeout)) until its
//! job is completed in it. A creator's transaction belongs to the application and has no limit.
//!
//! A node's transactions are READ COMMITTED (protocol rule 9), regardless of the database's
//! default. A creator's transaction keeps that default.

use std::num::NonZeroU32;

use sqlx::{Executor, PgConnection, Postgres, Transaction};

use super::connection_pool::ConnectionPool;
use super::session::{Isolation, lock_timeout};
use crate::store::error::StoreError;

/// Begins a transaction. Names the isolation, since a handler may have changed the connection's
/// default.
macro_rules! begin {
    ($($then:expr),*) => {
        concat!("BEGIN ISOLATION LEVEL READ COMMITTED" $(, $then)*)
    };
}

const NODES: &str = begin!();
const DURABLY: &str = begin!("; SET LOCAL synchronous_commit TO DEFAULT");
const IMPATIENTLY: &str = begin!("; SET LOCAL ", lock_timeout!());
const TO_EXCHANGE: &str = begin!("; SET LOCAL enable_seqscan = off; SET LOCAL lock_timeout = 2000");
const BY_KEY: &str = begin!("; SET LOCAL enable_seqscan = off");
const BY_KEY_IMPATIENTLY: &str = begin!(
    "; SET LOCAL enable_seqscan = off; SET LOCAL ",
    lock_timeout!()
);
const FIRST_IN_ORDER: &str = begin!(
    "; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL ",
    lock_timeout!()
);
const TO_CLAIM: &str = begin!(
    "; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_hashjoin = off; \
     SET LOCAL enable_mergejoin = off; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL ",
    lock_timeout!()
);
const PART: &str = begin!("; SET LOCAL enable_seqscan = off; SET LOCAL statement_timeout = 1000");

/// The setting by which the server itself decides when to plan. It holds for an application's
/// statements and for the insert of jobs, which reads no table that grows. With a new plan each
/// time, planning took three quarters of the time of one job (0.31 of 0.43 ms).
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

/// Begins a transaction in which a handler runs.
pub(super) async fn begin_handlers(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(pool, NODES.to_owned()).await
}

/// Returns the statement that limits the idle time of the transaction.
pub(super) fn limit_silence(millis: NonZeroU32) -> String {
    format!("SET LOCAL idle_in_transaction_session_timeout = {millis}")
}

/// Begins a transaction of a node.
pub(super) async fn begin(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, NODES).await
}

/// Begins a transaction of a node whose commit always waits for the disk, even if the connection's
/// other commits do not.
pub(super) async fn begin_durably(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, DURABLY).await
}

/// Begins a transaction of a node that waits for a row at most a quarter of a second, since many
/// unrelated jobs wait for this transaction.
pub(super) async fn begin_impatiently(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, IMPATIENTLY).await
}

/// Begins a transaction of a node that waits for a row at most two seconds: many nodes queue for the
/// row of one key, and each holds it for some milliseconds.
pub(super) async fn begin_to_exchange(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, TO_EXCHANGE).await
}

/// Begins a transaction of a node that reads many jobs, each by its key. Its statements may take
/// seconds while other nodes fill tables that were empty when the plan was made. For a page of ten
/// thousand jobs, a plan that scans those tables for every job took ten seconds. A plan that reads
/// by key takes a tenth of a second.
pub(super) async fn begin_by_key(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, BY_KEY).await
}

/// Like [`begin_by_key`], but waits for a row at most a quarter of a second.
pub(super) async fn begin_by_key_impatiently(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, BY_KEY_IMPATIENTLY).await
}

/// Like [`begin_by_key_impatiently`], for a statement that reads the first job of each instance.
/// While the tables have no statistics, the server would read all jobs of an instance and sort them,
/// and would read the whole table of leases for each of them: 1.3 s for 512 instances of 60 jobs. A
/// plain scan of the index by instance has the order of the jobs and stops at the first one. (With
/// `enable_sort = off` the sorts that remain cost so much that no other cost counts: 3 s.)
pub(super) async fn begin_first_in_order(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, FIRST_IN_ORDER).await
}

/// Like [`begin_by_key_impatiently`], but keeps its plans: planning took three times as long as the
/// claim of one job. The settings leave one plan, whether the tables were empty or full when it was
/// made: it walks through the jobs by their key, and asks the other tables for each job by theirs.
/// So the statements ask for values without joins: the order of a join depends on the sizes of the tables,
/// and `NOT EXISTS` may be planned as one.
pub(super) async fn begin_to_claim(
    pool: &ConnectionPool,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, TO_CLAIM).await
}

/// Begins a transaction of a node that tries these rows of a refused page. If the trigger or
/// foreign key of a row waits, it delays the others of its page by a second, and not by the
/// statement timeout. Without rows, the statement timeout applies.
pub(super) async fn begin_part<R>(
    pool: &ConnectionPool,
    rows: &[R],
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_own(pool, if rows.is_empty() { BY_KEY } else { PART }).await
}

/// Begins a transaction of an application, with no idle limit and with the given isolation, the
/// database's default.
pub(super) async fn begin_creating(
    pool: &ConnectionPool,
    isolation: Isolation,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    begin_with(pool, creators(isolation).to_owned()).await
}

/// Commits a transaction in which statements of an application ran, and fails if the server would
/// roll it back. COMMIT of a failed transaction rolls back, and sqlx reports success, since it does
/// not read the server's answer. So the text first sets a parameter. In a failed transaction that
/// fails, and the COMMIT in the same message is not executed. The setting is that of [`creators`]
/// and ends with the transaction. (An empty SELECT fails too, but is planned each time: 9 µs.)
///
/// sqlx must end the transaction that it considers open. So the text begins another, empty
/// transaction. Its ROLLBACK is sent together with the ping by which the pool checks each returned
/// connection. (A check before the commit costs one more round trip: with a client beside the
/// server, 0.11 ms instead of 0.08 for a row in an unlogged table.)
const COMMIT_INTACT: &str = "SET LOCAL plan_cache_mode = auto; COMMIT AND CHAIN";

/// Commits a transaction of the pool. Fails if the server would roll it back.
pub(super) async fn commit_intact(
    mut transaction: Transaction<'static, Postgres>,
) -> Result<(), sqlx::Error> {
    transaction.execute(sqlx::raw_sql(COMMIT_INTACT)).await?;
    Ok(())
}

/// Fails if COMMIT would roll back.
pub(super) async fn ensure_intact(connection: &mut PgConnection) -> Result<(), StoreError> {
    connection.execute(sqlx::raw_sql("SELECT")).await?;
    Ok(())
}

async fn begin_own(
    pool: &ConnectionPool,
    statement: &'static str,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    let statement = match pool.silence {
        Some(silence) => format!("{statement}; {}", limit_silence(silence)),
        None => statement.to_owned(),
    };
    begin_with(pool, statement).await
}

async fn begin_with(
    pool: &ConnectionPool,
    statement: String,
) -> Result<Transaction<'static, Postgres>, StoreError> {
    let pool = pool.clone();
    // Without an answer in time, the connection is suspected, and closed instead of returned.
    let begins = async move {
        // The text holds only numbers beside the constants above.
        let begins = pool.inner.begin_with(sqlx::AssertSqlSafe(statement));
        pool.answer(async { Ok(begins.await?) }).await
    };
    match tokio::spawn(begins).await {
        Ok(begun) => begun,
        // This happens only if the runtime ends before the answer.
        Err(_) => Err(sqlx::Error::WorkerCrashed.into()),
    }
}
