//! The directory in which a test runs the program, and the database that the program uses there.
//!
//! Operators give the same commands on SQLite and on PostgreSQL. So the body of a test takes a
//! [`Home`], and `on_both_databases` makes a test of it for each database. The broker is the default,
//! `in-process:`, so that only the database differs. A test of arguments alone, or of minutes of a
//! node, runs on SQLite only.

use std::path::PathBuf;

use jobwire_core::store::SqlStore;
use jobwire_core::{PgStore, SqliteStore};
use jobwire_tests::{Program, Scratch, shared};

/// Where a test runs the program.
pub(super) trait Place {
    /// Returns the directory.
    fn directory(&self) -> &Scratch;
    /// Returns the program in this directory, with its database.
    fn program(&self) -> Program;
}

/// A directory without settings: the program takes its default database.
impl Place for Scratch {
    fn directory(&self) -> &Scratch {
        self
    }

    fn program(&self) -> Program {
        Program::jobwire().in_directory(self.path())
    }
}

/// A directory with a database of its own, which has Jobwire's tables.
pub(super) struct Home<S> {
    directory: Scratch,
    /// The URL of the database, unless the program finds it by itself.
    url: Option<String>,
    /// The database.
    pub(super) store: S,
}

impl<S: Base> Home<S> {
    pub(super) async fn new() -> Self {
        let directory = Scratch::new();
        let (store, url) = S::open(&directory).await;
        Self {
            directory,
            url,
            store,
        }
    }

    pub(super) fn url(&self) -> &str {
        self.url.as_deref().unwrap_or("sqlite:jobwire.db")
    }

    /// Writes a file into the directory, and returns its path.
    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.directory.write(name, content)
    }
}

impl<S> Place for Home<S> {
    fn directory(&self) -> &Scratch {
        &self.directory
    }

    fn program(&self) -> Program {
        let program = self.directory.program();
        match &self.url {
            None => program,
            Some(url) => program.env("JOBWIRE_DATABASE_URL", url),
        }
    }
}

/// A database of a test.
pub(super) trait Base: SqlStore {
    /// Creates a database with Jobwire's tables. Returns it with its URL, unless the program finds it
    /// by itself.
    async fn open(directory: &Scratch) -> (Self, Option<String>);

    /// Runs statements in which `{s}` is the schema with a dot, `{now}` the time, `{second}` one
    /// second, and `{past}` the first second of the year 2020.
    async fn execute(&self, sql: &str);

    /// Lets the database refuse each row that is deleted or inserted (`event`) under a condition,
    /// with this message.
    async fn refuse(&self, event: &str, table: &str, condition: &str, message: &str);
}

impl Base for SqliteStore {
    async fn open(directory: &Scratch) -> (Self, Option<String>) {
        (super::open(&directory.join("jobwire.db")).await, None)
    }

    async fn execute(&self, sql: &str) {
        let sql = sql
            .replace("{s}", "")
            .replace("{second}", "1000000")
            .replace("{past}", "1577836800000000")
            .replace("{now}", "CAST(unixepoch('subsec') * 1000000 AS INTEGER)");
        super::execute(self, &sql).await;
    }

    async fn refuse(&self, event: &str, table: &str, condition: &str, message: &str) {
        let sql = format!(
            "CREATE TRIGGER refuse BEFORE {event} ON {table} WHEN {condition}
             BEGIN SELECT RAISE(ABORT, '{message}'); END"
        );
        super::execute(self, &sql).await;
    }
}

impl Base for PgStore {
    async fn open(_: &Scratch) -> (Self, Option<String>) {
        let url = shared::postgres().await.migrated_database().await;
        let store = crate::world::patient(&url).await;
        (store, Some(url))
    }

    async fn execute(&self, sql: &str) {
        let sql = sql
            .replace("{s}", "jobwire.")
            .replace("{second}", "interval '1 second'")
            .replace("{past}", "timestamptz '2020-01-01 00:00:00Z'")
            .replace("{now}", "clock_timestamp()");
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(self.pool());
        done.await.unwrap();
    }

    async fn refuse(&self, event: &str, table: &str, condition: &str, message: &str) {
        let message = message.replace('%', "%%");
        let sql = format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE '{message}' USING ERRCODE = 'check_violation'; END $$;
             CREATE TRIGGER refuse BEFORE {event} ON {{s}}{table}
                FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()"
        );
        self.execute(&sql).await;
    }
}
