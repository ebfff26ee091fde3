//! Permits that expire later than any node borrows.

use std::time::Duration;

use sqlx::PgPool;

use crate::store::error::StoreError;
use crate::store::permits::cooling::micros;
use crate::store::permits::{LASTING, LastingPermit};
use crate::store::postgres::begin::begin;
use crate::store::postgres::connection_pool::ConnectionPool;

/// The row as a text names all of its columns.
const FIND: &str = "
SELECT p.limit_name, p::text FROM unnest($1::text[], $2::bigint[]) AS u (limit_name, longest)
JOIN jobwire.permit p ON p.limit_name = u.limit_name
WHERE p.expires_at > clock_timestamp() + u.longest * interval '1 microsecond'
  AND EXISTS (SELECT FROM jobwire.waiting_job w
              WHERE w.limit_name = p.limit_name AND w.key = p.key AND w.woken_at IS NULL)
ORDER BY p.limit_name, p.key, p.number LIMIT $3";

/// A row that its node locks at this moment is passed over: the node is alive.
const END: &str = "
DELETE FROM jobwire.permit WHERE ctid = ANY(ARRAY(
    SELECT p.ctid FROM jobwire.permit p
    WHERE p.limit_name = ANY($1) AND p::text = ANY($2)
      AND p.node <> ALL(ARRAY(SELECT DISTINCT l.owner FROM jobwire.job_lease l WHERE l.owner IS NOT NULL))
    FOR UPDATE SKIP LOCKED))";

/// Returns the permits of these limits that expire later than the time of their limit from now.
pub(super) async fn find(
    pool: &PgPool,
    limits: &[(String, Duration)],
) -> Result<Vec<LastingPermit>, StoreError> {
    let (names, longest): (Vec<&str>, Vec<i64>) = limits
        .iter()
        .map(|(limit, longest)| (limit.as_str(), micros(*longest)))
        .unzip();
    let find = sqlx::query_as(FIND).bind(names).bind(longest).bind(LASTING);
    let rows: Vec<(String, String)> = find.fetch_all(pool).await?;
    let lasting = rows.into_iter();
    Ok(lasting
        .map(|(limit, row)| LastingPermit { limit, row })
        .collect())
}

/// Deletes those of these permits that have not changed and whose nodes have no lease.
pub(super) async fn end(pool: &ConnectionPool, ended: &[LastingPermit]) -> Result<(), StoreError> {
    let (limits, rows): (Vec<&str>, Vec<&str>) = ended
        .iter()
        .map(|of| (of.limit.as_str(), of.row.as_str()))
        .unzip();
    let mut tx = begin(pool).await?;
    let end = sqlx::query(END).bind(limits).bind(rows);
    end.execute(&mut *tx).await?;
    Ok(tx.commit().await?)
}
