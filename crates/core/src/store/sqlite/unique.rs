//! Unique jobs: claiming keys, and deleting the rows of free ones.
//!
//! Whether a key is taken follows from the tables of jobs (migration 0008). SQLite has one writer,
//! so a transaction that has written a claim sees all that others have committed.

use std::collections::{HashMap, HashSet};

use sqlx::SqliteConnection;

use super::decode;
use crate::job::JobId;
use crate::job::new_job::NewJob;
use crate::store::error::{REFUSED_BY_TRIGGER, StoreError};
use crate::store::unique::Claims;

/// True if the job of a row has its key at `?2`.
macro_rules! has_key {
    ($dead_letters:literal) => {
        concat!(
            "CASE WHEN u.held_until IS NOT NULL THEN u.held_until > ?2
    ELSE EXISTS (SELECT 1 FROM job j WHERE j.id = u.job_id) OR EXISTS (SELECT 1 FROM timer_job t WHERE t.id = u.job_id)
        OR EXISTS (SELECT 1 FROM suspended_job s WHERE s.id = u.job_id)
        OR ",
            $dead_letters,
            " AND EXISTS (SELECT 1 FROM dead_letter_job d WHERE d.id = u.job_id) END"
        )
    };
}

/// Takes the keys that are free, and returns the jobs that took them. The end of a period is counted
/// from 1970.
const CLAIM: &str = concat!(
    "
INSERT INTO unique_job AS u (type, tenant, key, job_id, held_until, dead_letters, seen_at)
SELECT value ->> 'type', value ->> 'tenant', value ->> 'key', value ->> 'id',
    (?2 / (value ->> 'period_us') + 1) * (value ->> 'period_us'), value ->> 'dead_letters', ?2
FROM json_each(?1) WHERE true
ON CONFLICT (type, tenant, key) DO UPDATE SET job_id = excluded.job_id, held_until = excluded.held_until,
    dead_letters = excluded.dead_letters, seen_at = excluded.seen_at
WHERE NOT (",
    has_key!("u.dead_letters"),
    ") RETURNING job_id"
);

const HOLDERS: &str = "
SELECT value ->> 'id', u.job_id FROM json_each(?1)
JOIN unique_job u ON u.type = value ->> 'type' AND u.tenant = value ->> 'tenant' AND u.key = value ->> 'key'";

/// Deletes the rows of free keys among those that were seen longest ago. The row of a dead letter
/// stays, for the revival: another job that takes the key finds it.
const PRUNE: &str = concat!(
    "
DELETE FROM unique_job AS u WHERE (type, tenant, key) IN (
    SELECT type, tenant, key FROM unique_job WHERE seen_at < ?1 ORDER BY seen_at LIMIT ?3) AND NOT (",
    has_key!("1"),
    ")"
);

/// Marks the others of them as seen: those that [`PRUNE`] has left are the first of the same order.
const SEE: &str = "
UPDATE unique_job SET seen_at = ?2 WHERE (type, tenant, key) IN (
    SELECT type, tenant, key FROM unique_job WHERE seen_at < ?1 ORDER BY seen_at LIMIT ?3)";

/// Selects the job that has the key of a dead letter.
const HAS_KEY_OF: &str = "
SELECT u.job_id FROM unique_dead_letter f
JOIN unique_job u ON u.type = f.type AND u.tenant = f.tenant AND u.key = f.key WHERE f.job_id = ?1";

/// Returns the error of a revival. A trigger can't name the job that has the key of the dead letter.
pub(super) async fn refused_revival(
    connection: &mut SqliteConnection,
    job: JobId,
    error: StoreError,
) -> StoreError {
    if error.sqlstate().as_deref() != Some(REFUSED_BY_TRIGGER) {
        return error;
    }
    let query = sqlx::query(HAS_KEY_OF).bind(job.to_string());
    match query.fetch_optional(connection).await {
        Ok(Some(row)) => match decode::uuid(&row, 0) {
            Ok(holder) => StoreError::KeyTaken {
                holder: JobId(holder),
                job,
            },
            Err(_) => error,
        },
        _ => error,
    }
}

const HOUR: i64 = 3_600_000_000;

/// Claims the keys of these jobs and removes the jobs whose keys other jobs have. Returns the
/// removed jobs with those. Sends no statement if no job has a key.
pub(super) async fn claim(
    connection: &mut SqliteConnection,
    jobs: &mut Vec<NewJob>,
) -> Result<Vec<(JobId, JobId)>, StoreError> {
    let Some(claims) = Claims::of(jobs) else {
        return Ok(Vec::new());
    };
    let given = decode::array(&claims.firsts)?;
    let rows = sqlx::query(CLAIM)
        .bind(&given)
        .bind(decode::now_micros())
        .fetch_all(&mut *connection)
        .await?;
    let claimed: HashSet<JobId> = decode::job_ids(&rows)?.into_iter().collect();
    let rows = sqlx::query(HOLDERS)
        .bind(&given)
        .fetch_all(connection)
        .await?;
    let mut holders = HashMap::with_capacity(rows.len());
    for row in &rows {
        holders.insert(
            JobId(decode::uuid(row, 0)?),
            JobId(decode::shown_id(row, 1)?),
        );
    }
    let firsts = claims.firsts.iter().map(|claim| claim.id);
    let taken = firsts.filter(|id| !claimed.contains(id)).collect();
    Ok(claims.settle(jobs, &holders, &taken))
}

/// Deletes rows of free keys among up to `at_most` rows that were not seen for an hour. Returns the
/// number of rows that it looked at.
pub(super) async fn prune(
    connection: &mut SqliteConnection,
    now: i64,
    at_most: i64,
) -> Result<u64, StoreError> {
    let before = now.saturating_sub(HOUR);
    let prune = |statement, rows: i64| sqlx::query(statement).bind(before).bind(now).bind(rows);
    let deleted = prune(PRUNE, at_most).execute(&mut *connection).await?;
    let deleted = deleted.rows_affected();
    let left = at_most.saturating_sub(i64::try_from(deleted).unwrap_or(i64::MAX));
    let seen = prune(SEE, left).execute(connection).await?;
    Ok(deleted + seen.rows_affected())
}
