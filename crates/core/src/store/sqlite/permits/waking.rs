//! Waking: hints the next jobs of a key, and deletes the rows of those that no node may lock.

use sqlx::SqliteConnection;

use crate::store::error::StoreError;
use crate::store::permits::{PermitAnswer, PermitKey};
use crate::store::sqlite::decode;
use crate::store::sqlite::sql::{has_id, in_turn, ready_columns, suspended, unlocked};

/// True if a node may lock this job now: it is free, in its turn, not suspended and not paused, and
/// a node takes such jobs. While no node has a row, every job counts as taken.
macro_rules! lockable {
    () => {
        concat!(
            has_id!("j.id"),
            " AND ",
            unlocked!("j"),
            " AND NOT ",
            suspended!("j"),
            " AND ",
            in_turn!("j"),
            " AND (NOT EXISTS (SELECT 1 FROM node) \
               OR EXISTS (SELECT 1 FROM node n WHERE j.type IN (SELECT value FROM json_each(n.types)) \
                 AND (j.deployment IS NULL OR n.deployments IS NULL OR j.deployment IN (SELECT value FROM json_each(n.deployments))) \
                 AND (j.category IS NULL OR n.categories IS NULL OR j.category IN (SELECT value FROM json_each(n.categories))) \
                 AND (j.tenant IS NULL OR n.tenants IS NULL OR j.tenant IN (SELECT value FROM json_each(n.tenants))) \
                 AND coalesce(j.priority >= n.min_priority, 1) AND coalesce(j.priority <= n.max_priority, 1)))"
        )
    };
}

/// Selects the first waiting jobs of a key.
macro_rules! first_waiting {
    ($at_most:literal) => {
        concat!(
            "SELECT w.job_id, w.seq FROM waiting_job w
    WHERE w.limit_name = ?1 AND w.key = ?2 AND w.woken_at IS NULL AND w.job_id NOT IN (SELECT value FROM json_each(?4))
    ORDER BY w.seq LIMIT ",
            $at_most
        )
    };
}

/// Deletes the rows of jobs that no node may lock, among the first ones of a key. Such a job has left
/// the executable table, or is found again like any job that does not wait for a permit.
const DROP: &str = concat!(
    "
DELETE FROM waiting_job WHERE job_id IN (
    SELECT f.job_id FROM (",
    first_waiting!("?3"),
    ") f
    WHERE NOT EXISTS (SELECT 1 FROM job j WHERE j.id = f.job_id AND ",
    lockable!(),
    "))"
);

/// Selects the next jobs to wake.
const NEXT: &str = concat!(
    "
SELECT f.job_id FROM (",
    first_waiting!("?3 + 100"),
    ") f CROSS JOIN job j ON j.id = f.job_id
WHERE ",
    lockable!(),
    "
ORDER BY f.seq LIMIT ?3"
);

const NOTE: &str =
    "UPDATE waiting_job SET woken_at = ?2 WHERE job_id IN (SELECT value FROM json_each(?1))";

const WAKE: &str = concat!(
    "
UPDATE job SET ready_at = ?2, hints = min(hints, 999999999) + 1
WHERE id IN (SELECT value FROM json_each(?1)) AND ",
    unlocked!("job"),
    "
RETURNING ",
    ready_columns!(),
    ", seq, deployment, category, tenant, priority"
);

/// How often rows are deleted before jobs are woken. The next exchange goes on.
const ROUNDS: usize = 50;
/// The number of rows that one of these rounds looks at, after the first one.
const LOOK_AT: i32 = 1_000;

/// Deletes the rows of jobs that no node may lock, if some are among this number of jobs to wake.
/// Returns whether there were any.
pub(super) async fn drop_unlockable(
    connection: &mut SqliteConnection,
    key: &PermitKey,
    number: i32,
    asking: &str,
) -> Result<bool, StoreError> {
    let mut look_at = number;
    let mut any = false;
    if number == 0 {
        return Ok(any);
    }
    for _ in 0..ROUNDS {
        let dropped = sqlx::query(DROP)
            .bind(&key.limit)
            .bind(&key.key)
            .bind(look_at)
            .bind(asking)
            .execute(&mut *connection)
            .await?;
        if dropped.rows_affected() == 0 {
            break;
        }
        any = true;
        look_at = number.max(LOOK_AT);
    }
    Ok(any)
}

/// Wakes this number of waiting jobs of a key. Adds them to the answer.
pub(super) async fn wake(
    connection: &mut SqliteConnection,
    key: &PermitKey,
    number: i32,
    asking: &str,
    now: i64,
    answer: &mut PermitAnswer,
) -> Result<(), StoreError> {
    let rows = sqlx::query(NEXT)
        .bind(&key.limit)
        .bind(&key.key)
        .bind(number)
        .bind(asking)
        .fetch_all(&mut *connection)
        .await?;
    let these = decode::array(decode::job_ids(&rows)?)?;
    let note = sqlx::query(NOTE).bind(&these).bind(now);
    note.execute(&mut *connection).await?;
    let wake = sqlx::query(WAKE).bind(&these).bind(now);
    let rows = wake.fetch_all(connection).await?;
    let ready = decode::ready_in_order(&rows)?;
    for (row, id) in rows.iter().zip(decode::job_ids(&rows)?) {
        answer.woken.push((id, decode::needs(row)?));
    }
    answer.ready.extend(ready);
    Ok(())
}
