//! Waking: hints the next jobs of a key, and deletes the rows of those that no node may lock.

use sqlx::{Executor, PgConnection};
use uuid::Uuid;

use super::{LOOK_AT, ROUNDS, names};
use crate::store::error::StoreError;
use crate::store::permits::share::Share;
use crate::store::permits::{KeyRequest, PermitAnswer};
use crate::store::postgres::decode;
use crate::store::postgres::sql::{in_turn, not_suspended, ready_columns, unlocked};

/// True if a node may lock this job now: it is free, in its turn, not suspended and not paused, and
/// a node takes such jobs. While no node has a row, every job counts as taken.
macro_rules! lockable {
    () => {
        concat!(
            unlocked!("j"),
            " AND ",
            not_suspended!("j"),
            " AND ",
            in_turn!("j"),
            " AND (NOT EXISTS (SELECT FROM jobwire.node) \
               OR EXISTS (SELECT FROM jobwire.node n WHERE j.type = ANY(n.types) \
                 AND (j.deployment IS NULL OR n.deployments IS NULL OR j.deployment = ANY(n.deployments)) \
                 AND (j.category IS NULL OR n.categories IS NULL OR j.category = ANY(n.categories)) \
                 AND (j.tenant IS NULL OR n.tenants IS NULL OR j.tenant = ANY(n.tenants)) \
                 AND coalesce(j.priority >= n.min_priority, true) AND coalesce(j.priority <= n.max_priority, true)))"
        )
    };
}

/// Deletes the rows of jobs that no node may lock, among the first ones of each key. Such a job has
/// left the executable table, or is found again like any job that does not wait for a permit. No tables
/// are joined: a plan of small tables would read all waiting jobs for each of these.
const DROP: &str = concat!(
    "
WITH first AS MATERIALIZED (
    SELECT w.job_id FROM unnest($1::text[], $2::text[]) AS u (limit_name, key)
    CROSS JOIN LATERAL (
        SELECT w.job_id FROM jobwire.waiting_job w
        WHERE w.limit_name = u.limit_name AND w.key = u.key AND w.woken_at IS NULL AND w.job_id <> ALL($3)
        ORDER BY w.seq LIMIT $4) w
), dropped AS MATERIALIZED (
    SELECT w.job_id FROM jobwire.waiting_job w WHERE w.job_id = ANY(ARRAY(SELECT job_id FROM first))
        AND (SELECT j.id FROM jobwire.job j WHERE j.id = w.job_id AND ",
    lockable!(),
    ") IS NULL
    FOR UPDATE OF w SKIP LOCKED
)
DELETE FROM jobwire.waiting_job w WHERE w.job_id = ANY(ARRAY(SELECT job_id FROM dropped))"
);

/// Wakes the next jobs. One whose row is locked at this moment is passed over, and gets no hint and
/// no reservation.
const WAKE: &str = concat!(
    "
WITH next AS MATERIALIZED (
    SELECT n.id FROM unnest($1::text[], $2::text[], $3::int[]) AS u (limit_name, key, number)
    CROSS JOIN LATERAL (
        SELECT j.id FROM (
            SELECT w.job_id, w.seq FROM jobwire.waiting_job w
            WHERE w.limit_name = u.limit_name AND w.key = u.key AND w.woken_at IS NULL AND w.job_id <> ALL($4)
            ORDER BY w.seq LIMIT u.number + 100) w
        CROSS JOIN LATERAL (
            SELECT j.id FROM jobwire.job j WHERE j.id = w.job_id AND ",
    lockable!(),
    " FOR UPDATE SKIP LOCKED) j
        ORDER BY w.seq LIMIT u.number) n
), noted AS (
    UPDATE jobwire.waiting_job w SET woken_at = clock_timestamp() WHERE w.job_id = ANY(ARRAY(SELECT id FROM next))
)
UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = least(j.hints, 999999999) + 1
WHERE j.id = ANY(ARRAY(SELECT id FROM next))
RETURNING ",
    ready_columns!("j"),
    ", j.deployment, j.category, j.tenant, j.priority"
);

/// Keeps the plans of [`DROP`] and [`WAKE`]: planning them took three times as long as running them. The settings
/// leave one plan, whether the tables were empty or full when it was made: each row is read by its key, in
/// the order of the index.
const KEEP_PLANS: &str = "SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_bitmapscan = off; \
    SET LOCAL enable_sort = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";
const PLAN_AGAIN: &str = "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_bitmapscan = on; \
    SET LOCAL enable_sort = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on";

/// Begins to keep plans, if a job of these keys is to be woken. Returns whether one is.
pub(super) async fn keep_plans(
    connection: &mut PgConnection,
    shares: &[(&KeyRequest, Share)],
) -> Result<bool, StoreError> {
    let wakes = shares.iter().any(|(_, share)| share.wake > 0);
    if wakes {
        connection.execute(sqlx::raw_sql(KEEP_PLANS)).await?;
    }
    Ok(wakes)
}

/// Plans each statement again.
pub(super) async fn plan_again(connection: &mut PgConnection) -> Result<(), StoreError> {
    connection.execute(sqlx::raw_sql(PLAN_AGAIN)).await?;
    Ok(())
}

/// Deletes the rows of jobs that no node may lock, if some are among the jobs to wake. Returns whether
/// there were any.
pub(super) async fn drop_unlockable(
    connection: &mut PgConnection,
    shares: &[(&KeyRequest, Share)],
    asking: &[Uuid],
) -> Result<bool, StoreError> {
    let wakes = || shares.iter().filter(|(_, share)| share.wake > 0);
    let (limits, keys) = names(wakes().map(|(of, _)| &of.key));
    let most = wakes().map(|(_, share)| i64::from(share.wake)).max();
    let Some(most) = most else {
        return Ok(false);
    };
    let page = i64::try_from(LOOK_AT / limits.len()).unwrap_or(1);
    let mut look_at = most;
    let mut any = false;
    for _ in 0..ROUNDS {
        let dropped = sqlx::query(DROP)
            .bind(&limits)
            .bind(&keys)
            .bind(asking)
            .bind(look_at)
            .execute(&mut *connection)
            .await?;
        if dropped.rows_affected() == 0 {
            break;
        }
        any = true;
        look_at = most.max(page);
    }
    Ok(any)
}

/// Wakes waiting jobs of keys, as many as the shares say. Adds them to the answer.
pub(super) async fn wake(
    connection: &mut PgConnection,
    shares: &[(&KeyRequest, Share)],
    asking: &[Uuid],
    answer: &mut PermitAnswer,
) -> Result<(), StoreError> {
    let wakes = || shares.iter().filter(|(_, share)| share.wake > 0);
    let (limits, keys) = names(wakes().map(|(of, _)| &of.key));
    if limits.is_empty() {
        return Ok(());
    }
    let numbers: Vec<i32> = wakes().map(|(_, share)| share.wake).collect();
    let rows = sqlx::query(WAKE)
        .bind(&limits)
        .bind(&keys)
        .bind(&numbers)
        .bind(asking)
        .fetch_all(connection)
        .await?;
    for row in &rows {
        let ready = decode::ready(row)?;
        answer.woken.push((ready.hint.id, decode::needs(row)?));
        answer.ready.push(ready);
    }
    Ok(())
}
