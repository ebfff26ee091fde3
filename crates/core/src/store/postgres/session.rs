//! Sessions of the server, one for each connection, set up for the statements.
//!
//! There may be a pooler before the server. A pooler of sessions works like the server. A pooler of
//! transactions or statements (PgBouncer's `pool_mode`) gives a session to several clients in turn,
//! which breaks prepared statements and timeouts. The process id of the server shows the
//! difference: in a session that is not shared it stays the same.

use std::time::Duration;

use sqlx::{Executor, PgConnection, Row};

use super::connection_pool::ConnectionPool;
use crate::store::error::StoreError;

/// The life of a plan.
#[derive(Clone, Copy)]
pub(super) enum Plans {
    /// A new plan for each execution. The queue tables grow and shrink a thousandfold in seconds. A
    /// plan that was made while they were empty reads pages of dead rows.
    Fresh,
    /// One plan for all executions, for statements that find every row by its key. Such a plan is
    /// right for all sizes, and planning takes longer than execution for a single job. The plan
    /// must not be made from an empty table's statistics.
    Kept,
}

impl Plans {
    const fn setting(self) -> &'static str {
        match self {
            Self::Fresh => "SET plan_cache_mode = force_custom_plan",
            Self::Kept => "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off",
        }
    }
}

/// The moment at which the commit of a statement outside a transaction returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Commits {
    /// As configured on the server: after the flush to disk, by default.
    AsConfigured,
    /// Before the flush. A statement that must wait requests that itself (`wait_for_disk!`,
    /// [`begin_durably`](super::begin::begin_durably)).
    Soon,
}

impl Commits {
    const fn setting(self) -> &'static str {
        match self {
            Self::AsConfigured => "",
            Self::Soon => "SET synchronous_commit = off; ",
        }
    }
}

/// A condition that always holds, and makes the commit of its statement wait for the disk on a
/// connection whose other commits return [soon](Commits::Soon). NULL resets the setting to its
/// value from before the connection set it.
macro_rules! wait_for_disk {
    () => {
        "(SELECT set_config('synchronous_commit', NULL, true)) IS NOT NULL"
    };
}
pub(super) use wait_for_disk;

/// The time that a statement that locks or completes jobs waits for a locked row, in milliseconds.
macro_rules! lock_timeout {
    () => {
        "lock_timeout = 250"
    };
}
pub(super) use lock_timeout;

/// Returns the statements that set up a connection. Poolers refuse options at the start of a
/// session, so these are statements.
///
/// The isolation is READ COMMITTED, regardless of the database's default: with a snapshot older
/// than the row locks that a statement waited for, the next job of an instance would be missed.
///
/// Locks and completions wait for a lock no longer than [`lock_timeout`], since other jobs wait for
/// these statements.
pub(super) fn settings(
    statement_timeout: Duration,
    silence_in_transaction: Duration,
    plans: Plans,
    commits: Commits,
) -> String {
    let lock_timeout = match plans {
        Plans::Fresh => "",
        Plans::Kept => concat!("SET ", lock_timeout!(), "; "),
    };
    format!(
        "SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}; {lock_timeout}{}; {}{NO_JIT}; {READ_COMMITTED}",
        statement_timeout.as_millis(),
        silence_in_transaction.as_millis(),
        plans.setting(),
        commits.setting(),
    )
}

/// Switches off the compilation of statements. They are short. The compilation of the larger ones
/// takes long (measured: 5 s for a page of orphans, 0.5 s for a leader cycle) and saves nothing.
const NO_JIT: &str = "SET jit = off";

const READ_COMMITTED: &str = "SET default_transaction_isolation = 'read committed'";

/// The identity of the server behind a connection, with regard to sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// The start of the server and of its statistics. The statistics restart after each recovery
    /// from a crash, even if the main process survived it.
    since: String,
    /// `None` on a standby.
    pub(super) timeline: Option<i64>,
}

/// The isolation of an application's transactions that name none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Isolation {
    #[default]
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

impl Isolation {
    fn named(name: &str) -> Self {
        match name {
            "serializable" => Self::Serializable,
            "repeatable read" => Self::RepeatableRead,
            _ => Self::ReadCommitted,
        }
    }
}

/// Selects the identity of the server. It changes whenever a sequence may have been set back.
const SERVER: &str = "
SELECT concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()),
        extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())),
    CASE WHEN NOT standby
        THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END,
    current_setting('default_transaction_isolation')
FROM (SELECT pg_is_in_recovery() AS standby OFFSET 0) AS recovery";

/// Returns the server behind a connection.
pub(super) async fn server(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    Ok(begin(connection, "").await?.0)
}

/// Sets up a new connection in one round trip. Returns its server and its former default isolation.
pub(super) async fn begin(
    connection: &mut PgConnection,
    settings: &str,
) -> Result<(Server, Isolation), sqlx::Error> {
    // The text holds only numbers and constants of this file.
    let all = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("{SERVER};{settings}")));
    let row = connection.fetch_one(all).await?;
    let server = Server {
        since: row.try_get(0)?,
        timeline: row.try_get(1)?,
    };
    let isolation: String = row.try_get(2)?;
    Ok((server, Isolation::named(&isolation)))
}

/// Selects the process of the server, whether it accepts writes, and the encoding of the database. Sent by
/// the simple protocol, which prepares nothing.
const WHO: &str = "SELECT pg_backend_pid(), pg_is_in_recovery(), \
                   current_setting('transaction_read_only')::boolean, \
                   current_setting('server_encoding')";

/// The only encoding in which every stored text can be read.
const ENCODING: &str = "UTF8";

struct Session {
    process: i32,
    standby: bool,
    read_only: bool,
    encoding: String,
}

async fn ask(connection: &mut PgConnection) -> Result<Session, StoreError> {
    let row = connection.fetch_one(sqlx::raw_sql(WHO)).await?;
    Ok(Session {
        process: row.try_get(0)?,
        standby: row.try_get(1)?,
        read_only: row.try_get(2)?,
        encoding: row.try_get(3)?,
    })
}

/// Fails unless each of two connections keeps its own session. Opens the connection for renewals,
/// which stays open even if the server runs out of connections later.
async fn whole(jobs: &ConnectionPool, renewals: &ConnectionPool) -> Result<Session, StoreError> {
    let mut one = renewals.inner.acquire().await?;
    let alone = ask(&mut one).await?;
    let mut other = jobs.inner.begin().await?;
    let beside = ask(&mut other).await?;
    let again = ask(&mut one).await?;
    other.rollback().await?;
    if alone.process == beside.process || alone.process != again.process {
        return Err(StoreError::Config(
            "a pooler gives sessions of the server to several clients in turn (PgBouncer's \
             pool_mode = transaction or statement), which breaks prepared statements and timeouts; \
             connect to the server itself, or set pool_mode = session for this database"
                .to_owned(),
        ));
    }
    Ok(alone)
}

/// Fails if a pooler shares sessions among clients.
pub(super) async fn ensure_whole(
    jobs: &ConnectionPool,
    renewals: &ConnectionPool,
) -> Result<(), StoreError> {
    whole(jobs, renewals).await.map(drop)
}

/// Fails if a pooler shares sessions among clients, if the server accepts no writes, or if the database has
/// another encoding than UTF8.
///
/// With another encoding any role that creates jobs could store bytes that no node can read, and the
/// statements that find them would fail.
pub(super) async fn ensure_fit(
    jobs: &ConnectionPool,
    renewals: &ConnectionPool,
) -> Result<(), StoreError> {
    let session = whole(jobs, renewals).await?;
    if session.standby {
        return Err(StoreError::Config(
            "the server is a standby, which accepts no writes; use the primary's address"
                .to_owned(),
        ));
    }
    if session.read_only {
        return Err(StoreError::Config(
            "the database is read-only (default_transaction_read_only is on), so no job can be \
             locked; set it to off for this user and database"
                .to_owned(),
        ));
    }
    if session.encoding != ENCODING {
        return Err(StoreError::Config(format!(
            "the encoding of the database is {}, in which it can hold texts that no node can read; \
             use a database with ENCODING '{ENCODING}'",
            session.encoding
        )));
    }
    Ok(())
}
