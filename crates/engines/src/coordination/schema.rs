//! The schema `jobwire_engine`: its migrations, and the check that it fits this program.

use jobwire_core::StoreError;
use jobwire_core::store::SchemaStatus;
use sqlx::migrate::Migrator;
use sqlx::{PgExecutor, PgPool};

static MIGRATOR: Migrator = sqlx::migrate!("migrations/engines");

/// The schema version of this program's newest migration.
pub const SCHEMA_VERSION: i32 = 1;

fn migrator() -> Migrator {
    Migrator {
        ignore_missing: true,
        table_name: "jobwire_engine.migration".into(),
        create_schemas: vec!["jobwire_engine".into()].into(),
        migrations: MIGRATOR.migrations.clone(),
        ..Migrator::DEFAULT
    }
}

/// Creates the schema, or brings it to this program's version.
///
/// # Errors
/// The database's error. Each migration is one transaction.
pub(crate) async fn migrate(pool: &PgPool) -> Result<(), StoreError> {
    let run = migrator().run(pool).await;
    run.map_err(|error| StoreError::Migration(Box::new(error)))
}

/// Removes the rows of an engine, and the schema with all its objects if no other engine has a row.
/// Otherwise the schema stays: the other engine's nodes need it, and its numbers of locks must not begin
/// again.
///
/// # Errors
/// The database's error.
pub(crate) async fn remove(pool: &PgPool, engine: &str) -> Result<(), StoreError> {
    let mut tx = pool.begin().await?;
    let mut has_others = false;
    if exists(&mut *tx).await? {
        // No node writes its row meanwhile.
        sqlx::query(
            "LOCK TABLE jobwire_engine.node, jobwire_engine.leader IN SHARE ROW EXCLUSIVE MODE",
        )
        .execute(&mut *tx)
        .await?;
        for delete in [
            "DELETE FROM jobwire_engine.node WHERE engine = $1",
            "DELETE FROM jobwire_engine.leader WHERE engine = $1",
        ] {
            sqlx::query(delete).bind(engine).execute(&mut *tx).await?;
        }
        has_others = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM jobwire_engine.node) OR EXISTS (SELECT FROM jobwire_engine.leader)",
        )
        .fetch_one(&mut *tx)
        .await?;
    }
    if !has_others {
        sqlx::query("DROP SCHEMA IF EXISTS jobwire_engine CASCADE")
            .execute(&mut *tx)
            .await?;
    }
    Ok(tx.commit().await?)
}

const NEWEST: &str =
    "SELECT version, readable_by FROM jobwire_engine.schema_version ORDER BY version DESC LIMIT 1";

/// Returns whether the schema fits this program.
pub(crate) async fn status(pool: &PgPool) -> Result<SchemaStatus, StoreError> {
    let (server, exists): (String, bool) = sqlx::query_as(
        "SELECT current_setting('server_version'), to_regclass('jobwire_engine.schema_version') IS \
         NOT NULL",
    )
    .fetch_one(pool)
    .await?;
    if !exists {
        return Err(StoreError::Schema(
            "the engine's database has no schema `jobwire_engine`; run `jobwire engine init`"
                .to_owned(),
        ));
    }
    let (version, readable_by): (i32, i32) = sqlx::query_as(NEWEST).fetch_one(pool).await?;
    if readable_by > SCHEMA_VERSION {
        return Err(StoreError::Schema(format!(
            "the schema `jobwire_engine` has version {version}, which needs a program that knows \
             version {readable_by} or newer; this program knows {SCHEMA_VERSION}: upgrade it"
        )));
    }
    if version < SCHEMA_VERSION {
        return Err(StoreError::Schema(format!(
            "the schema `jobwire_engine` has version {version}, this program needs \
             {SCHEMA_VERSION}; run `jobwire engine init`"
        )));
    }
    Ok(SchemaStatus::Ready { version, server })
}

/// Returns whether the schema exists.
pub(crate) async fn exists(at: impl PgExecutor<'_>) -> Result<bool, StoreError> {
    let exists = sqlx::query_scalar("SELECT to_regclass('jobwire_engine.node') IS NOT NULL");
    Ok(exists.fetch_one(at).await?)
}
