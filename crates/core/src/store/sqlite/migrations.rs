//! The migrations of the schema.

use sqlx::migrate::Migrator;

use super::SqliteStore;
use crate::store::error::StoreError;
use crate::store::{Result, SCHEMA_VERSION};

static MIGRATOR: Migrator = sqlx::migrate!("migrations/sqlite");

/// Returns the migrations, with their history in the table `jobwire_migration`. Newer migrations in
/// the database are accepted here: [`Store::check`](crate::Store::check) decides by `schema_version` whether this
/// program works with them.
#[must_use]
pub fn migrator() -> Migrator {
    Migrator {
        ignore_missing: true,
        table_name: "jobwire_migration".into(),
        migrations: MIGRATOR.migrations.clone(),
        ..Migrator::DEFAULT
    }
}

impl SqliteStore {
    /// Migrates the schema to this program's version, entirely or not at all.
    ///
    /// # Errors
    /// [`StoreError::Migration`] if a migration fails, or the error of the database.
    pub async fn migrate(&self) -> Result<()> {
        // One transaction around all migrations: SQLite has no lock that separates two migrating
        // processes. (The public `run` would do, if its future over a connection were `Send`.)
        let mut tx = self.write().await?;
        migrator()
            .run_direct(None, &mut *tx, false)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))?;
        Ok(tx.commit().await?)
    }

    /// Reverts the schema to a version; 0 removes everything. Each migration is one transaction.
    ///
    /// # Errors
    /// [`StoreError::Migration`] if a migration fails.
    pub async fn migrate_down(&self, version: i64) -> Result<()> {
        migrator()
            .undo(&self.writer, version)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))
    }
}

/// The newest schema version of this program.
const _: () = assert!(
    SCHEMA_VERSION == 20,
    "add the migration's row to schema_version"
);
