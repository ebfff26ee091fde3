//! The rows of the nodes in the table `node`.

use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::sql::unexpired;
use super::{SqliteStore, decode};
use crate::job::scope::{Names, Scope};
use crate::job::{Lane, NodeId};
use crate::store::error::StoreError;
use crate::store::membership::{
    AHEAD, MAX_NAMES, READ_BYTES, ROW_BYTES, kept_as_text, read_kept, silence, too_large,
};
use crate::store::statements::Members;
use crate::store::{Holder, MAX_NODES, Membership, NodeView, readable};

const WRITE: &str = "
INSERT INTO node (id, revision, types, lanes, deployments, categories, tenants, host, version, transport, started_at, seen_at,
    min_priority, max_priority, attempts_kept)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11, ?12, ?13, ?14)
ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, types = excluded.types, lanes = excluded.lanes,
    deployments = excluded.deployments, categories = excluded.categories, tenants = excluded.tenants,
    host = excluded.host, version = excluded.version, transport = excluded.transport, seen_at = excluded.seen_at,
    min_priority = excluded.min_priority, max_priority = excluded.max_priority, attempts_kept = excluded.attempts_kept";

pub(super) const LEAVE: &str = "DELETE FROM node WHERE id = ?1";

/// Selects the nodes that were seen last, if there are too many. Rows from the future come last, so
/// forged ones hide no node. Large rows are left out, by their sizes: they have a size only. An id of another length is of no node.
///
/// The table is read as a whole (`+id`). A search by the id compares whole rows on its way, also large ones.
const READ: &str = "
WITH latest AS MATERIALIZED (
    SELECT id, seen_at, octet_length(types) + octet_length(lanes) + coalesce(octet_length(deployments), 0)
        + coalesce(octet_length(categories), 0) + coalesce(octet_length(tenants), 0) + coalesce(octet_length(attempts_kept), 0)
        + octet_length(host) + octet_length(version) + octet_length(transport) AS bytes
    FROM node WHERE octet_length(id) = 36 ORDER BY seen_at > ?2, abs(seen_at - ?2) LIMIT ?1
), fit AS MATERIALIZED (
    SELECT id FROM (SELECT id, bytes, sum(bytes) OVER (ORDER BY bytes, id) AS upto FROM latest)
    WHERE bytes <= ?3 AND upto <= ?4
)
SELECT * FROM (
    SELECT id, NULL AS left_out, revision, types, lanes, deployments, categories, tenants, host, version, transport, started_at,
        seen_at, min_priority, max_priority, attempts_kept
    FROM node WHERE +id IN (SELECT id FROM fit)
    UNION ALL
    SELECT id, bytes, 0, '', '', NULL, NULL, NULL, '', '', '', 0, seen_at, NULL, NULL, NULL
    FROM latest WHERE id NOT IN (SELECT id FROM fit)
) ORDER BY seen_at > ?2, abs(seen_at - ?2)";

/// Deletes the rows of silent nodes, and those from the future, but never that of a node that is heard.
const FORGET: &str = "
DELETE FROM node WHERE seen_at NOT BETWEEN ?1 AND ?3 AND id NOT IN (SELECT value FROM json_each(?2))";

const HOLDERS: &str = concat!(
    "
SELECT l.owner, count(*) AS jobs, max(l.expires_at) - ?2 AS remaining
FROM job_lease l WHERE l.owner IS NOT NULL AND ",
    unexpired!("l", "?2"),
    " GROUP BY l.owner ORDER BY max(l.expires_at) DESC LIMIT ?1"
);

impl Members for SqliteStore {
    async fn write_membership(&self, node: &Membership) -> Result<(), StoreError> {
        let names = |names: &Names| names.as_ref().map(decode::array).transpose();
        let mut tx = self.write().await?;
        sqlx::query(WRITE)
            .bind(node.id.to_string())
            .bind(node.revision)
            .bind(decode::array(&node.types)?)
            .bind(decode::array(node.lanes.iter().map(|lane| &lane.0))?)
            .bind(names(&node.scope.deployments)?)
            .bind(names(&node.scope.categories)?)
            .bind(names(&node.scope.tenants)?)
            .bind(&node.host)
            .bind(&node.version)
            .bind(&node.transport)
            .bind(decode::now_micros())
            .bind(node.scope.min_priority)
            .bind(node.scope.max_priority)
            .bind(kept_as_text(&node.attempts_kept))
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    async fn delete_node(&self, node: NodeId) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        let leave = sqlx::query(LEAVE).bind(node.to_string());
        leave.execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    async fn read_holders(&self, limit: i64) -> Result<Vec<Holder>, StoreError> {
        let query = sqlx::query(HOLDERS).bind(limit).bind(decode::now_micros());
        let rows = query.fetch_all(&self.readers).await?;
        let holder = |row: &SqliteRow| {
            let micros: i64 = row.try_get("remaining")?;
            Ok(Holder {
                owner: NodeId(decode::uuid(row, "owner")?),
                jobs: row.try_get::<i64, _>("jobs")?.unsigned_abs(),
                remaining: Duration::from_micros(micros.unsigned_abs()),
            })
        };
        rows.iter().map(holder).collect()
    }

    async fn read_nodes(&self) -> Result<Vec<NodeView>, StoreError> {
        let now = decode::now_micros();
        let rows = sqlx::query(READ)
            .bind(MAX_NODES as i64)
            .bind(now)
            .bind(ROW_BYTES as i64)
            .bind(READ_BYTES as i64);
        let rows = rows.fetch_all(&self.readers).await?;
        Ok(readable(rows.iter().map(|row| view(row, now))))
    }

    async fn delete_silent_nodes(
        &self,
        silent_for: Duration,
        heard: &[NodeId],
    ) -> Result<u64, StoreError> {
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let forget = sqlx::query(FORGET)
            .bind(now - (decode::later(now, silent_for) - now))
            .bind(decode::array(heard)?)
            .bind(decode::later(now, AHEAD));
        let forgotten = forget.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(forgotten)
    }
}

fn view(row: &SqliteRow, now: i64) -> Result<NodeView, StoreError> {
    if let Some(bytes) = row.try_get("left_out")? {
        return Err(too_large(decode::text(row, "id")?, bytes));
    }
    let read = |column: &str, text: String| {
        let bad = |why: &dyn std::fmt::Display| {
            StoreError::BadRow(format!("column `{column}` of table `node`: {why}"))
        };
        let names: Vec<String> = serde_json::from_str(&text).map_err(|e| bad(&e))?;
        if names.len() > MAX_NAMES {
            return Err(bad(&format!(
                "{} names, more than {MAX_NAMES}",
                names.len()
            )));
        }
        Ok(names)
    };
    let names = |column: &str| -> Result<Names, StoreError> {
        let text = decode::maybe_text(row, column)?;
        let names = text.map(|text| read(column, text)).transpose()?;
        Ok(names.map(|names| names.into_iter().collect()))
    };
    let lanes = read("lanes", decode::text(row, "lanes")?)?;
    let scope = Scope {
        deployments: names("deployments")?,
        categories: names("categories")?,
        tenants: names("tenants")?,
        min_priority: row.try_get("min_priority")?,
        max_priority: row.try_get("max_priority")?,
    };
    let seen_at: i64 = row.try_get("seen_at")?;
    Ok(NodeView {
        membership: Membership {
            id: decode::node_id(row, "id")?,
            revision: row.try_get("revision")?,
            types: read("types", decode::text(row, "types")?)?,
            lanes: lanes.into_iter().map(Lane).collect(),
            scope,
            host: decode::text(row, "host")?,
            version: decode::text(row, "version")?,
            transport: decode::text(row, "transport")?,
            attempts_kept: read_kept(decode::maybe_text(row, "attempts_kept")?.as_deref()),
        },
        started_at: decode::moment(row.try_get("started_at")?)?,
        seen_at: decode::moment(seen_at)?,
        silent_for: silence(now.saturating_sub(seen_at) as f64 / 1e6),
    })
}
