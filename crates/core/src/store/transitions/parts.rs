//! Transitions that run in several statements if the database refuses a row or a row is locked.

use futures_util::FutureExt;

use crate::hint::Ready;
use crate::job::{JobId, JobState, Lane};
use crate::store::error::StoreError;
use crate::store::poison::{Activated, Found, found_page};
use crate::store::statements::Statements;
use crate::store::{LockTerms, MovedTimers, OperatedJobs, Result, SuspensionScope};

/// Moves due timers and locks those that `take` allows. If the database refuses the page, moves it
/// in parts and locks none of them.
pub(super) async fn timers<S: Statements>(
    store: &S,
    at_most: i64,
    take: Option<(&LockTerms, &[Lane])>,
) -> Result<MovedTimers> {
    let statement = "move_due_timers";
    let whole = store.run(statement, || store.move_due(at_most, take, None));
    let found = |at_most| {
        let due = move || async move { Ok(Found::of(store.due(at_most).await?, at_most)) };
        store.run(statement, due).boxed()
    };
    found_page(store, statement, JobState::Timer, whole, found, |these| {
        let part = async move {
            let move_these = || store.move_due(i64::MAX, None, Some(&these));
            store.run(statement, move_these).await
        };
        part.boxed()
    })
    .await
}

/// Deletes these jobs in one transaction, then, one by one, those whose rows were locked.
pub(super) async fn delete_page<S: Statements>(store: &S, ids: Vec<JobId>) -> Result<OperatedJobs> {
    let delete = || store.delete_jobs(&ids);
    let (mut deleted, busy) = store.run("delete", delete).await?;
    // The other jobs are deleted already. After a transient error for one row, the rest is not
    // tried.
    let mut waited: Option<StoreError> = None;
    for id in busy {
        let error = match waited {
            Some(ref error) => error.to_string(),
            None => match store.run("delete", || store.delete_job(id)).await {
                Ok((operated, ready)) => {
                    deleted.operated.push((id, operated));
                    deleted.ready.extend(ready);
                    continue;
                }
                Err(error) => {
                    let reason = error.to_string();
                    waited = error.is_transient().then_some(error);
                    reason
                }
            },
        };
        deleted.refused.push((id, error));
    }
    Ok(deleted)
}

/// Ends a suspension. If the database refuses that, brings its jobs back in parts first.
pub(super) async fn end_suspension<S: Statements>(
    store: &S,
    scope: &SuspensionScope,
) -> Result<Option<Vec<Ready>>> {
    let end = || store.end_suspension(scope);
    let whole = async move { Ok(Activated::AtOnce(store.run("activate", end).await?)) };
    let found = |_| {
        let put_aside = || async { Ok(Found::of(store.put_aside(scope).await?, i64::MAX)) };
        store.run("activate", put_aside).boxed()
    };
    let state = JobState::Suspended;
    let activated = found_page(store, "activate", state, whole, found, |these| {
        let part = async move {
            let bring_back = || store.bring_back(scope, &these);
            Ok(Activated::InParts(store.run("activate", bring_back).await?))
        };
        part.boxed()
    });
    match activated.await? {
        Activated::AtOnce(ready) => Ok(ready),
        // The suspension ends in the transaction that brings back the remaining jobs, so it leaves
        // none.
        Activated::InParts(mut ready) => {
            let rest = store.run("activate", end).await?;
            ready.extend(rest.into_iter().flatten());
            Ok(Some(ready))
        }
    }
}
