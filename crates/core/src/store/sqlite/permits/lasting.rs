//! Permits that expire later than any node borrows.

use std::time::Duration;

use sqlx::{SqliteConnection, SqlitePool};

use crate::store::error::StoreError;
use crate::store::permits::{LASTING, LastingPermit};
use crate::store::sqlite::decode;

/// The row as a text. Another program may have written any node, of any length.
macro_rules! row {
    () => {
        "hex(p.key) || ' ' || hex(substr(p.node, 1, 64)) || ' ' || p.number || ' ' || p.expires_at"
    };
}

const FIND: &str = concat!(
    "
SELECT u.value ->> 0, ",
    row!(),
    " FROM json_each(?1) u CROSS JOIN permit p ON p.limit_name = u.value ->> 0
WHERE p.expires_at > u.value ->> 1
  AND EXISTS (SELECT 1 FROM waiting_job w WHERE w.limit_name = p.limit_name AND w.key = p.key AND w.woken_at IS NULL)
ORDER BY p.limit_name, p.key, p.number LIMIT ?2"
);

const END: &str = concat!(
    "
DELETE FROM permit AS p
WHERE EXISTS (SELECT 1 FROM json_each(?1) u WHERE p.limit_name = u.value ->> 0 AND u.value ->> 1 = ",
    row!(),
    ")
  AND NOT EXISTS (SELECT 1 FROM job_lease l WHERE l.owner = p.node)"
);

/// Returns the permits of these limits that expire later than the time of their limit from now.
pub(super) async fn find(
    readers: &SqlitePool,
    limits: &[(String, Duration)],
) -> Result<Vec<LastingPermit>, StoreError> {
    let now = decode::now_micros();
    let limits = limits.iter();
    let limits = limits.map(|(limit, longest)| (limit, decode::later(now, *longest)));
    let find = sqlx::query_as(FIND)
        .bind(decode::array(limits)?)
        .bind(LASTING);
    let rows: Vec<(String, String)> = find.fetch_all(readers).await?;
    let lasting = rows.into_iter();
    Ok(lasting
        .map(|(limit, row)| LastingPermit { limit, row })
        .collect())
}

/// Deletes those of these permits that have not changed and whose nodes have no lease.
pub(super) async fn end(
    connection: &mut SqliteConnection,
    ended: &[LastingPermit],
) -> Result<(), StoreError> {
    let rows = ended.iter().map(|of| (&of.limit, &of.row));
    let end = sqlx::query(END).bind(decode::array(rows)?);
    end.execute(connection).await?;
    Ok(())
}
