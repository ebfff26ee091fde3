//! The rows of the nodes.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use uuid::Uuid;

use super::PgStore;
use super::sql::unexpired;
use crate::job::scope::Scope;
use crate::job::{Lane, NodeId};
use crate::store::error::StoreError;
use crate::store::membership::{
    READ_BYTES, ROW_BYTES, kept_as_text, read_kept, silence, too_large,
};
use crate::store::statements::Members;
use crate::store::{Holder, MAX_NODES, Membership, NodeView, readable};

/// Writes the row of a node. Inserts it again if it was removed meanwhile.
const WRITE: &str = "
INSERT INTO jobwire.node (id, revision, types, lanes, deployments, categories, tenants, host, version, transport,
    min_priority, max_priority, attempts_kept)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::jsonb)
ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, types = excluded.types, lanes = excluded.lanes,
    deployments = excluded.deployments, categories = excluded.categories, tenants = excluded.tenants,
    host = excluded.host, version = excluded.version, transport = excluded.transport,
    min_priority = excluded.min_priority, max_priority = excluded.max_priority,
    attempts_kept = excluded.attempts_kept, seen_at = clock_timestamp()";

async fn write(pool: &PgPool, node: &Membership) -> Result<(), StoreError> {
    let lanes: Vec<&str> = node.lanes.iter().map(|lane| &*lane.0).collect();
    let names = |names: &crate::job::scope::Names| {
        let names = names.as_ref();
        names.map(|names| names.iter().cloned().collect::<Vec<String>>())
    };
    sqlx::query(WRITE)
        .bind(node.id.0)
        .bind(node.revision)
        .bind(&node.types)
        .bind(lanes)
        .bind(names(&node.scope.deployments))
        .bind(names(&node.scope.categories))
        .bind(names(&node.scope.tenants))
        .bind(&node.host)
        .bind(&node.version)
        .bind(&node.transport)
        .bind(node.scope.min_priority)
        .bind(node.scope.max_priority)
        .bind(kept_as_text(&node.attempts_kept))
        .execute(pool)
        .await?;
    Ok(())
}

const LEAVE: &str = "DELETE FROM jobwire.node WHERE id = $1";

async fn leave(pool: &PgPool, node: NodeId) -> Result<(), StoreError> {
    sqlx::query(LEAVE).bind(node.0).execute(pool).await?;
    Ok(())
}

/// Selects the nodes that were seen last, if there are too many. Rows from the future come last, so
/// forged ones hide no node. They are read: the clock may have been set back, and their nodes may live.
///
/// Large rows are left out, by their sizes. `small` knows the size on disk only, which costs nothing:
/// a row that is decompressed to be measured may be a hundred times as large. A row without a value of
/// `n` is left out.
const READ: &str = "
WITH latest AS MATERIALIZED (
    SELECT id, row_number() OVER (ORDER BY seen_at > clock_timestamp(), abs(extract(epoch FROM clock_timestamp() - seen_at))) AS place,
        pg_column_size(types) + pg_column_size(lanes) + coalesce(pg_column_size(deployments), 0)
            + coalesce(pg_column_size(categories), 0) + coalesce(pg_column_size(tenants), 0)
            + coalesce(pg_column_size(attempts_kept), 0) AS bytes
    FROM jobwire.node ORDER BY place LIMIT $1
), small AS MATERIALIZED (
    SELECT id FROM (SELECT id, sum(bytes) OVER (ORDER BY bytes, id) AS upto FROM latest) l WHERE upto <= $4
), measured AS MATERIALIZED (
    SELECT id, pg_column_size(types || '{}') + pg_column_size(lanes || '{}') + pg_column_size(deployments || '{}')
            + pg_column_size(categories || '{}') + pg_column_size(tenants || '{}')
            + coalesce(pg_column_size(attempts_kept || '{}'), 0) AS bytes
    FROM jobwire.node WHERE id = ANY(ARRAY(SELECT id FROM small))
), fit AS MATERIALIZED (
    SELECT id FROM (SELECT id, bytes, sum(bytes) OVER (ORDER BY bytes, id) AS upto FROM measured) m
    WHERE bytes <= $2 AND upto <= $3
)
SELECT l.id, greatest(l.bytes, m.bytes)::bigint AS bytes, n.id IS NOT NULL AS fits, n.revision, n.types, n.lanes, n.deployments,
    n.categories, n.tenants, n.host, n.version, n.transport, n.started_at, n.seen_at, n.min_priority, n.max_priority,
    n.attempts_kept::text AS attempts_kept,
    extract(epoch FROM clock_timestamp() - n.seen_at)::double precision AS age
FROM latest l LEFT JOIN measured m ON m.id = l.id
LEFT JOIN (SELECT * FROM jobwire.node WHERE id = ANY(ARRAY(SELECT id FROM fit))) n ON n.id = l.id
ORDER BY l.place";

/// Maximum number of bytes on disk of the rows that are decompressed for a read.
const STORED_BYTES: usize = READ_BYTES / 4;

async fn read(pool: &PgPool) -> Result<Vec<NodeView>, StoreError> {
    let rows = sqlx::query(READ)
        .bind(MAX_NODES as i64)
        .bind(ROW_BYTES as i64)
        .bind(READ_BYTES as i64)
        .bind(STORED_BYTES as i64);
    let rows = rows.fetch_all(pool).await?;
    Ok(readable(rows.iter().map(view)))
}

fn view(row: &PgRow) -> Result<NodeView, StoreError> {
    let id = NodeId(row.try_get("id")?);
    if !row.try_get("fits")? {
        return Err(too_large(id, row.try_get("bytes")?));
    }
    // A row that another program wrote may have NULL among its names.
    let texts = |column: &str| -> Result<Option<Vec<String>>, StoreError> {
        let texts: Option<Vec<Option<String>>> = row.try_get(column)?;
        Ok(texts.map(|texts| texts.into_iter().flatten().collect()))
    };
    let names =
        |column| Ok::<_, StoreError>(texts(column)?.map(|names| names.into_iter().collect()));
    let all = |column| Ok::<_, StoreError>(texts(column)?.unwrap_or_default());
    let scope = Scope {
        deployments: names("deployments")?,
        categories: names("categories")?,
        tenants: names("tenants")?,
        min_priority: row.try_get("min_priority")?,
        max_priority: row.try_get("max_priority")?,
    };
    Ok(NodeView {
        membership: Membership {
            id,
            revision: row.try_get("revision")?,
            types: all("types")?,
            lanes: all("lanes")?.into_iter().map(Lane).collect(),
            scope,
            host: row.try_get("host")?,
            version: row.try_get("version")?,
            transport: row.try_get("transport")?,
            attempts_kept: read_kept(row.try_get("attempts_kept")?),
        },
        started_at: row.try_get("started_at")?,
        seen_at: row.try_get("seen_at")?,
        silent_for: silence(row.try_get("age")?),
    })
}

const HOLDERS: &str = concat!(
    "
SELECT l.owner, count(*) AS jobs, extract(epoch FROM max(l.expires_at) - clock_timestamp())::double precision AS remaining
FROM jobwire.job_lease l WHERE l.owner IS NOT NULL AND ",
    unexpired!("l"),
    " GROUP BY l.owner ORDER BY max(l.expires_at) DESC LIMIT $1"
);

async fn holders(pool: &PgPool, limit: i64) -> Result<Vec<Holder>, StoreError> {
    let rows = sqlx::query(HOLDERS).bind(limit).fetch_all(pool).await?;
    let holder = |row: &PgRow| {
        Ok(Holder {
            owner: NodeId(row.try_get("owner")?),
            jobs: row.try_get::<i64, _>("jobs")?.unsigned_abs(),
            remaining: Duration::try_from_secs_f64(row.try_get("remaining")?).unwrap_or_default(),
        })
    };
    rows.iter().map(holder).collect()
}

/// Deletes the rows of silent nodes, and those from the future, but never that of a node that is heard.
/// Skips locked rows. A living node writes its row again within a minute.
const FORGET: &str = "
DELETE FROM jobwire.node WHERE id IN (
    SELECT id FROM jobwire.node WHERE seen_at NOT BETWEEN clock_timestamp() - $1 AND clock_timestamp() + interval '5 minutes'
        AND id <> ALL($2) FOR UPDATE SKIP LOCKED)";

async fn forget(pool: &PgPool, silent_for: Duration, heard: &[NodeId]) -> Result<u64, StoreError> {
    let heard: Vec<Uuid> = heard.iter().map(|id| id.0).collect();
    let forget = sqlx::query(FORGET).bind(silent_for).bind(heard);
    Ok(forget.execute(pool).await?.rows_affected())
}

impl Members for PgStore {
    async fn write_membership(&self, node: &Membership) -> Result<(), StoreError> {
        write(&self.pool.inner, node).await
    }

    async fn delete_node(&self, node: NodeId) -> Result<(), StoreError> {
        leave(&self.pool.inner, node).await
    }

    async fn delete_silent_nodes(
        &self,
        silent_for: Duration,
        heard: &[NodeId],
    ) -> Result<u64, StoreError> {
        forget(&self.pool.inner, silent_for, heard).await
    }

    async fn read_holders(&self, limit: i64) -> Result<Vec<Holder>, StoreError> {
        holders(&self.pool.inner, limit).await
    }

    async fn read_nodes(&self) -> Result<Vec<NodeView>, StoreError> {
        read(&self.pool.inner).await
    }
}
