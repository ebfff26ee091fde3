//! What only PostgreSQL needs: rows that other transactions have locked, and snapshots.

use jobwire_core::store::{Change, EndedScope, Handoff, Operated, Refusal, SqlStore, Store};
use jobwire_core::{Client, JobEvent, JobState, PgStore, StoreError};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, until_waiting};

use super::super::changing::in_an_hour;
use super::super::world::{LEASE, SqlBench, World, give_up, node, work};
use super::caller::{KINDS, Kind, Operation, Outlet, Transaction, with_orders};

/// Locks the only row of a table in another transaction.
async fn row_locked(w: &World<PgStore>, of: &str) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut other = w.store.pool().begin().await.unwrap();
    let lock = format!("SELECT 1 FROM {{s}}{of} FOR UPDATE");
    PgStore::execute_in(&mut other, &lock).await;
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
    let other = row_locked(&w, &format!("job WHERE id = '{locked}'")).await;
    let suspend = Operation::Change(Change::Suspend);
    for (orders, kind) in (1..).zip(KINDS) {
        for operation in [&suspend, &Operation::RetryMany, &Operation::DeleteMany] {
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
            let view = w.view(free).await.unwrap();
            assert_eq!((view.state, view.retries), (JobState::Executable, 3));
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

/// A cancel needs the lease. An unlock needs the rows of the instance, the lease and the job.
#[tokio::test]
async fn a_cancel_and_an_unlock_do_not_wait_long_for_a_locked_row() {
    let w = World::<PgStore>::open().await;
    with_orders(&w).await;
    let client = Client::without_hints(w.store.clone());
    let hint = w.one(work().instance("a")).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    for (kind, operation, table) in [
        (Kind::OfTheClient, Operation::Cancel, "job_lease"),
        (Kind::OfTheCaller, Operation::Unlock, "instance_lock"),
        (Kind::OfTheClient, Operation::Unlock, "job_lease"),
        (Kind::OfTheCaller, Operation::Unlock, "job"),
    ] {
        let place = format!("{operation:?} with a locked {table}");
        let other = row_locked(&w, table).await;
        let mut tx = Transaction::begin(kind, &client).await;
        let asked = [hint.id];
        let refused = tokio::time::timeout(SOON, tx.operate(&operation, &asked)).await;
        let refused = refused.unwrap_or_else(|_| panic!("{place} waits"));
        assert!(
            matches!(refused, Err(StoreError::RowLocked(id)) if id == hint.id),
            "{place}: {refused:?}"
        );
        other.rollback().await.unwrap();
        // The refused operation keeps no row locked.
        let mut free = w.store.pool().begin().await.unwrap();
        for table in ["instance_lock", "job_lease", "job"] {
            let lock = format!("SELECT 1 FROM {{s}}{table} FOR UPDATE NOWAIT");
            PgStore::execute_in(&mut free, &lock).await;
        }
        free.rollback().await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(w.rows("orders").await, 4);
    let settled = w.complete(worker, &job, &Handoff::Hint).await;
    assert_eq!(settled.applied, [hint.id]);
}

/// Under strict order, a sibling that commits during the caller's transaction is refused because of the
/// elder one, and its hint is settled.
#[tokio::test]
async fn a_sibling_that_commits_during_the_transaction_is_hinted_after_it() {
    let w = World::<PgStore>::open().await;
    with_orders(&w).await;
    w.store.set_strict_order(true).await.unwrap();
    let worker = node();
    for (kind, operation) in [
        (Kind::OfTheClient, Operation::Delete),
        (Kind::OfTheCaller, Operation::DeleteMany),
    ] {
        let outlet = Outlet::default();
        let client = outlet.client(&w);
        let elder = w.one(work().instance("a")).await;
        let job = w.hold(worker, &elder).await;
        w.fail(worker, give_up(&job)).await;
        let mut tx = Transaction::begin(kind, &client).await;
        tx.operate(&operation, &[elder.id]).await.unwrap();
        let sibling = w.one(work().instance("a")).await;
        assert_eq!(w.refusal(node(), &sibling).await, Some(Refusal::Gone));
        tx.commit().await.unwrap();
        eventually("the hint", SOON, async || {
            outlet.told().hints.contains(&sibling.id).then_some(())
        })
        .await;
        client.delete(sibling.id).await.unwrap();
    }
    // The end of a scope, and a hook that the caller fires.
    let outlet = Outlet::default();
    let client = outlet.client(&w);
    let elder = w.one(work().instance("a").process_definition("d")).await;
    let job = w.hold(worker, &elder).await;
    w.fail(worker, give_up(&job)).await;
    let mut tx = w.store.begin().await.unwrap();
    let mut hook = client.hook();
    let scope = EndedScope::ProcessDefinition("d".to_owned());
    hook.end(&mut tx, &scope).await.unwrap();
    let sibling = w.one(work().instance("a")).await;
    assert_eq!(w.refusal(node(), &sibling).await, Some(Refusal::Gone));
    tx.commit().await.unwrap();
    hook.fire();
    eventually("the hint", SOON, async || {
        outlet.told().hints.contains(&sibling.id).then_some(())
    })
    .await;
}

/// A caller's transaction may last long, so it locks no row of a job that it does not name.
#[tokio::test]
async fn a_transaction_that_deletes_a_job_leaves_its_sibling_free() {
    let w = World::<PgStore>::open().await;
    with_orders(&w).await;
    for (kind, instance) in [(Kind::OfTheClient, "a"), (Kind::OfTheCaller, "b")] {
        let timer = work().instance(instance).due(in_an_hour());
        let id = timer.id();
        w.create(vec![timer]).await;
        let sibling = w.one(work().instance(instance)).await;
        let client = Client::without_hints(w.store.clone());
        let mut tx = Transaction::begin(kind, &client).await;
        tx.operate(&Operation::Delete, &[id]).await.unwrap();
        w.hold(node(), &sibling).await;
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn two_callers_that_cancel_the_same_jobs_do_not_deadlock() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    let hints = w.ready(vec![work(), work()]).await;
    for hint in &hints {
        w.hold(node(), hint).await;
    }
    let (a, b) = (hints[0].id, hints[1].id);
    let (mut one, mut other) = (client.begin().await.unwrap(), client.begin().await.unwrap());
    assert_eq!(one.cancel(a).await.unwrap(), Operated::Running);
    assert_eq!(other.cancel(b).await.unwrap(), Operated::Running);
    let (of_one, of_other) = tokio::join!(one.cancel(b), other.cancel(a));
    for (refused, locked) in [(of_one, b), (of_other, a)] {
        assert!(
            matches!(refused, Err(StoreError::RowLocked(id)) if id == locked),
            "{refused:?}"
        );
    }
    one.commit().await.unwrap();
    other.commit().await.unwrap();
    for id in [a, b] {
        assert!(w.view(id).await.unwrap().cancelled_at.is_some());
    }
}

/// Replaces the table of leases by a view. Each look-up of a job's lease counts in `looks`, and waits for
/// an advisory lock when the counter reaches zero. So a test can write a lease after the snapshot of a
/// statement and before its row locks.
const PAUSES: [&str; 4] = [
    "CREATE SEQUENCE {s}looks MINVALUE -99",
    "CREATE FUNCTION {s}look() RETURNS boolean STABLE LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('{s}looks') = 0 THEN PERFORM pg_advisory_xact_lock_shared(17); END IF;
        RETURN true;
     END $$",
    "ALTER TABLE {s}job_lease RENAME TO every_lease",
    "CREATE VIEW {s}job_lease AS SELECT * FROM {s}every_lease WHERE {s}look()",
];

/// The node's completion would wait for the caller's commit.
#[tokio::test]
async fn a_job_that_a_node_locks_during_an_operation_is_not_held_up() {
    let w = World::<PgStore>::open().await;
    with_orders(&w).await;
    let client = Client::without_hints(w.store.clone());
    for pause in PAUSES {
        w.store.execute(pause).await;
    }
    let suspend = Operation::Change(Change::Suspend);
    for operation in [&Operation::DeleteMany, &suspend, &Operation::RetryMany] {
        // The first look finds the jobs that run. The second one is that of the statement with the row
        // locks.
        for look in [1, 2] {
            let (hint, worker) = (w.one(work()).await, node());
            let mut tx = Transaction::begin(Kind::OfTheClient, &client).await;
            let mut gate = w.store.pool().begin().await.unwrap();
            PgStore::execute_in(&mut gate, "SELECT pg_advisory_xact_lock(17)").await;
            let from = format!("SELECT setval('jobwire.looks', {})", -look);
            w.store.number(&from).await;
            let asked = [hint.id];
            let (told, job) = tokio::join!(tx.operate(operation, &asked), async {
                until_waiting(&w.store, 1).await;
                let job = w.hold(worker, &hint).await;
                gate.commit().await.unwrap();
                job
            });
            let expected = [(hint.id, Operated::Running)];
            assert_eq!(told.unwrap(), expected, "{operation:?}, look {look}");
            let settled = w.complete(worker, &job, &Handoff::Hint).await;
            assert_eq!(settled.applied, [hint.id], "{operation:?}, look {look}");
            tx.commit().await.unwrap();
        }
    }
}

/// It is one of those that run, and no part of the deletion.
#[tokio::test]
async fn a_job_that_a_node_locks_during_the_end_of_its_scope_is_cancelled() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    for pause in PAUSES {
        w.store.execute(pause).await;
    }
    let scope = EndedScope::ProcessInstance("a".to_owned());
    let jobs = 40;
    for which in [0, 23, 39] {
        // The first statement looks at each job. The next one has the row locks.
        for look in [1, jobs + 1] {
            let place = format!("job {which}, look {look}");
            let of = || work().instance("a").concurrent();
            let hints = w.ready((0..jobs).map(|_| of()).collect()).await;
            let (hint, worker) = (&hints[which], node());
            let mut tx = client.begin().await.unwrap();
            let mut gate = w.store.pool().begin().await.unwrap();
            PgStore::execute_in(&mut gate, "SELECT pg_advisory_xact_lock(17)").await;
            let from = format!("SELECT setval('jobwire.looks', -{look})");
            w.store.number(&from).await;
            let (ended, job) = tokio::join!(tx.end(&scope), async {
                until_waiting(&w.store, 1).await;
                let job = w.hold(worker, hint).await;
                gate.commit().await.unwrap();
                job
            });
            let ended = ended.unwrap();
            let left = (ended.deleted.len() + 1, ended.running);
            assert_eq!(left, (jobs, vec![hint.id]), "{place}");
            tx.commit().await.unwrap();
            let view = w.view(hint.id).await.unwrap();
            assert!(view.cancelled_at.is_some(), "{place}");
            let settled = w.complete(worker, &job, &Handoff::Hint).await;
            assert_eq!(settled.applied, [hint.id], "{place}");
            assert_eq!(
                w.rows("job").await + w.rows("job_lease").await,
                0,
                "{place}"
            );
        }
    }
}

#[tokio::test]
async fn an_operation_in_a_failed_transaction_says_so() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone()).listener(|_: &JobEvent| {});
    let hint = w.one(work()).await;
    for change in [false, true] {
        let mut tx = client.begin().await.unwrap();
        let failed = sqlx::raw_sql("SELECT 1 / 0").execute(&mut *tx).await;
        failed.unwrap_err();
        let refused = if change {
            tx.change(&[hint.id], &Change::Suspend).await.map(drop)
        } else {
            tx.delete(hint.id).await.map(drop)
        };
        assert!(
            matches!(refused, Err(StoreError::TransactionFailed)),
            "{refused:?}"
        );
        tx.rollback().await.unwrap();
    }
    assert_eq!(w.state(hint.id).await, Some(JobState::Executable));
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

/// Begins a transaction whose snapshot is taken now.
async fn snapshot(w: &World<PgStore>, level: &str) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut tx = w.store.pool().begin().await.unwrap();
    let isolated = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT FROM jobwire.job");
    let isolated = sqlx::raw_sql(sqlx::AssertSqlSafe(isolated));
    isolated.execute(&mut *tx).await.unwrap();
    tx
}

/// In a snapshot from before the lock, a running job looks unlocked. The caller repeats a transaction
/// that conflicts, as it must under these levels.
#[tokio::test]
async fn the_end_of_a_scope_conflicts_with_a_lock_that_its_snapshot_does_not_show() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for exclusive in [true, false] {
            for was_locked_before in [false, true] {
                let case = format!("{level}, exclusive: {exclusive}, {was_locked_before}");
                let of = || {
                    let of = work().instance("a");
                    if exclusive { of } else { of.concurrent() }
                };
                let hints = w.ready(vec![of(), of()]).await;
                let (hint, free) = (&hints[0], hints[1].id);
                if was_locked_before {
                    // The lease stays, without an owner.
                    w.hold(node(), hint).await;
                    w.die(hint.id).await;
                }
                let scope = EndedScope::ProcessInstance("a".to_owned());
                let mut tx = snapshot(&w, level).await;
                let worker = node();
                let job = w.hold(worker, hint).await;
                let refused = client.hook().end(&mut tx, &scope).await.unwrap_err();
                assert!(refused.is_conflict(), "{case}: {refused:?}");
                tx.rollback().await.unwrap();
                assert_eq!(w.rows("job").await, 2, "{case}");

                let mut tx = snapshot(&w, level).await;
                let mut hook = client.hook();
                let ended = hook.end(&mut tx, &scope).await.unwrap();
                hook.commit(tx).await.unwrap();
                assert_eq!(ended.deleted, [free], "{case}");
                assert_eq!(ended.running, [hint.id], "{case}");
                let view = w.view(hint.id).await.unwrap();
                assert!(view.cancelled_at.is_some(), "{case}");
                let settled = w.complete(worker, &job, &Handoff::Hint).await;
                assert_eq!(settled.applied, [hint.id], "{case}");
                for table in ["job", "job_lease"] {
                    assert_eq!(w.rows(table).await, 0, "{case}: {table}");
                }
            }
        }
    }
}

/// The lease of the job that ran at the time of the snapshot is another one now, or it is gone.
#[tokio::test]
async fn the_end_of_a_scope_conflicts_with_a_renewal_that_its_snapshot_does_not_show() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    let scope = EndedScope::ProcessInstance("a".to_owned());
    for is_renewed in [true, false] {
        let (hint, worker) = (w.one(work().instance("a")).await, node());
        let job = w.hold(worker, &hint).await;
        let mut tx = snapshot(&w, "REPEATABLE READ").await;
        if is_renewed {
            let held = [job.held()];
            w.store.renew(worker, LEASE, &held).await.unwrap();
        } else {
            w.complete(worker, &job, &Handoff::Hint).await;
        }
        let refused = client.hook().end(&mut tx, &scope).await.unwrap_err();
        assert!(refused.is_conflict(), "{is_renewed}: {refused:?}");
        tx.rollback().await.unwrap();
        if is_renewed {
            w.complete(worker, &job, &Handoff::Hint).await;
        }
    }
}

/// Two callers end overlapping scopes. The second one waits for two seconds at most.
#[tokio::test]
async fn two_callers_that_end_the_same_running_jobs_do_not_deadlock() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    let hint = w.one(work().instance("a").execution("a-1")).await;
    w.hold(node(), &hint).await;
    let (mut one, mut other) = (client.begin().await.unwrap(), client.begin().await.unwrap());
    let instance = EndedScope::ProcessInstance("a".to_owned());
    assert_eq!(one.end(&instance).await.unwrap().running, [hint.id]);
    let execution = EndedScope::Execution("a-1".to_owned());
    let refused = other.end(&execution).await;
    assert!(
        matches!(refused, Err(StoreError::RowLocked(id)) if id == hint.id),
        "{refused:?}"
    );
    other.rollback().await.unwrap();
    one.commit().await.unwrap();
    assert!(w.view(hint.id).await.unwrap().cancelled_at.is_some());
}
