//! Operators' actions in the caller's transaction.
//!
//! An action that fails is undone by a savepoint. No statement waits for the row of a job, of its lease
//! or of its instance: if another transaction has locked it, the action tries again. So no action waits
//! in a deadlock over these rows. A node's completion does wait for them. Two handlers in transactions
//! that cancel or unlock each other's jobs hold each other's lease: their completions deadlock, PostgreSQL
//! ends one with 40P01, and that handler runs again, as after any conflict.
//!
//! A caller's transaction may last long, so it must not keep the row of a job that runs: the job's
//! completion would wait. A node may lock a job after a statement has looked at the leases and before it
//! has locked the row. So the leases are read again after each round, and the savepoint frees the rows.

use std::collections::HashSet;

use sqlx::PgConnection;
use tokio::time::Instant;
use uuid::Uuid;

use super::attempts;
use super::change::change_free;
use super::complete::{enter_held, release_in};
use super::operate::{ROWS_AGAIN, ROWS_WITHIN, delete_free, retry_free, sorted, still};
use super::sql::unlocked;
use crate::job::{Fence, JobId, JobState, LockToken, NodeId};
use crate::store::error::StoreError;
use crate::store::{Action, Operated, OperatedJobs};

/// A transaction with one snapshot would not see a lock that was committed after it began, and would
/// move a job that runs.
const SEES_LATEST: &str = "SELECT current_setting('transaction_isolation') LIKE 'read %'";

/// Plans each statement of the action when it runs, as in a node's transactions. A plan that the server
/// keeps may be one for empty tables. The setting of the caller is remembered; the end of the savepoint
/// would not restore it.
macro_rules! fresh_plans {
    () => {
        "; SELECT set_config('jobwire.plan_cache_mode', current_setting('plan_cache_mode'), true)\
         ; SET LOCAL plan_cache_mode = force_custom_plan"
    };
}

const SAVEPOINT: &str = concat!("SAVEPOINT jobwire_action", fresh_plans!());
const AGAIN: &str = concat!("ROLLBACK TO SAVEPOINT jobwire_action", fresh_plans!());
const KEEP: &str = "
SELECT set_config('plan_cache_mode', current_setting('jobwire.plan_cache_mode'), true);
RELEASE SAVEPOINT jobwire_action";
const UNDO: &str = "ROLLBACK TO SAVEPOINT jobwire_action; RELEASE SAVEPOINT jobwire_action";

/// Returns whether each statement of the transaction sees what was committed before it.
pub(super) async fn sees_latest(connection: &mut PgConnection) -> Result<bool, StoreError> {
    let sees_latest = sqlx::query_scalar(SEES_LATEST).fetch_one(connection);
    Ok(sees_latest.await?)
}

/// Performs an action. If it fails, nothing is changed.
pub(super) async fn operate(
    connection: &mut PgConnection,
    ids: &[JobId],
    action: &Action,
) -> Result<OperatedJobs, StoreError> {
    if !sees_latest(connection).await? {
        return Err(StoreError::TooIsolated);
    }
    sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
    let acted = act(connection, ids, action).await;
    end(connection, acted).await
}

/// Returns those of the jobs that have an open incident. The transaction survives a failure.
pub(super) async fn open_incidents(
    connection: &mut PgConnection,
    jobs: &[JobId],
) -> Result<Vec<JobId>, StoreError> {
    sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
    let open = attempts::open(&mut *connection, jobs).await;
    end(connection, open).await
}

async fn end<T>(
    connection: &mut PgConnection,
    acted: Result<T, StoreError>,
) -> Result<T, StoreError> {
    end_savepoint(connection, acted, KEEP, UNDO).await
}

/// Ends a savepoint: keeps what succeeded, and undoes what failed.
pub(super) async fn end_savepoint<T>(
    connection: &mut PgConnection,
    result: Result<T, StoreError>,
    keep: &'static str,
    undo: &'static str,
) -> Result<T, StoreError> {
    let end = if result.is_ok() { keep } else { undo };
    let ended = sqlx::raw_sql(end).execute(connection).await;
    let value = result?;
    ended?;
    Ok(value)
}

async fn act(
    connection: &mut PgConnection,
    ids: &[JobId],
    action: &Action,
) -> Result<OperatedJobs, StoreError> {
    let (mut asked, mut acted, mut left) = (sorted(ids), OperatedJobs::default(), Vec::new());
    let until = Instant::now() + ROWS_WITHIN;
    loop {
        let held_up = round(connection, &mut asked, action, &mut acted, &mut left).await?;
        let locked = held_up.or_else(|| asked.first().copied());
        let Some(locked) = locked else {
            break;
        };
        if Instant::now() >= until {
            return Err(StoreError::RowLocked(JobId(locked)));
        }
        if held_up.is_some() {
            sqlx::raw_sql(AGAIN).execute(&mut *connection).await?;
            (asked, acted, left) = (sorted(ids), OperatedJobs::default(), Vec::new());
        }
        tokio::time::sleep(ROWS_AGAIN).await;
    }
    left.sort_unstable();
    left.dedup();
    acted.left = left;
    Ok(acted)
}

/// Performs an action on those of the jobs whose rows are free, and leaves the others in `asked`.
/// Returns a job that other transactions may be waiting for, if there is one. Then all rounds must be
/// undone.
async fn round(
    connection: &mut PgConnection,
    asked: &mut Vec<Uuid>,
    action: &Action,
    acted: &mut OperatedJobs,
    left: &mut Vec<String>,
) -> Result<Option<Uuid>, StoreError> {
    if *action == Action::Unlock {
        for id in std::mem::take(asked) {
            if !unlock(connection, id, acted).await? {
                return Ok(Some(id));
            }
        }
        return Ok(None);
    }
    let running = that_run(connection, asked).await?;
    asked.retain(|id| !running.contains(id));
    let how = match action {
        Action::Change(change) if !change.applies_to(JobState::Executable) => Operated::OtherState,
        _ => Operated::Running,
    };
    let told = running.into_iter().map(|id| (JobId(id), how));
    acted.operated.extend(told);
    if !asked.is_empty() {
        let tried = asked.clone();
        match action {
            Action::Retry(attempts) => retry_free(connection, asked, *attempts, acted).await?,
            Action::Change(change) => change_free(connection, asked, change, acted, left).await?,
            _ => delete_free(connection, asked, acted, left).await?,
        }
        // From now on no node can lock a job whose row is locked here.
        let since = that_run(connection, &tried).await?;
        if let Some(id) = since.into_iter().min() {
            return Ok(Some(id));
        }
    }
    if *action == Action::Cancel {
        asked.extend(cancel_running(connection, acted).await?);
    }
    Ok(None)
}

const RUNNING: &str = concat!(
    "SELECT j.id FROM jobwire.job j WHERE j.id = ANY($1) AND NOT ",
    unlocked!("j")
);

/// Returns those of the jobs that a node runs.
pub(super) async fn that_run(
    connection: &mut PgConnection,
    jobs: &[Uuid],
) -> Result<HashSet<Uuid>, StoreError> {
    if jobs.is_empty() {
        return Ok(HashSet::new());
    }
    let running: Vec<Uuid> = sqlx::query_scalar(RUNNING)
        .bind(jobs)
        .fetch_all(connection)
        .await?;
    Ok(running.into_iter().collect())
}

/// Marks the leases that no other transaction has locked.
const MARK_FREE: &str = "
UPDATE jobwire.job_lease SET cancelled_at = coalesce(cancelled_at, clock_timestamp())
WHERE job_id IN (SELECT job_id FROM jobwire.job_lease WHERE job_id = ANY($1) AND owner IS NOT NULL
                 FOR UPDATE SKIP LOCKED)
RETURNING job_id";

/// Marks those of the jobs as cancelled that run and whose leases are free, and returns them.
pub(super) async fn mark_free(
    connection: &mut PgConnection,
    running: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    if running.is_empty() {
        return Ok(Vec::new());
    }
    let mark = sqlx::query_scalar(MARK_FREE).bind(running);
    Ok(mark.fetch_all(connection).await?)
}

/// Marks the jobs that run as cancelled. Removes those from the result that no longer run, or whose
/// leases are locked, and returns them.
async fn cancel_running(
    connection: &mut PgConnection,
    acted: &mut OperatedJobs,
) -> Result<Vec<Uuid>, StoreError> {
    let runs = |how: Operated| how == Operated::Running;
    let running = acted.operated.iter().filter(|(_, how)| runs(*how));
    let running: Vec<Uuid> = running.map(|(id, _)| id.0).collect();
    let marked = mark_free(connection, &running).await?;
    acted
        .operated
        .retain(|(id, how)| !runs(*how) || marked.contains(&id.0));
    Ok(running
        .into_iter()
        .filter(|id| !marked.contains(id))
        .collect())
}

/// Selects the lock of a job, and the instance of an exclusive one.
const HELD: &str = "
SELECT l.owner, l.fence, CASE WHEN j.exclusive THEN j.process_instance END
FROM jobwire.job j JOIN jobwire.job_lease l ON l.job_id = j.id
WHERE j.id = $1 AND l.owner IS NOT NULL";

/// Locks the rows that a release writes. Selects whether no other transaction has locked one of them.
const ENTER_FREE: &str = "
WITH instance AS MATERIALIZED (
    SELECT process_instance FROM jobwire.instance_lock WHERE process_instance = $4
    FOR UPDATE SKIP LOCKED
), lease AS MATERIALIZED (
    SELECT job_id FROM jobwire.job_lease WHERE job_id = $1 AND owner = $2 AND fence = $3
    FOR UPDATE SKIP LOCKED
), entered AS MATERIALIZED (
    SELECT id FROM jobwire.job WHERE id = $1 FOR UPDATE SKIP LOCKED
)
SELECT EXISTS (SELECT FROM lease) AND EXISTS (SELECT FROM entered)
    AND (EXISTS (SELECT FROM instance)
         OR NOT EXISTS (SELECT FROM jobwire.instance_lock WHERE process_instance = $4))";

/// Takes the lock of a job from its node. Returns false if another transaction has locked a row of the
/// job. Then this one may have locked others.
async fn unlock(
    connection: &mut PgConnection,
    id: Uuid,
    acted: &mut OperatedJobs,
) -> Result<bool, StoreError> {
    let held: Option<(Uuid, i64, Option<String>)> = sqlx::query_as(HELD)
        .bind(id)
        .fetch_optional(&mut *connection)
        .await?;
    let unlocked = match held {
        None if still(connection, &[id]).await?.is_empty() => Operated::NotFound,
        None => Operated::OtherState,
        Some((owner, fence, instance)) => {
            let is_free: bool = sqlx::query_scalar(ENTER_FREE)
                .bind(id)
                .bind(owner)
                .bind(fence)
                .bind(&instance)
                .fetch_one(&mut *connection)
                .await?;
            if !is_free {
                return Ok(false);
            }
            let names: Vec<String> = instance.iter().cloned().collect();
            let held = [LockToken {
                id: JobId(id),
                fence: Fence(fence),
                instance,
            }];
            let holders = enter_held(connection, &names).await?;
            let released = release_in(connection, NodeId(owner), &held, &holders).await?;
            acted.ready.extend(released.ready);
            acted.cancelled.extend(released.cancelled);
            Operated::Done
        }
    };
    acted.operated.push((JobId(id), unlocked));
    Ok(true)
}
