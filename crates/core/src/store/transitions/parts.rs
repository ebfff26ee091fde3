//! Transitions that run in several statements if the database refuses a row.

use futures_util::FutureExt;

use crate::job::{JobState, Lane};
use crate::store::poison::{Activated, Found, Outcome, found_page, told_page};
use crate::store::statements::Statements;
use crate::store::{
    Gate, Lifted, LockTerms, MovedTimers, Result, Suspended, SuspensionScope, Waiting, gates,
};

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

/// Records a suspension, then moves its jobs, page by page. From the first commit on no job of the
/// scope is locked, so a suspension that is interrupted holds, and another one moves the rest.
pub(super) async fn begin_suspension<S: Statements>(
    store: &S,
    scope: &SuspensionScope,
) -> Result<Suspended> {
    let gate = Gate::from(scope.clone());
    store.run("suspend", || store.write_gate(&gate)).await?;
    move_suspended(store, scope).await
}

/// Moves the jobs of a suspension, page by page.
pub(super) async fn move_suspended<S: Statements>(
    store: &S,
    scope: &SuspensionScope,
) -> Result<Suspended> {
    let mut suspended = Suspended::default();
    let mut after = None;
    loop {
        let page = || store.suspendable(scope, after, gates::PAGE);
        let page = store.run("suspend", page).await?;
        let Some(last) = page.last().copied() else {
            return Ok(suspended);
        };
        after = Some(last);
        let whole = store.run("suspend", || store.suspend_jobs(scope, &page));
        let moved = told_page("suspend", whole, async { Ok(page.clone()) }, |these| {
            let part = async move {
                let suspend = || store.suspend_jobs(scope, &these);
                store.run("suspend", suspend).await
            };
            part.boxed()
        });
        suspended.add(moved.await?);
    }
}

/// Brings back the jobs of a suspension, part by part, and ends it with the last one. If the
/// database refuses a part, searches for the refused row once. Returns the number of jobs, or `None`
/// if there was no such suspension.
pub(super) async fn end_suspension<S: Statements>(
    store: &S,
    scope: &SuspensionScope,
) -> Result<Option<u64>> {
    let mut moved = 0;
    loop {
        let whole = store.run("activate", || store.end_part(scope, gates::PAGE));
        let found = |at_most| {
            let put_aside = move || async move {
                Ok(Found::of(store.put_aside(scope, at_most).await?, at_most))
            };
            store.run("activate", put_aside).boxed()
        };
        let state = JobState::Suspended;
        let activated = found_page(store, "activate", state, whole, found, |these| {
            let part = async move {
                let bring_back = || store.bring_back(scope, &these);
                Ok(Activated {
                    was_there: true,
                    in_parts: true,
                    ended: false,
                    moved: store.run("activate", bring_back).await?,
                })
            };
            part.boxed()
        });
        let mut activated = activated.await?;
        moved += activated.moved;
        if activated.in_parts {
            // A row that is still refused after the search keeps the suspension in place.
            let again = || store.end_part(scope, gates::PAGE);
            activated = store.run("activate", again).await?;
            moved += activated.moved;
        }
        if activated.ended || !activated.was_there {
            return Ok(activated.ended.then_some(moved));
        }
    }
}

/// Returns the first page of the jobs that waited for the end of this gate, which has committed. If
/// they can't be marked, the sweeper finds them.
pub(super) async fn first_waited<S: Statements>(store: &S, gate: Gate) -> Lifted {
    let first = Waiting::first(gate);
    let waited = store.run("waited", || store.mark_waited(&first)).await;
    waited.unwrap_or_else(|error| {
        tracing::warn!(
            %error,
            "jobs that waited for the end of a suspension or pause could not be hinted; the \
             sweeper will find them"
        );
        Lifted {
            was_there: true,
            ..Lifted::default()
        }
    })
}
