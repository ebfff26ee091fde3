//! Operators' actions in the caller's transaction.
//!
//! An action that fails is undone by a savepoint. No statement waits for the row of a job: if another
//! transaction has locked it, the action tries again. So two callers, or a caller and a node, can't
//! deadlock over the rows of jobs.

use sqlx::PgConnection;
use tokio::time::Instant;
use uuid::Uuid;

use super::change::change_free;
use super::complete::{enter_held, release_in};
use super::exclusive;
use super::operate::{
    ROWS_AGAIN, ROWS_WITHIN, delete_free, mark_cancelled, retry_free, sorted, still,
};
use crate::job::{Fence, JobId, LockToken, NodeId};
use crate::store::error::StoreError;
use crate::store::{Action, Operated, OperatedJobs};

/// A transaction with one snapshot would not see a lock that was committed after it began, and would
/// move a job that runs.
const SEES_LATEST: &str = "SELECT current_setting('transaction_isolation') LIKE 'read %'";

const SAVEPOINT: &str = "SAVEPOINT jobwire_action";
const KEEP: &str = "RELEASE SAVEPOINT jobwire_action";
const UNDO: &str = "ROLLBACK TO SAVEPOINT jobwire_action; RELEASE SAVEPOINT jobwire_action";

/// Performs an action. If it fails, nothing is changed.
pub(super) async fn operate(
    connection: &mut PgConnection,
    ids: &[JobId],
    action: &Action,
) -> Result<OperatedJobs, StoreError> {
    let sees_latest: bool = sqlx::query_scalar(SEES_LATEST)
        .fetch_one(&mut *connection)
        .await?;
    if !sees_latest {
        return Err(StoreError::TooIsolated);
    }
    sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
    let acted = act(connection, ids, action).await;
    let end = if acted.is_ok() { KEEP } else { UNDO };
    let ended = sqlx::raw_sql(end).execute(&mut *connection).await;
    let acted = acted?;
    ended?;
    Ok(acted)
}

async fn act(
    connection: &mut PgConnection,
    ids: &[JobId],
    action: &Action,
) -> Result<OperatedJobs, StoreError> {
    let mut asked = sorted(ids);
    let (mut acted, mut left) = (OperatedJobs::default(), Vec::new());
    let until = Instant::now() + ROWS_WITHIN;
    loop {
        match action {
            Action::Retry(attempts) => {
                retry_free(connection, &mut asked, *attempts, &mut acted).await?;
            }
            Action::Delete => {
                delete_free(connection, &mut asked, &mut acted, &mut left).await?;
            }
            Action::Cancel => {
                delete_free(connection, &mut asked, &mut acted, &mut left).await?;
                asked.extend(cancel_running(connection, &mut acted).await?);
            }
            Action::Change(change) => {
                change_free(connection, &mut asked, change, &mut acted, &mut left).await?;
            }
            Action::Unlock => {
                for id in asked.drain(..) {
                    unlock(connection, id, &mut acted).await?;
                }
            }
        }
        let Some(locked) = asked.first() else {
            break;
        };
        if Instant::now() >= until {
            return Err(StoreError::RowLocked(JobId(*locked)));
        }
        tokio::time::sleep(ROWS_AGAIN).await;
    }
    left.sort_unstable();
    left.dedup();
    acted
        .ready
        .extend(exclusive::next(connection, &left).await?);
    Ok(acted)
}

/// Marks the jobs that run as cancelled. Removes the jobs that no longer run from the result, and
/// returns them.
async fn cancel_running(
    connection: &mut PgConnection,
    acted: &mut OperatedJobs,
) -> Result<Vec<Uuid>, StoreError> {
    let mut again = Vec::new();
    for (id, operated) in &acted.operated {
        if *operated == Operated::Running && !mark_cancelled(&mut *connection, id.0).await? {
            again.push(id.0);
        }
    }
    acted.operated.retain(|(id, _)| !again.contains(&id.0));
    Ok(again)
}

/// Selects the lock of a job, and the instance of an exclusive one.
const HELD: &str = "
SELECT l.owner, l.fence, CASE WHEN j.exclusive THEN j.process_instance END
FROM jobwire.job j JOIN jobwire.job_lease l ON l.job_id = j.id
WHERE j.id = $1 AND l.owner IS NOT NULL";

/// Takes the lock of a job from its node.
async fn unlock(
    connection: &mut PgConnection,
    id: Uuid,
    acted: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let held: Option<(Uuid, i64, Option<String>)> = sqlx::query_as(HELD)
        .bind(id)
        .fetch_optional(&mut *connection)
        .await?;
    let unlocked = match held {
        None if still(connection, &[id]).await?.is_empty() => Operated::NotFound,
        None => Operated::OtherState,
        Some((owner, fence, instance)) => {
            let names: Vec<String> = instance.iter().cloned().collect();
            let held = [LockToken {
                id: JobId(id),
                fence: Fence(fence),
                instance,
            }];
            let holders = enter_held(connection, &names).await?;
            let released = release_in(connection, NodeId(owner), &held, &holders).await?;
            acted.ready.extend(released.ready);
            if released.applied.is_empty() {
                Operated::OtherState
            } else {
                Operated::Done
            }
        }
    };
    acted.operated.push((JobId(id), unlocked));
    Ok(())
}
