//! The rows of the nodes that serve an engine.

use std::time::Duration;

use jobwire_core::job::scope::{Names, Scope};
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{MAX_NODES, Membership, NodeView, silence};
use jobwire_core::{Lane, NodeId, StoreError};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use uuid::Uuid;

use crate::priorities;

/// Writes the row of a node. Inserts it again if it was removed meanwhile.
const WRITE: &str = "
INSERT INTO jobwire_engine.node (engine, id, revision, types, lanes, deployments, categories, tenants, host, version, transport)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, types = excluded.types, lanes = excluded.lanes,
    deployments = excluded.deployments, categories = excluded.categories, tenants = excluded.tenants,
    host = excluded.host, version = excluded.version, transport = excluded.transport, seen_at = clock_timestamp()";

pub(crate) async fn write(
    pool: &PgPool,
    engine: &str,
    node: &Membership,
) -> Result<(), StoreError> {
    priorities::check(node)?;
    let lanes: Vec<&str> = node.lanes.iter().map(Lane::as_str).collect();
    let names = |names: &Names| {
        let names = names.as_ref();
        names.map(|names| names.iter().cloned().collect::<Vec<String>>())
    };
    sqlx::query(WRITE)
        .bind(engine)
        .bind(node.id.uuid())
        .bind(node.revision)
        .bind(&node.types)
        .bind(lanes)
        .bind(names(&node.scope.deployments))
        .bind(names(&node.scope.categories))
        .bind(names(&node.scope.tenants))
        .bind(&node.host)
        .bind(&node.version)
        .bind(&node.transport)
        .execute(pool)
        .await?;
    Ok(())
}

pub(crate) async fn leave(pool: &PgPool, node: NodeId) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM jobwire_engine.node WHERE id = $1")
        .bind(node.uuid())
        .execute(pool)
        .await?;
    Ok(())
}

/// Selects the nodes that were seen last, if there are too many. Rows from the future come last.
const READ: &str = "
SELECT id, revision, types, lanes, deployments, categories, tenants, host, version, transport, started_at, seen_at,
    extract(epoch FROM clock_timestamp() - seen_at)::double precision AS age
FROM jobwire_engine.node WHERE engine = $1
ORDER BY seen_at > clock_timestamp(), abs(extract(epoch FROM clock_timestamp() - seen_at)) LIMIT $2";

pub(crate) async fn read(pool: &PgPool, engine: &str) -> Result<Vec<NodeView>, StoreError> {
    let limit = i64::try_from(MAX_NODES).unwrap_or(i64::MAX);
    let rows = sqlx::query(READ).bind(engine).bind(limit);
    let rows = rows.fetch_all(pool).await?;
    let told = rows.iter().map(|row| {
        view(row).inspect_err(|error| {
            tracing::warn!(%error, "a row of the table `node` can't be read; its node is ignored");
        })
    });
    Ok(told.flatten().collect())
}

fn view(row: &PgRow) -> Result<NodeView, StoreError> {
    let names = |column: &str| -> Result<Names, StoreError> {
        let names: Option<Vec<String>> = row.try_get(column)?;
        Ok(names.map(|names| names.into_iter().collect()))
    };
    let lanes: Vec<String> = row.try_get("lanes")?;
    let mut scope = Scope::default();
    scope.deployments = names("deployments")?;
    scope.categories = names("categories")?;
    scope.tenants = names("tenants")?;
    Ok(NodeView {
        membership: Membership {
            id: NodeId::from_uuid(row.try_get::<Uuid, _>("id")?),
            revision: row.try_get("revision")?,
            types: row.try_get("types")?,
            lanes: lanes.into_iter().map(Lane::unchecked).collect(),
            scope,
            host: row.try_get("host")?,
            version: row.try_get("version")?,
            transport: row.try_get("transport")?,
            attempts_kept: AttemptsKept::new(),
        },
        started_at: row.try_get("started_at")?,
        seen_at: row.try_get("seen_at")?,
        silent_for: silence(row.try_get("age")?),
    })
}

/// Deletes the rows of silent nodes, and those from the future. Skips locked rows.
const FORGET: &str = "
DELETE FROM jobwire_engine.node WHERE id IN (
    SELECT id FROM jobwire_engine.node
    WHERE engine = $1 AND seen_at NOT BETWEEN clock_timestamp() - $2 AND clock_timestamp() + interval '5 minutes'
        AND id <> ALL($3) FOR UPDATE SKIP LOCKED)";

pub(crate) async fn forget(
    pool: &PgPool,
    engine: &str,
    silent_for: Duration,
    heard: &[NodeId],
) -> Result<u64, StoreError> {
    let heard: Vec<Uuid> = heard.iter().map(|id| id.uuid()).collect();
    let forget = sqlx::query(FORGET)
        .bind(engine)
        .bind(silent_for)
        .bind(heard);
    Ok(forget.execute(pool).await?.rows_affected())
}
