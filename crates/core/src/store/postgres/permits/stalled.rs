//! Keys whose waiting jobs could run, rows that nothing uses any more, and reports on waiting jobs.

use sqlx::Row;
use uuid::Uuid;

use super::{LOOK_AT, ROUNDS};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::permits::{PermitKey, RESERVED, STALLED, StalledKey, WaitingJob, WaitingType};
use crate::store::postgres::begin::begin;
use crate::store::postgres::connection_pool::ConnectionPool;
use crate::store::postgres::sql::has_job;

/// Deletes rows of keys that no node has used for long, and of jobs that were woken long ago or, by the
/// clock, later than now.
const PRUNE: [&str; 2] = [
    "
DELETE FROM jobwire.permit_key WHERE (limit_name, key) IN (
    SELECT k.limit_name, k.key FROM jobwire.permit_key k
    WHERE k.used_at NOT BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp()
      AND NOT EXISTS (SELECT FROM jobwire.permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)
      AND NOT EXISTS (SELECT FROM jobwire.waiting_job w
                      WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)
    LIMIT 1000 FOR UPDATE OF k SKIP LOCKED)",
    "
DELETE FROM jobwire.waiting_job WHERE job_id IN (
    SELECT w.job_id FROM jobwire.waiting_job w WHERE w.woken_at NOT BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp()
    LIMIT 1000 FOR UPDATE OF w SKIP LOCKED)",
];

/// Counts keys as used whose jobs wait for permits that no node has, because they cool down in the
/// database: no request names such a key meanwhile. Only those of limits that this node serves, so the
/// waiting jobs of the others leave the queue.
const REFRESH: &str = "
UPDATE jobwire.permit_key SET used_at = clock_timestamp() WHERE (limit_name, key) IN (
    SELECT k.limit_name, k.key FROM jobwire.permit_key k
    WHERE k.limit_name = ANY($1)
      AND k.used_at BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp() - interval '5 minutes'
      AND EXISTS (SELECT FROM jobwire.permit p
                  WHERE p.limit_name = k.limit_name AND p.key = k.key AND p.expires_at > clock_timestamp())
      AND EXISTS (SELECT FROM jobwire.waiting_job w
                  WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)
    LIMIT 1000 FOR UPDATE OF k SKIP LOCKED)";

const STALLED_KEYS: &str = "
SELECT k.limit_name, k.key, k.size FROM jobwire.permit_key k
WHERE EXISTS (SELECT FROM jobwire.waiting_job w
              WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)
  AND k.size > (SELECT coalesce(sum(p.number), 0) FROM jobwire.permit p
                WHERE p.limit_name = k.limit_name AND p.key = k.key)
             + (SELECT count(*) FROM jobwire.waiting_job w
                WHERE w.limit_name = k.limit_name AND w.key = k.key
                  AND w.woken_at > clock_timestamp() - $1::interval AND w.woken_at <= clock_timestamp())
ORDER BY k.limit_name, k.key LIMIT $2";

const WAITING_TYPES: &str = concat!(
    "
SELECT w.type, count(*) FROM jobwire.waiting_job w
WHERE w.woken_at IS NULL AND ",
    has_job!("w"),
    "
GROUP BY w.type ORDER BY 2 DESC, 1 LIMIT $1"
);

const WAITING_OF: &str = concat!(
    "
SELECT w.job_id, w.limit_name, w.key FROM jobwire.waiting_job w
WHERE w.job_id = ANY($1) AND w.woken_at IS NULL AND ",
    has_job!("w")
);

/// Deletes rows that nothing uses any more, counts keys as used whose permits cool down, and returns
/// keys whose waiting jobs could run.
pub(super) async fn find(
    pool: &ConnectionPool,
    served: &[String],
) -> Result<Vec<StalledKey>, StoreError> {
    if !served.is_empty() {
        let mut tx = begin(pool).await?;
        let refresh = sqlx::query(REFRESH).bind(served);
        refresh.execute(&mut *tx).await?;
        tx.commit().await?;
    }
    for prune in PRUNE {
        for _ in 0..ROUNDS {
            let mut tx = begin(pool).await?;
            let pruned = sqlx::query(prune).execute(&mut *tx).await?;
            tx.commit().await?;
            if pruned.rows_affected() < LOOK_AT as u64 {
                break;
            }
        }
    }
    let rows = sqlx::query(STALLED_KEYS)
        .bind(RESERVED)
        .bind(STALLED)
        .fetch_all(&pool.inner)
        .await?;
    let stalled = |row: &sqlx::postgres::PgRow| {
        Ok(StalledKey {
            key: PermitKey {
                limit: row.try_get(0)?,
                key: row.try_get(1)?,
            },
            size: row.try_get(2)?,
        })
    };
    rows.iter().map(stalled).collect()
}

/// Counts the waiting jobs by type.
pub(super) async fn count_waiting(
    pool: &ConnectionPool,
    limit: i64,
) -> Result<Vec<WaitingType>, StoreError> {
    let count = sqlx::query_as(WAITING_TYPES).bind(limit);
    let rows: Vec<(String, i64)> = count.fetch_all(&pool.inner).await?;
    let types = rows.into_iter();
    Ok(types
        .map(|(job_type, jobs)| WaitingType { job_type, jobs })
        .collect())
}

/// Returns those of these jobs that wait.
pub(super) async fn find_waiting(
    pool: &ConnectionPool,
    jobs: &[JobId],
) -> Result<Vec<WaitingJob>, StoreError> {
    let jobs: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
    let find = sqlx::query_as(WAITING_OF).bind(jobs);
    let rows: Vec<(Uuid, String, String)> = find.fetch_all(&pool.inner).await?;
    let waiting = rows.into_iter().map(|(id, limit, key)| WaitingJob {
        id: JobId(id),
        key: PermitKey { limit, key },
    });
    Ok(waiting.collect())
}
