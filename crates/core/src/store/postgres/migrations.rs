//! The migrations of the schema.

use sqlx::PgPool;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::PgStore;
use crate::store::error::StoreError;
use crate::store::statements::Database;
use crate::store::{Result, SCHEMA_VERSION, SchemaStatus};

static MIGRATOR: Migrator = sqlx::migrate!("migrations/postgres");

/// Returns the migrations, with their history in Jobwire's own schema. Newer migrations in the
/// database are accepted here: [`Store::check`](crate::Store::check) decides by `schema_version` whether this program
/// works with them.
#[must_use]
pub fn migrator() -> Migrator {
    Migrator {
        ignore_missing: true,
        table_name: "jobwire.migration".into(),
        create_schemas: vec!["jobwire".into()].into(),
        migrations: MIGRATOR.migrations.clone(),
        ..Migrator::DEFAULT
    }
}

impl PgStore {
    /// Migrates the schema to this program's version. A role that may not create a schema can call
    /// this when the schema has that version.
    ///
    /// # Errors
    /// Fails if the database refuses a migration. Each migration is one transaction.
    pub async fn migrate(&self) -> Result<()> {
        if let SchemaStatus::Ready { .. } = self.read_schema().await? {
            return Ok(());
        }
        let patient = self.patient().await?;
        migrator()
            .run(&patient)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))
    }

    /// Migrates the schema down to a version; 0 removes everything.
    ///
    /// # Errors
    /// Fails if the database refuses a migration.
    pub async fn migrate_down(&self, version: i64) -> Result<()> {
        let patient = self.patient().await?;
        migrator()
            .undo(&patient, version)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))
    }

    /// Returns a pool of one connection without a limit for statements: an index takes as long as
    /// its table needs, and a migration waits for its locks itself.
    pub(super) async fn patient(&self) -> Result<PgPool> {
        let options = PgConnectOptions::clone(&self.pool.inner.connect_options());
        let pool = PgPoolOptions::new().max_connections(1);
        let pool = pool.connect_with(options).await?;
        sqlx::query("SET statement_timeout = 0")
            .execute(&pool)
            .await?;
        Ok(pool)
    }
}

/// The schema version of this program's newest migration.
const _: () = assert!(
    SCHEMA_VERSION == 20,
    "add the migration's row to schema_version"
);
