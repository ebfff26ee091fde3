//! The rows of keys, and those of permits: borrowed ones, and those that cool down after a node has
//! handed them over.

use sqlx::{Row, SqliteConnection};

use crate::store::error::StoreError;
use crate::store::permits::cooling::{Cooling, micros, row};
use crate::store::permits::share::Standing;
use crate::store::permits::{COUNTED, KeyRequest, PermitKey, PermitRequest};
use crate::store::sqlite::decode;

const ENTER: &str = "
INSERT INTO permit_key (limit_name, key, size, used_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (limit_name, key) DO UPDATE SET size = excluded.size, used_at = excluded.used_at";

/// Reads the state of a key. The rows of asking jobs do not count.
const STANDING: &str = "
SELECT
    (SELECT coalesce(sum(number), 0) FROM permit WHERE limit_name = ?1 AND key = ?2 AND node <> ?3),
    (SELECT coalesce(sum(number), 0) FROM permit WHERE limit_name = ?1 AND key = ?2 AND node = ?3),
    (SELECT count(*) FROM waiting_job
     WHERE limit_name = ?1 AND key = ?2 AND woken_at > ?5 AND woken_at <= ?7 AND job_id NOT IN (SELECT value FROM json_each(?4))),
    (SELECT count(*) FROM (
        SELECT 1 FROM waiting_job
        WHERE limit_name = ?1 AND key = ?2 AND woken_at IS NULL AND job_id NOT IN (SELECT value FROM json_each(?4))
        LIMIT ?6))";

/// Writes the permits of a node. They expire a cool-down after the end of its trust.
const BORROW: &str = "
INSERT INTO permit (limit_name, key, node, number, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (limit_name, key, node) DO UPDATE SET number = excluded.number, expires_at = excluded.expires_at";

const GIVE_BACK: &str = "DELETE FROM permit WHERE limit_name = ?1 AND key = ?2 AND node = ?3";

/// Writes permits that cool down without a node.
const COOL: &str = "
INSERT INTO permit AS p (limit_name, key, node, number, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (limit_name, key, node) DO UPDATE
    SET number = min(p.number + excluded.number, 2147483647), expires_at = max(p.expires_at, excluded.expires_at)";

/// Deletes the row of a key of which no node has a permit and no job waits.
const LEAVE: &str = "
DELETE FROM permit_key WHERE limit_name = ?1 AND key = ?2
  AND NOT EXISTS (SELECT 1 FROM permit p WHERE p.limit_name = ?1 AND p.key = ?2)
  AND NOT EXISTS (SELECT 1 FROM waiting_job w WHERE w.limit_name = ?1 AND w.key = ?2 AND w.woken_at IS NULL)";

/// Writes the row of a key, and reads its state.
pub(super) async fn standing(
    connection: &mut SqliteConnection,
    request: &PermitRequest,
    of: &KeyRequest,
    asking: &str,
    now: i64,
) -> Result<Standing, StoreError> {
    sqlx::query(ENTER)
        .bind(&of.key.limit)
        .bind(&of.key.key)
        .bind(of.size)
        .bind(now)
        .execute(&mut *connection)
        .await?;
    let row = sqlx::query(STANDING)
        .bind(&of.key.limit)
        .bind(&of.key.key)
        .bind(request.node.to_string())
        .bind(asking)
        .bind(super::reserved_since(now))
        .bind(COUNTED)
        .bind(now)
        .fetch_one(connection)
        .await?;
    Ok(Standing {
        others: row.try_get(0)?,
        mine: row.try_get(1)?,
        reserved: row.try_get(2)?,
        waiting: row.try_get(3)?,
    })
}

/// Writes the permits of the node.
pub(super) async fn borrow(
    connection: &mut SqliteConnection,
    request: &PermitRequest,
    of: &KeyRequest,
    number: i32,
    now: i64,
) -> Result<(), StoreError> {
    let row = if number > 0 {
        sqlx::query(BORROW)
    } else {
        sqlx::query(GIVE_BACK)
    };
    let mut row = row
        .bind(&of.key.limit)
        .bind(&of.key.key)
        .bind(request.node.to_string());
    if number > 0 {
        row = row
            .bind(number)
            .bind(decode::later(now, request.lease + of.cool_down));
    }
    row.execute(connection).await?;
    Ok(())
}

/// Writes permits that the node hands over. The rest of each was measured before the transaction.
pub(super) async fn cool(
    connection: &mut SqliteConnection,
    of: &KeyRequest,
    cooling: &[Cooling],
    now: i64,
) -> Result<(), StoreError> {
    for one in cooling {
        let expires_at = now.saturating_add(micros(one.rest));
        sqlx::query(COOL)
            .bind(&of.key.limit)
            .bind(&of.key.key)
            .bind(row(expires_at, of.cool_down).to_string())
            .bind(one.number)
            .bind(expires_at)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Deletes the row of this key, if nothing uses it.
pub(super) async fn leave(
    connection: &mut SqliteConnection,
    key: &PermitKey,
) -> Result<(), StoreError> {
    let leave = sqlx::query(LEAVE).bind(&key.limit).bind(&key.key);
    leave.execute(connection).await?;
    Ok(())
}
