//! The SQLite store, for one machine: an embedded node, tests, a first look.
//!
//! Each transition has its own file, with the same name as in the PostgreSQL store, and keeps the
//! same promises. The differences:
//!
//! * **One writer.** Every transition is a `BEGIN IMMEDIATE` transaction of a few plain statements
//!   over the one writing connection. Nothing changes between its first read and its last write, so
//!   there are no row locks, no skipped rows and no [`Busy`](super::Refusal::Busy). An open
//!   transaction of the application holds that connection, and all other transitions, renewals
//!   included, wait for it. Keep such transactions short.
//! * **The clock** is that of the machine, read once inside each transaction.
//! * **No transaction ids.** An error of COMMIT is final, and
//!   [`Store::committed`](crate::Store::committed) cannot resolve it.
//! * **No notice from other processes** except a counter of commits:
//!   [`Store::data_version`](crate::Store::data_version).

mod acting;
mod address;
mod aside;
mod attempts;
mod batch_members;
mod batches;
mod change;
mod claim;
mod complete;
mod connect;
mod database;
mod decode;
mod ending;
mod event_stream;
mod event_triggers;
mod exclusive;
mod fail;
mod find;
mod gate;
mod insert;
mod lanes;
mod leader_cycle;
mod lease;
mod lock;
mod membership;
mod migrations;
mod operate;
mod options;
mod orphans;
mod pending;
mod periodic;
mod permits;
mod priorities;
mod progress;
mod purge;
mod ranks;
mod renew;
mod sql;
mod suspend;
mod timers;
mod transactions;
mod unique;
mod unnamed;

use std::path::PathBuf;
use std::time::Duration;

use sqlx::Sqlite;
use sqlx::sqlite::SqlitePool;

pub use self::migrations::migrator;
pub use self::options::SqliteOptions;
use super::Result;
use super::poison::Refusals;
use crate::job::calendar::Calendars;
use crate::store::error::StoreError;

/// The SQLite store. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct SqliteStore {
    writer: SqlitePool,
    readers: SqlitePool,
    /// A separate connection, because `PRAGMA data_version` reports only commits of other
    /// connections. `None` in memory, where there are no others.
    watcher: Option<SqlitePool>,
    /// A file beside the database; `None` in memory.
    lock_file: Option<PathBuf>,
    deadline: Duration,
    calendars: Calendars,
    refusals: Refusals,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Returns a store that knows these [business calendars](crate::calendar), for clients and nodes.
    /// Give all programs of a fleet the same ones.
    #[must_use]
    pub fn with_calendars(mut self, calendars: Calendars) -> Self {
        self.calendars = calendars;
        self
    }

    /// Returns the one writing connection, as a pool, for the application's own statements. While
    /// it is in use, no job is locked, renewed or completed.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.writer
    }

    /// Opens a writing transaction. Waits here for other writers, so that no other change comes
    /// between its first read and its last write.
    ///
    /// # Errors
    /// [`StoreError::WriterBusy`], shortly before the deadline of the transition. The error of the
    /// deadline could not name the cause.
    async fn write(&self) -> Result<sqlx::Transaction<'static, Sqlite>> {
        let within = self.deadline.mul_f32(0.9);
        match tokio::time::timeout(within, self.writer.begin_with("BEGIN IMMEDIATE")).await {
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => Err(StoreError::WriterBusy(within)),
            Ok(begun) => Ok(begun?),
        }
    }
}
