//! Operators' actions in the caller's transaction. An action that fails is undone by a savepoint.

use sqlx::{Row, SqliteConnection};

use super::change::change;
use super::complete::release_in;
use super::decode;
use super::operate::{delete_many, exists, mark_cancelled, retry};
use crate::job::{Fence, JobId, LockToken, NodeId};
use crate::store::error::StoreError;
use crate::store::{Action, Operated, OperatedJobs};

const SAVEPOINT: &str = "SAVEPOINT jobwire_action";
const KEEP: &str = "RELEASE jobwire_action";
const UNDO: &str = "ROLLBACK TO jobwire_action; RELEASE jobwire_action";

/// Performs an action. If it fails, nothing is changed.
pub(super) async fn operate(
    connection: &mut SqliteConnection,
    ids: &[JobId],
    action: &Action,
) -> Result<OperatedJobs, StoreError> {
    sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
    let acted = act(connection, ids, action).await;
    let end = if acted.is_ok() { KEEP } else { UNDO };
    let ended = sqlx::raw_sql(end).execute(&mut *connection).await;
    let acted = acted?;
    ended?;
    Ok(acted)
}

async fn act(
    connection: &mut SqliteConnection,
    ids: &[JobId],
    action: &Action,
) -> Result<OperatedJobs, StoreError> {
    match action {
        Action::Retry(attempts) => retry(connection, ids, *attempts).await,
        Action::Delete => delete_many(connection, ids).await,
        Action::Cancel => {
            let cancelled = delete_many(connection, ids).await?;
            for (id, operated) in &cancelled.operated {
                if *operated == Operated::Running {
                    mark_cancelled(connection, *id).await?;
                }
            }
            Ok(cancelled)
        }
        Action::Change(asked) => change(connection, ids, asked).await,
        Action::Unlock => {
            let mut unlocked = OperatedJobs::default();
            for id in ids {
                unlock(connection, *id, &mut unlocked).await?;
            }
            Ok(unlocked)
        }
    }
}

/// Selects the lock of a job, and the instance of an exclusive one.
const HELD: &str = "
SELECT l.owner, l.fence, CASE WHEN j.exclusive THEN j.process_instance END
FROM job j JOIN job_lease l ON l.job_id = j.id
WHERE j.id = ?1 AND l.owner IS NOT NULL";

/// Takes the lock of a job from its node.
async fn unlock(
    connection: &mut SqliteConnection,
    id: JobId,
    unlocked: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let held = sqlx::query(HELD)
        .bind(id.to_string())
        .fetch_optional(&mut *connection)
        .await?;
    let operated = match held {
        None if !exists(connection, id).await? => Operated::NotFound,
        None => Operated::OtherState,
        Some(row) => {
            let held = LockToken {
                id,
                fence: Fence(row.try_get(1)?),
                instance: decode::instance(&row, 2),
            };
            let owner = NodeId(decode::uuid(&row, 0)?);
            let now = decode::now_micros();
            let released = release_in(connection, owner, now, &[held]).await?;
            unlocked.ready.extend(released.ready);
            unlocked.cancelled.extend(released.cancelled);
            Operated::Done
        }
    };
    unlocked.operated.push((id, operated));
    Ok(())
}
