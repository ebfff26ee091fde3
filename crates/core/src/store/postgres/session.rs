//! A session of the server for each connection, set up as the statements need it.
//!
//! Poolers stand between. One that pools sessions is as good as the server; one that pools transactions or
//! statements (PgBouncer's `pool_mode`) hands a session to several clients in turn, and neither prepared
//! statements nor limits of time survive that. The difference shows in the number of the server's process:
//! a session of one's own keeps its own.

use std::time::Duration;

use sqlx::{Executor, PgConnection, Row};

use super::line::Line;
use crate::error::StoreError;

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

/// What is set on every connection. As statements, since poolers refuse options at the start of a session.
pub(super) fn settings(
    statement_timeout: Duration,
    silence_in_transaction: Duration,
    plans: Plans,
    commits: Commits,
) -> String {
    format!(
        "SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}; {}; {}{NO_JIT}",
        statement_timeout.as_millis(),
        silence_in_transaction.as_millis(),
        plans.setting(),
        commits.setting(),
    )
}

/// The statements are short. Compiling the larger ones takes seconds (measured: 5 s for a page of orphans,
/// 0.5 s for a turn) and saves nothing.
const NO_JIT: &str = "SET jit = off";

pub(super) async fn begin(
    connection: &mut PgConnection,
    settings: String,
) -> Result<(), sqlx::Error> {
    // Numbers and constants of this file only.
    let settings = sqlx::raw_sql(sqlx::AssertSqlSafe(settings));
    connection.execute(settings).await.map(drop)
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
