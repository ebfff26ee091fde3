//! The rows of keys: locked in order, read, and deleted with their last permit.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::names;
use crate::store::error::StoreError;
use crate::store::permits::share::Standing;
use crate::store::permits::{COUNTED, PermitKey, PermitRequest, RESERVED};

/// Writes the rows of keys, and so locks them, in order.
const ENTER: &str = "
INSERT INTO jobwire.permit_key AS k (limit_name, key, size, used_at)
SELECT u.limit_name, u.key, u.size, clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::int[]) AS u (limit_name, key, size)
ORDER BY u.limit_name, u.key
ON CONFLICT (limit_name, key) DO UPDATE SET size = excluded.size, used_at = excluded.used_at";

/// Locks the rows of this node, so that no other node deletes them as expired.
const LOCK_MINE: &str = "
SELECT p.limit_name FROM jobwire.permit p
JOIN unnest($1::text[], $2::text[]) AS u (limit_name, key) ON p.limit_name = u.limit_name AND p.key = u.key
WHERE p.node = $3 ORDER BY p.limit_name, p.key FOR UPDATE OF p";

/// Reads the state of keys. The rows of asking jobs do not count.
const STANDING: &str = "
SELECT
    (SELECT coalesce(sum(p.number), 0)::bigint FROM jobwire.permit p
     WHERE p.limit_name = u.limit_name AND p.key = u.key AND p.node <> $3),
    (SELECT coalesce(sum(p.number), 0)::bigint FROM jobwire.permit p
     WHERE p.limit_name = u.limit_name AND p.key = u.key AND p.node = $3),
    (SELECT count(*) FROM jobwire.waiting_job w
     WHERE w.limit_name = u.limit_name AND w.key = u.key AND w.woken_at > clock_timestamp() - $5::interval
       AND w.woken_at <= clock_timestamp() AND w.job_id <> ALL($4)),
    (SELECT count(*) FROM (
        SELECT FROM jobwire.waiting_job w
        WHERE w.limit_name = u.limit_name AND w.key = u.key AND w.woken_at IS NULL AND w.job_id <> ALL($4)
        LIMIT $6) counted)
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (limit_name, key, place) ORDER BY u.place";

/// Deletes rows of keys of which no node has a permit and no job waits. A transaction that waits for
/// such a row inserts it again.
const LEAVE: &str = "
DELETE FROM jobwire.permit_key k USING unnest($1::text[], $2::text[]) AS u (limit_name, key)
WHERE k.limit_name = u.limit_name AND k.key = u.key
  AND NOT EXISTS (SELECT FROM jobwire.permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)
  AND NOT EXISTS (SELECT FROM jobwire.waiting_job w
                  WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)";

/// Writes the rows of the keys of a request, and so locks them.
pub(super) async fn enter(
    connection: &mut PgConnection,
    request: &PermitRequest,
) -> Result<(), StoreError> {
    let (limits, keys) = names(request.keys.iter().map(|of| &of.key));
    sqlx::query(ENTER)
        .bind(&limits)
        .bind(&keys)
        .bind(request.keys.iter().map(|of| of.size).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Reads the state of the keys, which are locked, in the order of the request.
pub(super) async fn standings(
    connection: &mut PgConnection,
    request: &PermitRequest,
    asking: &[Uuid],
) -> Result<Vec<Standing>, StoreError> {
    let (limits, keys) = names(request.keys.iter().map(|of| &of.key));
    sqlx::query(LOCK_MINE)
        .bind(&limits)
        .bind(&keys)
        .bind(request.node.0)
        .fetch_all(&mut *connection)
        .await?;
    // A later statement sees all commits from before the rows were locked.
    read(connection, request, asking).await
}

/// Reads the state of the keys, whose rows are locked.
pub(super) async fn read(
    connection: &mut PgConnection,
    request: &PermitRequest,
    asking: &[Uuid],
) -> Result<Vec<Standing>, StoreError> {
    let (limits, keys) = names(request.keys.iter().map(|of| &of.key));
    let rows = sqlx::query(STANDING)
        .bind(&limits)
        .bind(&keys)
        .bind(request.node.0)
        .bind(asking)
        .bind(RESERVED)
        .bind(COUNTED)
        .fetch_all(connection)
        .await?;
    let standing = |row: &sqlx::postgres::PgRow| {
        Ok(Standing {
            others: row.try_get(0)?,
            mine: row.try_get(1)?,
            reserved: row.try_get(2)?,
            waiting: row.try_get(3)?,
        })
    };
    rows.iter().map(standing).collect()
}

/// Deletes the rows of these keys, if nothing uses them.
pub(super) async fn leave<'a>(
    connection: &mut PgConnection,
    unused: impl Iterator<Item = &'a PermitKey>,
) -> Result<(), StoreError> {
    let (limits, keys) = names(unused);
    if !limits.is_empty() {
        let leave = sqlx::query(LEAVE).bind(limits).bind(keys);
        leave.execute(connection).await?;
    }
    Ok(())
}
