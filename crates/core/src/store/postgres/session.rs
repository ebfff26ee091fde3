//! A session of the server for each connection, set up as the statements need it.
//!
//! Poolers stand between. One that pools sessions is as good as the server; one that pools transactions or
//! statements (PgBouncer's `pool_mode`) hands a session to several clients in turn, and neither prepared
//! statements nor limits of time survive that. The difference shows in the number of the server's process:
//! a session of one's own keeps its own.

use std::time::Duration;

use sqlx::{Executor, PgConnection, Row};

use super::line::Line;
use crate::store::error::StoreError;

/// How long a plan lasts.
#[derive(Clone, Copy)]
pub(super) enum Plans {
    /// The queue tables grow and shrink a thousandfold in seconds. A plan that was kept from when they were
    /// empty reads dead rows by the page; a fresh one fits.
    Fresh,
    /// For statements that find every row by its key: then one plan is right for all sizes, and making it anew
    /// takes longer than what it does for a single job. It may not be made from an empty table's statistics.
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

/// When the commit of a statement that is a transaction by itself returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Commits {
    /// As the server is configured: when its disk has it, unless somebody chose otherwise.
    AsConfigured,
    /// Before that. What has to wait says so itself (`wait_for_disk!`, [`begin_durably`](super::begin::begin_durably)).
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

/// A condition that holds, and makes the commit of its statement wait where the connection's other commits return
/// [soon](Commits::Soon). Without a value the setting is what it was before the connection set it.
macro_rules! wait_for_disk {
    () => {
        "(SELECT set_config('synchronous_commit', NULL, true)) IS NOT NULL"
    };
}
pub(super) use wait_for_disk;

/// A statement that locks or completes jobs waits so many milliseconds for a row that another transaction has locked.
macro_rules! lock_timeout {
    () => {
        "lock_timeout = 250"
    };
}
pub(super) use lock_timeout;

/// What is set on every connection. As statements, since poolers refuse options at the start of a session.
///
/// Our statements read what others have just committed, whatever the database's default isolation is: under a snapshot
/// that is older than the row locks that they waited for, who is next in an instance would be overlooked.
///
/// What locks and what completes waits for no lock longer than [`lock_timeout`]: other jobs wait for these statements.
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

/// The statements are short. Compiling the larger ones takes seconds (measured: 5 s for a page of orphans,
/// 0.5 s for a turn) and saves nothing.
const NO_JIT: &str = "SET jit = off";

const READ_COMMITTED: &str = "SET default_transaction_isolation = 'read committed'";

/// The server that a connection leads to, as far as sequences are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// When the server was started, and when it began to count: it begins anew after each recovery from a crash, also
    /// from one that its main process survived.
    since: String,
    /// `None` on a standby.
    pub(super) timeline: Option<i64>,
}

/// Which transactions an application gets that asks for none in particular.
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

/// It changes whenever a sequence may have been set back.
const SERVER: &str = "
SELECT concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()),
        extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())),
    CASE WHEN NOT standby
        THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END,
    current_setting('default_transaction_isolation')
FROM (SELECT pg_is_in_recovery() AS standby OFFSET 0) AS recovery";

/// Ask a connection where it leads to.
pub(super) async fn server(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    Ok(begin(connection, "").await?.0)
}

/// Set a new connection up, in one round trip, and learn where it leads to, and what its default isolation was.
pub(super) async fn begin(
    connection: &mut PgConnection,
    settings: &str,
) -> Result<(Server, Isolation), sqlx::Error> {
    // Numbers and constants of this file only.
    let all = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("{SERVER};{settings}")));
    let row = connection.fetch_one(all).await?;
    let server = Server {
        since: row.try_get(0)?,
        timeline: row.try_get(1)?,
    };
    let isolation: String = row.try_get(2)?;
    Ok((server, Isolation::named(&isolation)))
}

/// The process of the server that answers, and whether it writes. By the simple protocol, which prepares
/// nothing.
const WHO: &str = "SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('transaction_read_only')::boolean";

struct Session {
    process: i32,
    standby: bool,
    read_only: bool,
}

async fn ask(connection: &mut PgConnection) -> Result<Session, StoreError> {
    let row = connection.fetch_one(sqlx::raw_sql(WHO)).await?;
    Ok(Session {
        process: row.try_get(0)?,
        standby: row.try_get(1)?,
        read_only: row.try_get(2)?,
    })
}

/// Each of two connections keeps a session of its own. Opens the connection for renewals: from now on it is
/// there, however full the server becomes.
async fn whole(jobs: &Line, renewals: &Line) -> Result<Session, StoreError> {
    let mut one = renewals.pool.acquire().await?;
    let alone = ask(&mut one).await?;
    let mut other = jobs.pool.begin().await?;
    let beside = ask(&mut other).await?;
    let again = ask(&mut one).await?;
    other.rollback().await?;
    if alone.process == beside.process || alone.process != again.process {
        return Err(StoreError::Config(
            "a pooler hands sessions of the server to several clients in turn (PgBouncer's pool_mode = transaction \
             or statement); prepared statements and limits of time do not survive that: connect to the server \
             itself, or set pool_mode = session for this database"
                .to_owned(),
        ));
    }
    Ok(alone)
}

/// No pooler hands sessions around.
pub(super) async fn ensure_whole(jobs: &Line, renewals: &Line) -> Result<(), StoreError> {
    whole(jobs, renewals).await.map(drop)
}

/// And something can be written.
pub(super) async fn ensure_fit(jobs: &Line, renewals: &Line) -> Result<(), StoreError> {
    let session = whole(jobs, renewals).await?;
    if session.standby {
        return Err(StoreError::Config(
            "the server is a standby: nothing can be written there; give the primary's address"
                .to_owned(),
        ));
    }
    if session.read_only {
        return Err(StoreError::Config(
            "the database is read-only (default_transaction_read_only is on): jobs can't be locked there; set it off \
             for this user and database"
                .to_owned(),
        ));
    }
    Ok(())
}
