//! Suspending and activating a scope in the caller's transaction.

use jobwire_core::store::{Gate, Refusal, SuspensionScope};
use jobwire_core::{Client, HandlerOptions, JobId, JobState, NewJob, Outcome, Running, StoreError};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

use super::super::bed::{Bed, noting};
use super::super::world::{SqlBench, World, node, work};
use super::caller::{KINDS, Outlet, Transaction, with_orders};

fn tenant() -> SuspensionScope {
    SuspensionScope::Tenant("t".to_owned())
}

async fn suspended<S: SqlBench>(w: &World<S>) -> Vec<Gate> {
    let views = w.store.suspensions().await.unwrap();
    views.into_iter().map(|view| view.gate).collect()
}

/// Waits until these jobs are hinted, and no others.
async fn hinted(outlet: &Outlet, mut jobs: Vec<JobId>) {
    eventually("the hints of a commit", SOON, async || {
        (outlet.told().hints.len() >= jobs.len()).then_some(())
    })
    .await;
    let mut hints = outlet.told().hints;
    hints.sort_unstable();
    jobs.sort_unstable();
    assert_eq!(hints, jobs);
}

/// The next exclusive job of another tenant is hinted, after the commit only.
pub(in super::super) async fn a_scope_is_suspended_with_the_callers_row<S: SqlBench>(w: &World<S>) {
    with_orders(w).await;
    let mut expected = Vec::new();
    let outlet = Outlet::default();
    let client = outlet.client(w);
    for (orders, kind) in (1..).zip(KINDS) {
        let of = || work().instance(format!("{kind:?}"));
        let hints = w.ready(vec![of().tenant("t"), of()]).await;
        let (own, next) = (&hints[0], &hints[1]);
        for commits in [false, true] {
            let mut tx = Transaction::begin(kind, &client).await;
            assert!(tx.suspend(&tenant()).await.unwrap());
            assert!(
                !tx.suspend(&tenant()).await.unwrap(),
                "it is suspended already"
            );
            assert_eq!(suspended(w).await, []);
            assert_eq!(w.state(own.id).await, Some(JobState::Executable));
            assert_eq!(outlet.told().hints, expected, "told before the commit");
            if commits {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await;
                assert_eq!(suspended(w).await, []);
                assert_eq!(w.state(own.id).await, Some(JobState::Executable));
            }
        }
        assert_eq!(w.rows("orders").await, orders);
        assert_eq!(suspended(w).await, [Gate::from(tenant())]);
        assert_eq!(w.state(own.id).await, Some(JobState::Suspended));
        expected.push(next.id);
        hinted(&outlet, expected.clone()).await;
        let during = w.one(work().tenant("t")).await;
        assert_eq!(w.refusal(node(), &during).await, Some(Refusal::Suspended));
        w.hold(node(), next).await;
        w.store.activate(&tenant()).await.unwrap();
    }
}

pub(in super::super) async fn a_scope_is_activated_with_the_callers_row<S: SqlBench>(w: &World<S>) {
    with_orders(w).await;
    let mut expected = Vec::new();
    let outlet = Outlet::default();
    let client = outlet.client(w);
    for (orders, kind) in (1..).zip(KINDS) {
        let moved = w.one(work().tenant("t")).await;
        w.store.suspend(&tenant()).await.unwrap();
        let during = w.one(work().tenant("t")).await;
        for commits in [false, true] {
            let mut tx = Transaction::begin(kind, &client).await;
            assert_eq!(tx.activate(&tenant()).await.unwrap(), Some(1));
            assert_eq!(tx.activate(&tenant()).await.unwrap(), None, "it has ended");
            assert_eq!(suspended(w).await, [Gate::from(tenant())]);
            assert_eq!(w.state(moved.id).await, Some(JobState::Suspended));
            assert_eq!(outlet.told().hints, expected, "told before the commit");
            if commits {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await;
                assert_eq!(suspended(w).await, [Gate::from(tenant())]);
                assert_eq!(w.state(moved.id).await, Some(JobState::Suspended));
                assert_eq!(w.refusal(node(), &during).await, Some(Refusal::Suspended));
            }
        }
        assert_eq!(w.rows("orders").await, orders);
        assert_eq!(suspended(w).await, []);
        expected.extend([moved.id, during.id]);
        hinted(&outlet, expected.clone()).await;
        assert_eq!(w.lock(node(), &[moved, during]).await.jobs.len(), 2);
    }
}

/// The transaction creates a job of the scope, too. Its hint is published once.
pub(in super::super) async fn what_one_transaction_suspends_and_activates_runs<S: SqlBench>(
    w: &World<S>,
) {
    with_orders(w).await;
    let outlet = Outlet::default();
    let client = outlet.client(w);
    let before = w.one(work().tenant("t")).await;
    let mut tx = client.begin().await.unwrap();
    assert!(tx.suspend(&tenant()).await.unwrap());
    let created = tx.create(work().tenant("t")).await.unwrap();
    assert_eq!(tx.activate(&tenant()).await.unwrap(), Some(0));
    tx.commit().await.unwrap();
    assert_eq!(suspended(w).await, []);
    hinted(&outlet, vec![before.id, created]).await;
    // A savepoint undoes a suspension, too.
    let mut tx = client.begin().await.unwrap();
    S::execute_in(&mut tx, "SAVEPOINT mine").await;
    assert!(tx.suspend(&tenant()).await.unwrap());
    S::execute_in(&mut tx, "ROLLBACK TO SAVEPOINT mine").await;
    S::execute_in(&mut tx, "INSERT INTO {s}orders (number) VALUES (17)").await;
    tx.commit().await.unwrap();
    assert_eq!(w.rows("orders").await, 1);
    assert_eq!(suspended(w).await, []);
    assert_eq!(w.state(before.id).await, Some(JobState::Executable));
    w.hold(node(), &before).await;
}

/// A future that is dropped may have changed something already.
pub(in super::super) async fn an_interrupted_suspension_commits_nothing<S: SqlBench>(w: &World<S>) {
    with_orders(w).await;
    let client = Client::without_hints(w.store.clone());
    let scope = tenant();
    for kind in KINDS {
        // A thread that loses its processor between sending and reading finds the answer at once.
        let tx = loop {
            let mut tx = Transaction::begin(kind, &client).await;
            tokio::select! {
                biased;
                done = tx.suspend(&scope) => drop(done),
                () = std::future::ready(()) => break tx,
            }
        };
        let refused = tx.commit().await;
        assert!(
            matches!(refused, Err(StoreError::TransactionFailed)),
            "{refused:?}"
        );
        assert_eq!(w.rows("orders").await, 0);
        assert_eq!(suspended(w).await, []);
    }
}

/// A leader hints the jobs of a process without a transport.
pub(in super::super) async fn what_is_activated_without_a_transport_is_noted<S: SqlBench>(
    w: &World<S>,
) {
    let client = Client::without_hints(w.store.clone());
    let hint = w.one(work().tenant("t")).await;
    w.store.suspend(&tenant()).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    assert_eq!(tx.activate(&tenant()).await.unwrap(), Some(1));
    tx.commit().await.unwrap();
    assert_eq!(w.rows("unannounced_job").await, 1);
    w.hold(node(), &hint).await;
}

/// The first handler suspends the tenant, and the second one activates it. Both are of another tenant.
pub(in super::super) async fn handlers_suspend_and_activate_in_their_completing_transactions<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let change = |begins: bool| {
        move |job: Running<()>| async move {
            let mut tx = job.transaction::<S>().await?;
            if begins {
                tx.transaction().suspend(&tenant()).await?;
            } else {
                tx.transaction().activate(&tenant()).await?;
            }
            Ok(Outcome::Done)
        }
    };
    let inside = || HandlerOptions::default().in_transaction();
    let node = bed
        .node(quick())
        .handler("note", noting(&bed.notes))
        .handler_with("suspend", inside(), change(true))
        .handler_with("activate", inside(), change(false))
        .start()
        .await
        .unwrap();
    let begin = bed.create(vec![NewJob::of("suspend", &())]).await[0];
    bed.until_done(begin).await;
    assert_eq!(suspended(w).await, [Gate::from(tenant())]);
    let kept = NewJob::of("note", "kept").tenant("t");
    let kept = bed.create(vec![kept]).await[0];
    bed.create(vec![NewJob::of("note", "free")]).await;
    assert_eq!(bed.notes.until(1).await, ["free"]);
    assert!(w.state(kept).await.is_some());
    bed.create(vec![NewJob::of("activate", &())]).await;
    assert_eq!(bed.notes.until(2).await, ["free", "kept"]);
    bed.until_left(0).await;
    assert_eq!(suspended(w).await, []);
    node.stop().await;
}
