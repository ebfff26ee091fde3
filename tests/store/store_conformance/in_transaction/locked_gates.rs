//! Suspending and activating a scope on PostgreSQL: suspensions that other transactions have locked, and
//! snapshots. On SQLite there is one writer.

use std::time::Duration;

use jobwire_core::store::{Handoff, Lifted, Store, SuspensionScope};
use jobwire_core::{Client, JobState, PgOptions, PgStore, StoreError};
use jobwire_harness::shared;
use jobwire_harness::world::{patient, until_waiting};

use super::super::world::{SqlBench, World, node, retry_after, work};

fn tenant() -> SuspensionScope {
    SuspensionScope::Tenant("t".to_owned())
}

async fn setting(tx: &mut sqlx::PgConnection, name: &str) -> String {
    let query = sqlx::query_scalar("SELECT current_setting($1)").bind(name);
    query.fetch_one(tx).await.unwrap()
}

/// The caller has found that the scope is suspended, and so it is at the commit.
#[tokio::test]
async fn a_suspension_that_a_transaction_begins_again_does_not_end_before_it() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    w.store.suspend(&tenant()).await.unwrap();
    let hint = w.one(work().tenant("t")).await;
    let mut tx = client.begin().await.unwrap();
    assert!(!tx.suspend(&tenant()).await.unwrap());
    let store = w.store.clone();
    let activating = tokio::spawn(async move { store.activate(&tenant()).await });
    until_waiting(&w.store, 1).await;
    assert_eq!(w.rows("suspension").await, 1);
    tx.commit().await.unwrap();
    let activated = activating.await.unwrap().unwrap();
    assert!(activated.was_there);
    assert_eq!(w.rows("suspension").await, 0);
    assert_eq!(w.state(hint.id).await, Some(JobState::Executable));
}

/// The other transaction ends the suspension, and then the first one records it again.
#[tokio::test]
async fn a_suspension_waits_for_an_end_that_has_not_committed() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    let hint = w.one(work().tenant("t")).await;
    w.store.suspend(&tenant()).await.unwrap();
    let mut ending = client.begin().await.unwrap();
    assert_eq!(ending.activate(&tenant()).await.unwrap(), Some(1));
    let mut tx = client.begin().await.unwrap();
    let scope = tenant();
    let (suspended, ()) = tokio::join!(tx.suspend(&scope), async {
        until_waiting(&w.store, 1).await;
        ending.commit().await.unwrap();
    });
    assert!(suspended.unwrap(), "the earlier suspension has ended");
    tx.commit().await.unwrap();
    assert_eq!(w.rows("suspension").await, 1);
    assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
}

#[tokio::test]
async fn a_transaction_that_keeps_a_suspension_delays_the_end_of_no_other() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    let other = || SuspensionScope::Type("other".to_owned());
    for scope in [tenant(), other()] {
        w.store.suspend(&scope).await.unwrap();
    }
    let hint = w.one(work().tenant("t")).await;
    let mut keeps = client.begin().await.unwrap();
    assert!(!keeps.suspend(&tenant()).await.unwrap());
    let mut ends = client.begin().await.unwrap();
    assert_eq!(ends.activate(&other()).await.unwrap(), Some(0));
    ends.rollback().await.unwrap();
    assert!(w.store.activate(&other()).await.unwrap().was_there);
    keeps.commit().await.unwrap();
    assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
}

/// The move of the jobs waits for a locked table.
#[tokio::test]
async fn a_commit_that_moves_the_jobs_of_a_suspension_lets_other_transactions_begin() {
    let url = shared::postgres().await.create_database().await;
    let mut options = PgOptions::default();
    // For one transaction of an application at a time.
    options.max_connections = 3;
    let w = World::over(PgStore::connect_with(&url, options).await.unwrap());
    w.store.migrate().await.unwrap();
    let client = Client::without_hints(w.store.clone());
    let hint = w.one(work().tenant("t")).await;
    let other = patient(&url).await;
    let mut gate = other.pool().begin().await.unwrap();
    let lock = "LOCK TABLE {s}suspended_job IN ACCESS EXCLUSIVE MODE";
    PgStore::execute_in(&mut gate, lock).await;
    let mut tx = client.begin().await.unwrap();
    tx.suspend(&tenant()).await.unwrap();
    let committing = tokio::spawn(tx.commit());
    until_waiting(&other, 1).await;
    let begun = client.begin().await.unwrap();
    begun.rollback().await.unwrap();
    gate.rollback().await.unwrap();
    committing.await.unwrap().unwrap();
    // On a slow machine the move was given up. The job does not start either way.
    let suspended = w.store.suspend(&tenant()).await.unwrap();
    assert!(suspended.moved <= 1);
    assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
}

#[tokio::test]
async fn a_locked_suspension_is_a_conflict_and_the_transaction_goes_on() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    w.store.suspend(&tenant()).await.unwrap();
    let mut other = w.store.pool().begin().await.unwrap();
    PgStore::execute_in(&mut other, "SELECT 1 FROM {s}suspension FOR UPDATE").await;
    let mut tx = client.begin().await.unwrap();
    let was = [
        setting(&mut tx, "lock_timeout").await,
        setting(&mut tx, "plan_cache_mode").await,
    ];
    let refused = tx.suspend(&tenant()).await.unwrap_err();
    assert!(refused.is_conflict(), "{refused}");
    let refused = tx.activate(&tenant()).await.unwrap_err();
    assert!(refused.is_conflict(), "{refused}");
    other.rollback().await.unwrap();
    assert_eq!(tx.activate(&tenant()).await.unwrap(), Some(0));
    let is = [
        setting(&mut tx, "lock_timeout").await,
        setting(&mut tx, "plan_cache_mode").await,
    ];
    assert_eq!(is, was);
    tx.create(work()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((w.rows("suspension").await, w.rows("job").await), (0, 1));
}

/// A snapshot from before the failure does not show the job that the failure has suspended.
#[tokio::test]
async fn a_transaction_that_is_isolated_more_strictly_suspends_and_does_not_activate() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let hint = w.one(work().tenant("t")).await;
        let mut tx = w.store.pool().begin().await.unwrap();
        let strict = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT FROM jobwire.job");
        let strict = sqlx::raw_sql(sqlx::AssertSqlSafe(strict));
        strict.execute(&mut *tx).await.unwrap();
        let mut hook = client.hook();
        assert!(hook.suspend(&mut tx, &tenant()).await.unwrap());
        let refused = hook.activate(&mut tx, &tenant()).await;
        assert!(
            matches!(refused, Err(StoreError::TooIsolated)),
            "{refused:?}"
        );
        hook.commit(tx).await.unwrap();
        assert_eq!(w.state(hint.id).await, Some(JobState::Suspended));
        w.store.activate(&tenant()).await.unwrap();
        w.hold(node(), &hint).await;
    }
}

/// A failure that looked before the commit of the end is recorded after it.
#[tokio::test]
async fn a_failure_beside_an_activation_is_not_left_suspended() {
    let w = World::<PgStore>::open().await;
    let client = Client::without_hints(w.store.clone());
    let hint = w.one(work().tenant("t")).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.store.suspend(&tenant()).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    assert_eq!(tx.activate(&tenant()).await.unwrap(), Some(0));
    let failure = || [retry_after(&job, Duration::from_secs(600))];
    // Its node tries again.
    let settled = w.store.fail(worker, &failure(), &Handoff::Hint).await;
    let settled = settled.unwrap();
    assert_eq!((settled.applied, settled.left), (vec![], vec![hint.id]));
    tx.commit().await.unwrap();
    let settled = w.store.fail(worker, &failure(), &Handoff::Hint).await;
    assert_eq!(settled.unwrap().applied, [hint.id]);
    assert_eq!(w.state(hint.id).await, Some(JobState::Timer));
    let again = w.store.activate(&tenant()).await.unwrap();
    assert_eq!(again, Lifted::default());
}
