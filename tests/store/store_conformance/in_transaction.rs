//! Operations on existing jobs in the caller's transaction.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::chrono::{DateTime, Utc};
use jobwire_core::hint::Marker;
use jobwire_core::store::{Change, Handoff, Operated};
use jobwire_core::transport::{Control, Publisher, TransportError, TransportHealth};
use jobwire_core::{
    Client, CommitHook, HandlerOptions, Hint, HookOptions, JobEvent, JobId, JobState,
    JobTransaction, Lane, NewJob, Outcome, PgStore, RetryPolicy, Running, StoreError,
    TransactionHook,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

use super::bed::{Bed, noting};
use super::changing::in_an_hour;
use super::world::{SqlBench, World, give_up, node, work};

/// What a client has published.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    hints: Vec<JobId>,
    timers: Vec<DateTime<Utc>>,
    stop: Vec<JobId>,
}

/// A broker that records what is published.
#[derive(Clone, Default)]
struct Outlet(Arc<Mutex<Told>>);

impl Outlet {
    fn told(&self) -> Told {
        self.0.lock().unwrap().clone()
    }

    fn client<S: SqlBench>(&self, w: &World<S>) -> Client<S> {
        let hook = CommitHook::start(Arc::new(self.clone()), HookOptions::default());
        Client::new(w.store.clone(), hook)
    }
}

#[async_trait]
impl Publisher for Outlet {
    async fn publish(&self, _lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        let hints = hints.into_iter().map(|hint| hint.id);
        self.0.lock().unwrap().hints.extend(hints);
        Ok(())
    }

    async fn publish_marker(&self, _lane: &Lane, _marker: Marker) -> Result<(), TransportError> {
        Ok(())
    }

    fn tell(&self, control: Control) -> bool {
        let mut told = self.0.lock().unwrap();
        match control {
            Control::TimerSet { due } => told.timers.push(due),
            Control::Cancel { job } => told.stop.push(job),
            _ => {}
        }
        true
    }

    fn health(&self) -> TransportHealth {
        TransportHealth {
            publishing: true,
            ..TransportHealth::default()
        }
    }
}

/// The two kinds of a caller's transaction.
#[derive(Clone, Copy, Debug)]
enum Kind {
    OfTheClient,
    OfTheCaller,
}

const KINDS: [Kind; 2] = [Kind::OfTheClient, Kind::OfTheCaller];

enum Transaction<S: SqlBench> {
    OfTheClient(JobTransaction<S>),
    OfTheCaller(sqlx::Transaction<'static, S::Db>, TransactionHook<S>),
}

#[derive(Clone, Debug)]
enum Operation {
    Retry,
    RetryMany,
    Delete,
    DeleteMany,
    Cancel,
    Unlock,
    Change(Change),
}

/// The attempts that a retry gives.
const RETRIED: i32 = 7;

impl<S: SqlBench> Transaction<S> {
    /// Begins a transaction, and writes a row of the caller.
    async fn begin(kind: Kind, client: &Client<S>) -> Self {
        const ROW: &str = "INSERT INTO {s}orders (number) VALUES (17)";
        match kind {
            Kind::OfTheClient => {
                let mut tx = client.begin().await.unwrap();
                S::execute_in(&mut tx, ROW).await;
                Self::OfTheClient(tx)
            }
            Kind::OfTheCaller => {
                let mut tx = client.store().begin().await.unwrap();
                S::execute_in(&mut tx, ROW).await;
                Self::OfTheCaller(tx, client.hook())
            }
        }
    }

    /// Performs an operation on these jobs; one for a single job on the first.
    async fn operate(
        &mut self,
        operation: &Operation,
        ids: &[JobId],
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        let id = ids[0];
        let alone = |told: Result<Operated, StoreError>| told.map(|how| vec![(id, how)]);
        match self {
            Self::OfTheClient(tx) => match operation {
                Operation::Retry => alone(tx.retry(id, RETRIED).await),
                Operation::RetryMany => tx.retry_many(ids, RETRIED).await,
                Operation::Delete => alone(tx.delete(id).await),
                Operation::DeleteMany => tx.delete_many(ids).await,
                Operation::Cancel => alone(tx.cancel(id).await),
                Operation::Unlock => alone(tx.unlock(id).await),
                Operation::Change(change) => tx.change(ids, change).await,
            },
            Self::OfTheCaller(tx, hook) => match operation {
                Operation::Retry => alone(hook.retry(tx, id, RETRIED).await),
                Operation::RetryMany => hook.retry_many(tx, ids, RETRIED).await,
                Operation::Delete => alone(hook.delete(tx, id).await),
                Operation::DeleteMany => hook.delete_many(tx, ids).await,
                Operation::Cancel => alone(hook.cancel(tx, id).await),
                Operation::Unlock => alone(hook.unlock(tx, id).await),
                Operation::Change(change) => hook.change(tx, ids, change).await,
            },
        }
    }

    async fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::OfTheClient(tx) => tx.commit().await,
            Self::OfTheCaller(tx, hook) => hook.commit(tx).await,
        }
    }

    async fn rollback(self) {
        match self {
            Self::OfTheClient(tx) => tx.rollback().await.unwrap(),
            Self::OfTheCaller(tx, hook) => {
                tx.rollback().await.unwrap();
                drop(hook);
            }
        }
    }
}

async fn with_orders<S: SqlBench>(w: &World<S>) {
    let table = "CREATE TABLE {s}orders (number bigint)";
    w.store.execute(table).await;
}

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

/// The jobs that a transaction creates and moves are hinted in their state at its end.
pub(super) async fn a_transaction_hints_what_is_ready_at_its_commit<S: SqlBench>(w: &World<S>) {
    let outlet = Outlet::default();
    let client = outlet.client(w);
    let mut tx = client.begin().await.unwrap();
    let created = tx.create_many(vec![work(), work(), work()]).await.unwrap();
    let [suspended, deleted, moved] = created[..] else {
        panic!("{created:?}");
    };
    tx.change(&[suspended], &Change::Suspend).await.unwrap();
    assert_eq!(tx.delete(deleted).await.unwrap(), Operated::Done);
    assert_eq!(tx.delete(deleted).await.unwrap(), Operated::NotFound);
    tx.change(&[moved], &Change::Suspend).await.unwrap();
    tx.change(&[moved], &Change::Activate).await.unwrap();
    tx.retry(moved, RETRIED).await.unwrap();
    assert!(tx.retry_many(&[], RETRIED).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    eventually("the hint", SOON, async || {
        (!outlet.told().hints.is_empty()).then_some(())
    })
    .await;
    assert_eq!(outlet.told().hints, [moved]);
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
        let mut tx = Transaction::begin(kind, &client).await;
        let asked = [hint.id];
        tokio::select! {
            biased;
            done = tx.operate(&suspend, &asked) => panic!("{done:?} without a wait"),
            () = std::future::ready(()) => {}
        }
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

/// Locks the row of a job in another transaction.
async fn row_locked(w: &World<PgStore>, id: JobId) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE")
        .bind(id.uuid())
        .execute(&mut *other)
        .await
        .unwrap();
    other
}

/// On SQLite there is one writer, so no row is locked.
#[tokio::test]
async fn an_operation_that_meets_a_locked_row_changes_nothing_and_its_transaction_goes_on() {
    let w = World::<PgStore>::open().await;
    with_orders(&w).await;
    let client = Client::without_hints(w.store.clone());
    let hints = w.ready(vec![work(), work()]).await;
    let (free, locked) = (hints[0].id, hints[1].id);
    let other = row_locked(&w, locked).await;
    let suspend = Operation::Change(Change::Suspend);
    for (orders, kind) in (1..).zip(KINDS) {
        for operation in [&suspend, &Operation::DeleteMany] {
            let mut tx = Transaction::begin(kind, &client).await;
            let refused = tx.operate(operation, &[free, locked]).await;
            assert!(
                matches!(refused, Err(StoreError::RowLocked(id)) if id == locked),
                "{refused:?}"
            );
            if matches!(operation, Operation::DeleteMany) {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await;
            }
            assert_eq!(w.state(free).await, Some(JobState::Executable));
        }
        assert_eq!(w.rows("orders").await, orders);
    }
    other.rollback().await.unwrap();
    let mut tx = client.begin().await.unwrap();
    let done = tx.change(&[free, locked], &Change::Suspend).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(done.len(), 2);
    assert_eq!(w.rows("suspended_job").await, 2);
}

/// On SQLite the completion waits for the caller's transaction.
#[tokio::test]
async fn a_transaction_that_asks_for_a_running_job_does_not_hold_up_its_completion() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    let hint = w.one(work().instance("a")).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    let mut tx = client.begin().await.unwrap();
    let told = tx.change(&[hint.id], &Change::Suspend).await.unwrap();
    assert_eq!(told, [(hint.id, Operated::Running)]);
    assert_eq!(tx.delete(hint.id).await.unwrap(), Operated::Running);
    assert_eq!(tx.retry(hint.id, 9).await.unwrap(), Operated::Running);
    let settled = w.complete(worker, &job, &Handoff::Hint).await;
    assert_eq!(settled.applied, [hint.id]);
    assert_eq!(tx.delete(hint.id).await.unwrap(), Operated::NotFound);
    tx.commit().await.unwrap();
}

/// In a snapshot from before the lock, a running job looks unlocked.
#[tokio::test]
async fn a_transaction_that_is_isolated_more_strictly_operates_on_no_job() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let hint = w.one(work()).await;
        let mut tx = w.store.pool().begin().await.unwrap();
        let strict = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT FROM jobwire.job");
        sqlx::raw_sql(sqlx::AssertSqlSafe(strict))
            .execute(&mut *tx)
            .await
            .unwrap();
        w.hold(node(), &hint).await;
        let mut hook = client.hook();
        let refused = hook.change(&mut tx, &[hint.id], &Change::Suspend).await;
        assert!(
            matches!(refused, Err(StoreError::TooIsolated)),
            "{refused:?}"
        );
        let refused = hook.delete(&mut tx, hint.id).await;
        assert!(
            matches!(refused, Err(StoreError::TooIsolated)),
            "{refused:?}"
        );
        // The transaction goes on.
        hook.create(&mut tx, work()).await.unwrap();
        hook.commit(tx).await.unwrap();
        assert_eq!(w.state(hint.id).await, Some(JobState::Executable));
    }
}
