//! Connecting: one connection writes, the others read.

use std::path::PathBuf;

use sqlx::Connection;
use sqlx::sqlite::SqlitePoolOptions;

use super::address::{connect_options, is_in_memory, unusable};
use super::{SqliteOptions, SqliteStore};
use crate::job::calendar::Calendars;
use crate::store::Result;
use crate::store::poison::Refusals;

/// The length of a leap: more fences than can be drawn before one of them reaches the disk.
const LEAP: i64 = 1 << 32;

impl SqliteStore {
    /// Connects with default options. The URL is `sqlite:` and a path, or `sqlite::memory:` for a
    /// database that lives as long as the store. A missing file is created.
    ///
    /// # Errors
    /// [`StoreError::Config`](crate::StoreError::Config) if the URL or the path is unusable.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, SqliteOptions::default()).await
    }

    /// Connects with these options.
    ///
    /// # Errors
    /// The same as those of [`connect`](Self::connect).
    pub async fn connect_with(url: &str, options: SqliteOptions) -> Result<Self> {
        let connect = connect_options(url, options.create)?.busy_timeout(options.busy_timeout);
        let lock_file = (!is_in_memory(url)).then(|| {
            let mut path = connect.get_filename().to_path_buf().into_os_string();
            path.push("-node");
            PathBuf::from(path)
        });
        let pool = |size| {
            SqlitePoolOptions::new()
                .max_connections(size)
                .acquire_timeout(options.deadline)
                // A file does not break as a network connection does, and a database in memory
                // lives in its last connection.
                .test_before_acquire(false)
                .max_lifetime(None)
                .idle_timeout(None)
        };
        let in_memory = is_in_memory(url);
        let in_file = !in_memory;
        let writer = pool(1)
            // SQLite may end a transaction by itself (full disk, `OR ROLLBACK`). Then sqlx's own
            // ROLLBACK fails, and sqlx begins no other transaction on this connection. A file is
            // opened again; a database in memory has no other connection.
            .after_release(move |connection, _| {
                Box::pin(async move {
                    // The ping waits for a queued ROLLBACK.
                    connection.ping().await?;
                    Ok(!(in_file && connection.is_in_transaction()))
                })
            })
            .connect_lazy_with(connect.clone());
        let (readers, watcher) = if in_memory {
            (writer.clone(), None)
        } else {
            let connect = connect.pragma("query_only", "ON");
            (
                pool(options.readers.max(1)).connect_lazy_with(connect.clone()),
                Some(pool(1).connect_lazy_with(connect)),
            )
        };
        let store = Self {
            writer,
            readers,
            watcher,
            lock_file,
            deadline: options.deadline,
            calendars: Calendars::default(),
            refusals: Refusals::default(),
        };
        store.probe().await.map_err(|e| unusable(url, e))?;
        store.leap().await?;
        Ok(store)
    }

    /// Advances the fence sequence, so that fences never repeat (protocol rule 1): a power cut may
    /// have lost the last ones before they reached the disk. Waits for the disk once.
    async fn leap(&self) -> Result<(), sqlx::Error> {
        let mut writer = self.writer.acquire().await?;
        sqlx::raw_sql("PRAGMA synchronous = FULL")
            .execute(&mut *writer)
            .await?;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let exists: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'counter')",
        )
        .fetch_one(&mut *tx)
        .await?;
        if exists {
            sqlx::query("UPDATE counter SET value = value + ?1 WHERE name = 'fence_seq'")
                .bind(LEAP)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        sqlx::raw_sql("PRAGMA synchronous = NORMAL")
            .execute(&mut *writer)
            .await?;
        Ok(())
    }

    /// Reports a problem with the path or the file at once. SQLite begins a writing transaction on
    /// a read-only file without an error, so this makes a write and rolls it back.
    async fn probe(&self) -> Result<(), sqlx::Error> {
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("CREATE TABLE jobwire_may_write (undone INTEGER)")
            .execute(&mut *tx)
            .await?;
        tx.rollback().await
    }
}
