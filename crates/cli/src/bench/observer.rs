//! The bench's own connection to PostgreSQL. It reads the server's counters, and counts its own
//! queries so that they can be subtracted. SQLite has no counters.

use std::time::Duration;

use jobwire_core::store::postgres::address::connect_options;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::time::Instant;

use super::rows::Rows;
use crate::error::Error;
use crate::settings::Settings;

/// Maximum time until other sessions have ended after they were asked to end.
const QUIET: Duration = Duration::from_secs(30);

/// Selects the calls of all statements in this database, including BEGIN and COMMIT, and the calls
/// that serve no job: leader cycles, and the settings of new connections.
const STATEMENTS: &str = "
SELECT coalesce(sum(s.calls), 0)::bigint,
    coalesce(sum(s.calls) FILTER (WHERE s.query LIKE '%INSERT INTO jobwire.leader %'
        OR s.query LIKE 'SET %' AND s.query NOT LIKE 'SET LOCAL %'
        OR s.query LIKE 'SELECT pg_backend_pid(), %'), 0)::bigint
FROM pg_stat_statements s
JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database()";

/// Calls of statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Statements {
    pub(super) all: i64,
    /// The part that serves no job.
    pub(super) housekeeping: i64,
}

/// Selects the WAL of the whole server, since the server does not count it by database.
const WAL: &str = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";

const ROWS: &str = "
SELECT coalesce(sum(n_tup_ins), 0)::bigint, coalesce(sum(n_tup_upd), 0)::bigint,
    coalesce(sum(n_tup_hot_upd), 0)::bigint, coalesce(sum(n_tup_del), 0)::bigint,
    coalesce(sum(n_dead_tup), 0)::bigint
FROM pg_stat_user_tables WHERE schemaname = 'jobwire'";

/// Selects other sessions of this user. The counters include a session's work at the latest when it
/// ends.
const OTHERS: &str = "
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()";

const TABLES: &str = "
SELECT string_agg(format('%I.%I', schemaname, relname), ', ')
FROM pg_stat_user_tables WHERE schemaname = 'jobwire'";

/// See the [module](self).
pub(super) struct Observer {
    connection: Option<PgConnection>,
    asked: i64,
}

impl Observer {
    pub(super) async fn open(settings: &Settings) -> Result<Self, Error> {
        let url = &settings.database_url;
        if url.scheme() == "sqlite" {
            return Ok(Self {
                connection: None,
                asked: 0,
            });
        }
        let options = connect_options(url.expose(), settings.database_plaintext)?;
        let options = options
            .application_name("jobwire bench")
            .extra_float_digits(None);
        let connection = PgConnection::connect_with(&options)
            .await
            .map_err(unreadable)?;
        Ok(Self {
            connection: Some(connection),
            asked: 0,
        })
    }

    /// Runs a query. Returns `None` on SQLite.
    async fn ask(&mut self, question: String) -> Result<Option<PgRow>, sqlx::Error> {
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        // Only constants of this file and names that the server has quoted.
        let row = sqlx::query(AssertSqlSafe(question))
            .fetch_optional(connection)
            .await?;
        self.asked += 1;
        Ok(row)
    }

    /// Adds queries that ran over another connection.
    pub(super) fn also_asked(&mut self, questions: i64) {
        self.asked += questions;
    }

    /// Returns the calls of statements so far, without the observer's own; `None` if
    /// `pg_stat_statements` is missing or can't be read.
    pub(super) async fn statements(&mut self) -> Option<Statements> {
        let asked = self.asked;
        let row = self.ask(STATEMENTS.to_owned()).await.ok()??;
        Some(Statements {
            all: row.try_get::<i64, _>(0).ok()? - asked,
            housekeeping: row.try_get(1).ok()?,
        })
    }

    /// Returns the bytes of WAL so far; `None` if this user has no right to read them.
    pub(super) async fn wal_bytes(&mut self) -> Option<i64> {
        self.ask(WAL.to_owned()).await.ok()??.try_get(0).ok()
    }

    /// Waits until all other sessions have ended, then returns the row versions so far, and whether
    /// all had ended.
    pub(super) async fn rows(&mut self) -> Result<Option<Rows>, Error> {
        if self.connection.is_none() {
            return Ok(None);
        }
        let deadline = Instant::now() + QUIET;
        let alone = loop {
            let row = self.ask(OTHERS.to_owned()).await.map_err(unreadable)?;
            let others: i64 = row
                .map_or(Ok(0), |row| row.try_get(0))
                .map_err(unreadable)?;
            if others == 0 || Instant::now() > deadline {
                break others == 0;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let Some(row) = self.ask(ROWS.to_owned()).await.map_err(unreadable)? else {
            return Ok(None);
        };
        let number = |at: usize| row.try_get::<i64, _>(at).map_err(unreadable);
        Ok(Some(Rows {
            inserted: number(0)?,
            updated: number(1)?,
            hot: number(2)?,
            deleted: number(3)?,
            dead: number(4)?,
            alone,
        }))
    }

    /// Vacuums the tables, so that each run begins with the same state. For a user without the
    /// right the server only warns, and the run measures the tables as they are.
    pub(super) async fn vacuum(&mut self) -> Result<(), Error> {
        let row = self.ask(TABLES.to_owned()).await.map_err(unreadable)?;
        let tables = row.map(|row| row.try_get::<Option<String>, _>(0));
        if let Some(tables) = tables.transpose().map_err(unreadable)?.flatten() {
            self.ask(format!("VACUUM {tables}"))
                .await
                .map_err(unreadable)?;
        }
        Ok(())
    }
}

fn unreadable(error: sqlx::Error) -> Error {
    Error::Failed(format!("the database's counters can't be read: {error}"))
}
