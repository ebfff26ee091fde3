//! The rows of permits: those that a node has borrowed, and those that cool down after a node has
//! handed them over.

use sqlx::PgConnection;

use super::names;
use crate::store::error::StoreError;
use crate::store::permits::cooling::{Cooling, micros, width};
use crate::store::permits::share::Share;
use crate::store::permits::{KeyRequest, PermitRequest};

/// Writes the permits of this node. They expire a cool-down after the end of its trust.
const BORROW: &str = "
WITH gone AS (
    DELETE FROM jobwire.permit p USING unnest($1::text[], $2::text[], $3::int[]) AS u (limit_name, key, number)
    WHERE p.limit_name = u.limit_name AND p.key = u.key AND p.node = $4 AND u.number = 0
)
INSERT INTO jobwire.permit AS p (limit_name, key, node, number, expires_at)
SELECT u.limit_name, u.key, $4, u.number, clock_timestamp() + $5 + u.cool_down * interval '1 microsecond'
FROM unnest($1::text[], $2::text[], $3::int[], $6::bigint[]) AS u (limit_name, key, number, cool_down)
WHERE u.number > 0
ON CONFLICT (limit_name, key, node) DO UPDATE SET number = excluded.number, expires_at = excluded.expires_at";

/// Writes permits that cool down without a node. The rest of each was measured before the statement.
const COOL: &str = "
INSERT INTO jobwire.permit AS p (limit_name, key, node, number, expires_at)
SELECT r.limit_name, r.key, lpad(to_hex(r.row), 32, '0')::uuid, least(sum(r.number), 2147483647)::int, max(r.expires_at)
FROM (SELECT u.limit_name, u.key, u.number,
             (extract(epoch FROM statement_timestamp()) * 1000000 + u.rest)::bigint / u.width AS row,
             statement_timestamp() + u.rest * interval '1 microsecond' AS expires_at
      FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[]) AS u (limit_name, key, number, rest, width)) r
GROUP BY r.limit_name, r.key, r.row
ON CONFLICT (limit_name, key, node) DO UPDATE
    SET number = least(p.number::bigint + excluded.number, 2147483647)::int,
        expires_at = greatest(p.expires_at, excluded.expires_at)";

/// Writes the permits of the node, and those that it hands over, as the shares say.
pub(super) async fn hold(
    connection: &mut PgConnection,
    request: &PermitRequest,
    shares: &[(&KeyRequest, Share)],
) -> Result<(), StoreError> {
    let (limits, keys) = names(shares.iter().map(|(of, _)| &of.key));
    let numbers: Vec<i32> = shares.iter().map(|(_, share)| share.number).collect();
    let cool_downs: Vec<i64> = shares.iter().map(|(of, _)| micros(of.cool_down)).collect();
    sqlx::query(BORROW)
        .bind(limits)
        .bind(keys)
        .bind(numbers)
        .bind(request.node.0)
        .bind(request.lease)
        .bind(cool_downs)
        .execute(&mut *connection)
        .await?;
    let cooling: Vec<(&KeyRequest, &Cooling)> = shares
        .iter()
        .flat_map(|(of, share)| share.cooling.iter().map(move |cooling| (*of, cooling)))
        .collect();
    if cooling.is_empty() {
        return Ok(());
    }
    let (limits, keys) = names(cooling.iter().map(|(of, _)| &of.key));
    let rests: Vec<i64> = cooling.iter().map(|(_, one)| micros(one.rest)).collect();
    let widths: Vec<i64> = cooling.iter().map(|(of, _)| width(of.cool_down)).collect();
    sqlx::query(COOL)
        .bind(limits)
        .bind(keys)
        .bind(
            cooling
                .iter()
                .map(|(_, one)| one.number)
                .collect::<Vec<_>>(),
        )
        .bind(rests)
        .bind(widths)
        .execute(connection)
        .await?;
    Ok(())
}
