//! Operations on existing jobs in the caller's transaction.

mod caller;
mod gates;
mod locked_gates;
mod postgres;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::chrono::{DateTime, Utc};
use jobwire_core::store::{Change, Handoff, Operated};
use jobwire_core::{
    Client, HandlerOptions, JobEvent, JobId, JobState, NewJob, Outcome, RetryPolicy, Running,
    StoreError,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

pub(super) use self::gates::{
    a_scope_is_activated_with_the_callers_row, a_scope_is_suspended_with_the_callers_row,
    an_interrupted_suspension_commits_nothing,
    handlers_suspend_and_activate_in_their_completing_transactions,
    what_is_activated_without_a_transport_is_noted,
    what_one_transaction_suspends_and_activates_runs,
};

use self::caller::{KINDS, Operation, Outlet, RETRIED, Told, Transaction, with_orders};
use super::bed::{Bed, noting};
use super::changing::in_an_hour;
use super::world::{SqlBench, World, give_up, node, work};

/// Where a job is before an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Waits(JobState),
    Runs,
}

/// The jobs that the commit hints.
#[derive(Clone, Copy, Debug)]
enum Hinted {
    Nobody,
    Itself,
    /// The next exclusive job of its instance.
    Next,
}

struct Case {
    operation: Operation,
    before: Before,
    hinted: Hinted,
    /// The state after the commit.
    after: Option<JobState>,
}

fn cases(due: DateTime<Utc>) -> Vec<Case> {
    use JobState::{DeadLetter, Executable, Suspended, Timer};
    let waits = Before::Waits;
    let change = Operation::Change;
    let reason = || "an operator decided".to_owned();
    let of = |operation, before, hinted, after: JobState| Case {
        operation,
        before,
        hinted,
        after: Some(after),
    };
    let gone = |operation| Case {
        operation,
        before: waits(Executable),
        hinted: Hinted::Next,
        after: None,
    };
    vec![
        of(
            Operation::Retry,
            waits(DeadLetter),
            Hinted::Itself,
            Executable,
        ),
        of(
            Operation::RetryMany,
            waits(Timer),
            Hinted::Itself,
            Executable,
        ),
        of(
            change(Change::MakeExecutable),
            waits(Timer),
            Hinted::Itself,
            Executable,
        ),
        of(
            change(Change::Activate),
            waits(Suspended),
            Hinted::Itself,
            Executable,
        ),
        of(
            change(Change::Reschedule(due)),
            waits(Executable),
            Hinted::Next,
            Timer,
        ),
        of(
            change(Change::Suspend),
            waits(Executable),
            Hinted::Next,
            Suspended,
        ),
        of(
            change(Change::MakeDeadLetter(reason())),
            waits(Executable),
            Hinted::Next,
            DeadLetter,
        ),
        of(
            change(Change::SetRetries(9)),
            waits(Executable),
            Hinted::Nobody,
            Executable,
        ),
        of(
            change(Change::SetPriority(-7)),
            waits(Executable),
            Hinted::Nobody,
            Executable,
        ),
        gone(Operation::Delete),
        gone(Operation::DeleteMany),
        gone(Operation::Cancel),
        of(Operation::Cancel, Before::Runs, Hinted::Nobody, Executable),
        of(Operation::Unlock, Before::Runs, Hinted::Itself, Executable),
    ]
}

/// Creates two exclusive jobs of an instance, and brings the first one to where the case begins.
async fn two_jobs<S: SqlBench>(w: &World<S>, instance: String, before: Before) -> (JobId, JobId) {
    let of = || work().instance(instance.clone());
    let hints = w.ready(vec![of(), of()]).await;
    let (job, next) = (hints[0].id, hints[1].id);
    let brought = match before {
        Before::Runs => {
            w.hold(node(), &hints[0]).await;
            return (job, next);
        }
        Before::Waits(JobState::Timer) => Change::Reschedule(in_an_hour()),
        Before::Waits(JobState::Suspended) => Change::Suspend,
        Before::Waits(JobState::DeadLetter) => Change::MakeDeadLetter("brought".to_owned()),
        Before::Waits(_) => return (job, next),
    };
    let changed = w.store.change_many(&[job], &brought).await.unwrap();
    assert_eq!(changed.operated, [(job, Operated::Done)]);
    (job, next)
}

/// Each operation happens with the caller's row. The hints, the message to the leader and that to the
/// node are published after the commit, and never after a rollback.
pub(super) async fn an_operation_commits_with_the_callers_row<S: SqlBench>(w: &World<S>) {
    with_orders(w).await;
    let outlet = Outlet::default();
    let client = outlet.client(w);
    let (mut expected, mut orders) = (Told::default(), 0);
    for kind in KINDS {
        let due = in_an_hour();
        for (n, case) in cases(due).into_iter().enumerate() {
            let Case {
                operation,
                before,
                hinted,
                after,
            } = case;
            let place = format!("{kind:?}: {operation:?} of a job that is {before:?}");
            let (job, next) = two_jobs(w, format!("{kind:?} {n}"), before).await;
            let was = format!("{:?}", w.view(job).await);
            let cancels = matches!(operation, Operation::Cancel) && before == Before::Runs;
            let how = if cancels {
                Operated::Running
            } else {
                Operated::Done
            };

            let mut tx = Transaction::begin(kind, &client).await;
            let done = tx.operate(&operation, &[job]).await.unwrap();
            assert_eq!(done, [(job, how)], "{place}");
            tx.rollback().await;
            assert_eq!(format!("{:?}", w.view(job).await), was, "{place}");

            let mut tx = Transaction::begin(kind, &client).await;
            let done = tx.operate(&operation, &[job]).await.unwrap();
            assert_eq!(done, [(job, how)], "{place}");
            assert_eq!(format!("{:?}", w.view(job).await), was, "{place}");
            assert_eq!(outlet.told(), expected, "{place}: told before the commit");
            tx.commit().await.unwrap();

            expected.hints.extend(match hinted {
                Hinted::Nobody => None,
                Hinted::Itself => Some(job),
                Hinted::Next => Some(next),
            });
            if let Operation::Change(Change::Reschedule(due)) = &operation {
                expected.timers.push(*due);
            }
            expected.stop.extend(cancels.then_some(job));
            eventually("the hints of a commit", SOON, async || {
                (outlet.told().hints.len() >= expected.hints.len()).then_some(())
            })
            .await;
            assert_eq!(outlet.told(), expected, "{place}");

            orders += 1;
            assert_eq!(w.rows("orders").await, orders, "{place}");
            let is = w.view(job).await;
            assert_eq!(is.as_ref().map(|is| is.state), after, "{place}");
            let Some(is) = is else { continue };
            assert_eq!(is.cancelled_at.is_some(), cancels, "{place}");
            assert_eq!(is.lock_owner.is_some(), cancels, "{place}");
            match operation {
                Operation::Retry | Operation::RetryMany => assert_eq!(is.retries, RETRIED),
                Operation::Change(Change::SetRetries(retries)) => assert_eq!(is.retries, retries),
                Operation::Change(Change::SetPriority(n)) => assert_eq!(is.priority, n),
                _ => {}
            }
        }
    }
}

/// A job that its transaction has deleted or moved is hinted as well, because a savepoint may have undone
/// that.
pub(super) async fn a_transaction_hints_each_job_once_at_its_commit<S: SqlBench>(w: &World<S>) {
    let outlet = Outlet::default();
    let client = outlet.client(w);
    let mut tx = client.begin().await.unwrap();
    let jobs = vec![work(), work(), work(), work()];
    let mut created = tx.create_many(jobs).await.unwrap();
    let [suspended, deleted, moved, kept] = created[..] else {
        panic!("{created:?}");
    };
    tx.change(&[suspended], &Change::Suspend).await.unwrap();
    assert_eq!(tx.delete(deleted).await.unwrap(), Operated::Done);
    assert_eq!(tx.delete(deleted).await.unwrap(), Operated::NotFound);
    tx.change(&[moved], &Change::Suspend).await.unwrap();
    tx.change(&[moved], &Change::Activate).await.unwrap();
    tx.retry(moved, RETRIED).await.unwrap();
    assert!(tx.retry_many(&[], RETRIED).await.unwrap().is_empty());
    S::execute_in(&mut tx, "SAVEPOINT mine").await;
    assert_eq!(tx.delete(kept).await.unwrap(), Operated::Done);
    S::execute_in(&mut tx, "ROLLBACK TO SAVEPOINT mine").await;
    tx.commit().await.unwrap();
    eventually("the hints", SOON, async || {
        (outlet.told().hints.len() >= created.len()).then_some(())
    })
    .await;
    let mut hinted = outlet.told().hints;
    hinted.sort_unstable();
    created.sort_unstable();
    assert_eq!(hinted, created);
    assert_eq!(w.state(kept).await, Some(JobState::Executable));
    assert_eq!(w.state(suspended).await, Some(JobState::Suspended));
    assert_eq!(w.state(moved).await, Some(JobState::Executable));
    assert_eq!(w.state(deleted).await, None);
}

/// The answers for a job that an operation does not apply to are those of the client's own operations.
pub(super) async fn an_operation_that_does_not_apply_says_why<S: SqlBench>(w: &World<S>) {
    with_orders(w).await;
    let client = Client::without_hints(w.store.clone());
    let (running, waiting) = (w.one(work()).await, w.one(work()).await);
    let worker = node();
    let job = w.hold(worker, &running).await;
    let nobody = JobId::generate();
    for kind in KINDS {
        let mut tx = Transaction::begin(kind, &client).await;
        let suspend = Operation::Change(Change::Suspend);
        for operation in [Operation::RetryMany, Operation::DeleteMany, suspend] {
            let mut told = tx.operate(&operation, &[nobody, running.id]).await.unwrap();
            told.sort_unstable_by_key(|(id, _)| *id);
            let expected = [
                (running.id, Operated::Running),
                (nobody, Operated::NotFound),
            ];
            assert_eq!(told, expected, "{operation:?}");
        }
        for (operation, id, expected) in [
            (Operation::Cancel, nobody, Operated::NotFound),
            (Operation::Unlock, nobody, Operated::NotFound),
            (Operation::Unlock, waiting.id, Operated::OtherState),
            (
                Operation::Change(Change::Activate),
                waiting.id,
                Operated::OtherState,
            ),
        ] {
            let told = tx.operate(&operation, &[id]).await.unwrap();
            assert_eq!(told, [(id, expected)], "{operation:?}");
        }
        let none = Operation::Change(Change::SetRetries(0));
        let refused = tx.operate(&none, &[waiting.id]).await;
        assert!(
            matches!(refused, Err(StoreError::InvalidChange(_))),
            "{refused:?}"
        );
        tx.commit().await.unwrap();
    }
    assert_eq!(w.view(waiting.id).await.unwrap().retries, 3);
    let settled = w.complete(worker, &job, &Handoff::Hint).await;
    assert_eq!(settled.applied, [running.id]);
}

/// If the database refuses an operation for one job, the operation changes no job. Its transaction
/// continues.
pub(super) async fn a_refused_operation_changes_nothing_and_its_transaction_goes_on<S: SqlBench>(
    w: &World<S>,
) {
    with_orders(w).await;
    let client = Client::without_hints(w.store.clone());
    let (good, keyless) = (w.one(work()).await, w.one(work().unique("k")).await);
    for hint in [&good, &keyless] {
        let worker = node();
        let job = w.hold(worker, hint).await;
        w.fail(worker, give_up(&job)).await;
    }
    // This job has the key of the second dead letter, which can't be revived.
    w.one(work().unique("k")).await;
    for (orders, kind) in (1..).zip(KINDS) {
        let mut tx = Transaction::begin(kind, &client).await;
        let both = [good.id, keyless.id];
        let refused = tx.operate(&Operation::RetryMany, &both).await.unwrap_err();
        assert!(refused.to_string().contains("unique key"), "{refused}");
        let higher = Operation::Change(Change::SetPriority(orders));
        tx.operate(&higher, &both).await.unwrap();
        tx.commit().await.unwrap();
        for id in both {
            let view = w.view(id).await.unwrap();
            assert_eq!((view.state, view.priority), (JobState::DeadLetter, orders));
        }
        assert_eq!(w.rows("orders").await, orders);
    }
}

/// A future that is dropped may have changed some jobs already.
pub(super) async fn an_interrupted_operation_commits_nothing<S: SqlBench>(w: &World<S>) {
    with_orders(w).await;
    let client = Client::without_hints(w.store.clone());
    let hint = w.one(work()).await;
    let suspend = Operation::Change(Change::Suspend);
    for kind in KINDS {
        let asked = [hint.id];
        // A thread that loses its processor between sending and reading finds the answer at once.
        let mut tx = loop {
            let mut tx = Transaction::begin(kind, &client).await;
            tokio::select! {
                biased;
                done = tx.operate(&suspend, &asked) => drop(done),
                () = std::future::ready(()) => break tx,
            }
        };
        // A later operation does not hide it.
        tx.operate(&Operation::RetryMany, &asked).await.unwrap();
        let refused = tx.commit().await;
        assert!(
            matches!(refused, Err(StoreError::TransactionFailed)),
            "{refused:?}"
        );
        assert_eq!(w.rows("orders").await, 0);
        assert_eq!(w.state(hint.id).await, Some(JobState::Executable));
    }
}

pub(super) async fn the_events_of_operations_are_told_after_the_commit<S: SqlBench>(w: &World<S>) {
    with_orders(w).await;
    let heard: Arc<Mutex<Vec<(JobId, &str)>>> = Arc::default();
    let notes = heard.clone();
    let listener = move |event: &JobEvent| {
        let event = (event.job, event.kind.name());
        notes.lock().unwrap().push(event);
    };
    let client = Outlet::default().client(w).listener(listener);
    let mut expected = Vec::new();
    for kind in KINDS {
        let instance = format!("{kind:?}");
        let letter = Before::Waits(JobState::DeadLetter);
        let (job, _) = two_jobs(w, instance, letter).await;
        let due = in_an_hour();
        for commits in [false, true] {
            let mut tx = Transaction::begin(kind, &client).await;
            for operation in [
                Operation::Retry,
                Operation::Change(Change::Reschedule(due)),
                Operation::Change(Change::MakeDeadLetter("again".to_owned())),
                Operation::Delete,
            ] {
                let done = tx.operate(&operation, &[job]).await.unwrap();
                assert_eq!(done, [(job, Operated::Done)], "{operation:?}");
            }
            if commits {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await;
            }
        }
        let events = "rescheduled incident_closed rescheduled dead_lettered incident_opened \
                      cancelled incident_closed";
        expected.extend(events.split(' ').map(|event| (job, event)));
        eventually("the events", SOON, async || {
            (heard.lock().unwrap().len() >= expected.len()).then_some(())
        })
        .await;
        assert_eq!(*heard.lock().unwrap(), expected, "{kind:?}");
    }
}

/// The release of a cancelled job deletes it.
pub(super) async fn a_cancelled_job_that_is_unlocked_ends_as_cancelled<S: SqlBench>(w: &World<S>) {
    with_orders(w).await;
    let heard: Arc<Mutex<Vec<(JobId, &str)>>> = Arc::default();
    let notes = heard.clone();
    let listener = move |event: &JobEvent| {
        let event = (event.job, event.kind.name());
        notes.lock().unwrap().push(event);
    };
    let client = Outlet::default().client(w).listener(listener);
    let mut expected = Vec::new();
    for kind in KINDS.map(Some).into_iter().chain([None]) {
        let hint = w.one(work()).await;
        w.hold(node(), &hint).await;
        assert_eq!(client.cancel(hint.id).await.unwrap(), Operated::Running);
        if let Some(kind) = kind {
            let mut tx = Transaction::begin(kind, &client).await;
            let done = tx.operate(&Operation::Unlock, &[hint.id]).await.unwrap();
            assert_eq!(done, [(hint.id, Operated::Done)]);
            tx.commit().await.unwrap();
        } else {
            // Without a transaction of the caller.
            assert_eq!(client.unlock(hint.id).await.unwrap(), Operated::Done);
        }
        assert_eq!(w.state(hint.id).await, None);
        expected.push((hint.id, "cancelled"));
        eventually("the event", SOON, async || {
            (heard.lock().unwrap().len() >= expected.len()).then_some(())
        })
        .await;
        assert_eq!(*heard.lock().unwrap(), expected, "{kind:?}");
    }
}

/// The first attempt is rolled back, with the revival in it.
pub(super) async fn a_handler_operates_on_jobs_in_its_completing_transaction<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let dead = w.one(NewJob::of("note", "revived")).await.id;
    let letter = Change::MakeDeadLetter("brought".to_owned());
    w.store.change_many(&[dead], &letter).await.unwrap();
    let revive = move |job: Running<i64>| async move {
        let mut tx = job.transaction::<S>().await?;
        let retried = tx.transaction().retry(dead, 3).await?;
        if retried != Operated::Done || job.job.failures == 0 {
            return Err("not yet".into());
        }
        Ok(Outcome::Done)
    };
    let inside = HandlerOptions::default()
        .in_transaction()
        .retry(RetryPolicy::fixed(Duration::ZERO));
    let node = bed
        .node(quick())
        .handler("note", noting(&bed.notes))
        .handler_with("revive", inside, revive)
        .start()
        .await
        .unwrap();
    bed.create(vec![NewJob::of("revive", &1)]).await;
    bed.until_left(0).await;
    assert_eq!(bed.notes.all(), ["revived"]);
    node.stop().await;
}
