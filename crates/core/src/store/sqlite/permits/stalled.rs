//! Keys whose waiting jobs could run, rows that nothing uses any more, and reports on waiting jobs.

use sqlx::{Row, SqliteConnection, SqlitePool};

use super::reserved_since;
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::permits::{PermitKey, STALLED, StalledKey, WaitingJob, WaitingType};
use crate::store::sqlite::decode;

/// Deletes rows of keys that no node has used for long, and of jobs that were woken long ago or, by the
/// clock, later than now.
const PRUNE: [&str; 2] = [
    "
DELETE FROM permit_key AS k WHERE k.used_at NOT BETWEEN ?1 - 600000000 AND ?1
  AND NOT EXISTS (SELECT 1 FROM permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)
  AND NOT EXISTS (SELECT 1 FROM waiting_job w WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)",
    "DELETE FROM waiting_job WHERE woken_at NOT BETWEEN ?1 - 600000000 AND ?1",
];

/// Counts keys as used whose jobs wait for permits that no node has, because they cool down in the
/// database: no request names such a key meanwhile. Only those of limits that this node serves, so the
/// waiting jobs of the others leave the queue.
const REFRESH: &str = "
UPDATE permit_key AS k SET used_at = ?1
WHERE k.limit_name IN (SELECT value FROM json_each(?2)) AND k.used_at BETWEEN ?1 - 600000000 AND ?1 - 300000000
  AND EXISTS (SELECT 1 FROM permit p WHERE p.limit_name = k.limit_name AND p.key = k.key AND p.expires_at > ?1)
  AND EXISTS (SELECT 1 FROM waiting_job w WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)";

const STALLED_KEYS: &str = "
SELECT k.limit_name, k.key, min(k.size, 2147483647) FROM permit_key k
WHERE EXISTS (SELECT 1 FROM waiting_job w WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)
  AND k.size > (SELECT coalesce(sum(p.number), 0) FROM permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)
             + (SELECT count(*) FROM waiting_job w
                WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at > ?1 AND w.woken_at <= ?3)
ORDER BY k.limit_name, k.key LIMIT ?2";

/// Deletes the row of a key that is not UTF-8: no node could name it. Then its jobs no longer wait.
const FORGET_UNNAMED: &str = "
DELETE FROM permit_key WHERE limit_name = CAST(?1 AS TEXT) AND key = CAST(?2 AS TEXT)";

const WAITING_TYPES: &str = "
SELECT w.type, count(*) FROM waiting_job w
WHERE w.woken_at IS NULL AND EXISTS (SELECT 1 FROM job j WHERE j.id = w.job_id)
GROUP BY w.type ORDER BY 2 DESC, 1 LIMIT ?1";

const WAITING_OF: &str = "
SELECT w.job_id, w.limit_name, w.key FROM waiting_job w
WHERE w.job_id IN (SELECT value FROM json_each(?1)) AND w.woken_at IS NULL AND EXISTS (SELECT 1 FROM job j WHERE j.id = w.job_id)";

/// Deletes rows that nothing uses any more, counts keys as used whose permits cool down, and returns
/// keys whose waiting jobs could run.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    served: &[String],
) -> Result<Vec<StalledKey>, StoreError> {
    let now = decode::now_micros();
    if !served.is_empty() {
        let refresh = sqlx::query(REFRESH).bind(now);
        let served = decode::array(served)?;
        refresh.bind(served).execute(&mut *connection).await?;
    }
    for statement in PRUNE {
        let prune = sqlx::query(statement).bind(now);
        prune.execute(&mut *connection).await?;
    }
    let rows = sqlx::query(STALLED_KEYS)
        .bind(reserved_since(now))
        .bind(STALLED)
        .bind(now)
        .fetch_all(&mut *connection)
        .await?;
    let mut stalled = Vec::with_capacity(rows.len());
    for row in &rows {
        let (limit, name): (Vec<u8>, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
        match (str::from_utf8(&limit), str::from_utf8(&name)) {
            (Ok(limit), Ok(name)) => stalled.push(StalledKey {
                key: key(limit.to_owned(), name.to_owned()),
                size: row.try_get(2)?,
            }),
            _ => {
                let forget = sqlx::query(FORGET_UNNAMED).bind(limit).bind(name);
                forget.execute(&mut *connection).await?;
            }
        }
    }
    Ok(stalled)
}

fn key(limit: String, key: String) -> PermitKey {
    PermitKey { limit, key }
}

/// Counts the waiting jobs by type.
pub(super) async fn count_waiting(
    readers: &SqlitePool,
    limit: i64,
) -> Result<Vec<WaitingType>, StoreError> {
    let count = sqlx::query(WAITING_TYPES).bind(limit);
    let rows = count.fetch_all(readers).await?;
    let types = rows.iter().map(|row| {
        Ok(WaitingType {
            job_type: decode::text(row, 0)?,
            jobs: row.try_get(1)?,
        })
    });
    types.collect()
}

/// Returns those of these jobs that wait.
pub(super) async fn find_waiting(
    readers: &SqlitePool,
    jobs: &[JobId],
) -> Result<Vec<WaitingJob>, StoreError> {
    let find = sqlx::query(WAITING_OF).bind(decode::array(jobs)?);
    let rows = find.fetch_all(readers).await?;
    let waiting = |row: &sqlx::sqlite::SqliteRow| {
        Ok(WaitingJob {
            id: decode::job_id(row)?,
            key: key(decode::text(row, 1)?, decode::text(row, 2)?),
        })
    };
    rows.iter().map(waiting).collect()
}
