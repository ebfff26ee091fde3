//! Transactions of the engine, as the server's statistics show them.
//!
//! An execution is one transaction of the engine. It begins with the read of the job and is open
//! until the execution has ended. So an execution without an answer has ended if no transaction is
//! open that began since its request, up to the time by which the engine has certainly begun it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use sqlx::{PgPool, Row};

/// The sessions of other programs in this database, except backups and consoles.
macro_rules! other_transactions {
    () => {
        "pg_stat_activity a
        WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
          AND a.application_name <> 'jobwire' AND a.application_name NOT LIKE 'pg\\_%' AND a.application_name <> 'psql'"
    };
}
pub(crate) use other_transactions;

/// The time around a request in which its transaction begins: the clocks differ a little, and a
/// request that the engine has taken up may wait for a connection of the engine's pool.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(40);

const OPEN: &str = concat!(
    "
SELECT count(*) FILTER (WHERE a.xact_start BETWEEN $1 AND $2),
    count(*) FILTER (WHERE a.state IS NULL AND a.backend_type IS NULL)
FROM ",
    other_transactions!()
);

/// Whether a transaction is open that may be an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// A transaction is open.
    Open,
    /// No transaction is open.
    Quiet,
    /// The role can't see the transactions of others.
    Hidden,
}

/// Returns whether a transaction is open that may be the execution of a request. It was sent at `sent`,
/// and the engine had taken it up at `taken`, by the database's clock.
pub(crate) async fn of_request(
    pool: &PgPool,
    sent: DateTime<Utc>,
    taken: DateTime<Utc>,
) -> Result<Activity, StoreError> {
    let row = sqlx::query(OPEN)
        .bind(sent - BEFORE)
        .bind(taken + AFTER)
        .fetch_one(pool)
        .await?;
    let (open, hidden): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok(match (open, hidden) {
        (1.., _) => Activity::Open,
        (_, 1..) => Activity::Hidden,
        _ => Activity::Quiet,
    })
}

/// Returns the database's clock.
pub(crate) async fn clock(pool: &PgPool) -> Result<DateTime<Utc>, StoreError> {
    Ok(sqlx::query_scalar("SELECT clock_timestamp()")
        .fetch_one(pool)
        .await?)
}
