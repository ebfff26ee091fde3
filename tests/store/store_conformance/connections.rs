//! The store keeps the connections that lock and complete at hand, and returns them in time.

use std::time::Duration;

use jobwire_core::hint::Hint;
use jobwire_core::store::{Handoff, SqlStore};
use jobwire_core::{NodeId, PgOptions, PgStore, Store};
use jobwire_harness::{eventually, shared};

use super::world::{World, node, terms, work};
use jobwire_harness::world::SOON;

/// The sessions that have locked and completed.
const HOT: &str = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%job_lease%'
    AND query NOT LIKE '%pg_stat_activity%'";

async fn hot_sessions(w: &World<PgStore>) -> Vec<i32> {
    let pids = sqlx::query_scalar(HOT).fetch_all(w.store.pool());
    pids.await.unwrap()
}

async fn lock_and_complete(w: &World<PgStore>, owner: NodeId, hint: &Hint) {
    let job = w.hold(owner, hint).await;
    let settled = w.complete(owner, &job, &Handoff::Hint).await;
    assert_eq!(settled.applied, [hint.id]);
}

/// Plain jobs take one statement each, exclusive jobs a transaction. With a single connection for
/// both, each gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_at_hand_is_given_to_whoever_waits() {
    let url = shared::postgres().await.create_database().await;
    let mut options = PgOptions::default();
    options.max_connections = 3;
    let store = PgStore::connect_with(&url, options).await.unwrap();
    let w = World::over(store);
    w.store.migrate().await.unwrap();
    let mut working = tokio::task::JoinSet::new();
    for n in 0..8 {
        let jobs = (0..20).map(|_| match n % 2 {
            0 => work(),
            _ => work().instance(format!("instance {n}")),
        });
        let (hints, w) = (w.ready(jobs.collect()).await, World::over(w.store.clone()));
        working.spawn(async move {
            for hint in hints {
                lock_and_complete(&w, node(), &hint).await;
            }
        });
    }
    while let Some(ended) = working.join_next().await {
        ended.unwrap();
    }
    assert_eq!(w.rows("job").await, 0);
}

/// After a restart of the server or a cut connection, one statement fails, however many connections
/// were at hand.
#[tokio::test]
async fn connections_that_were_cut_fail_one_statement() {
    let w = World::<PgStore>::open().await;
    let hints = w.ready((0..5).map(|_| work()).collect()).await;
    let owner = node();
    tokio::join!(
        lock_and_complete(&w, owner, &hints[0]),
        lock_and_complete(&w, owner, &hints[1]),
        lock_and_complete(&w, owner, &hints[2]),
    );
    let sessions = hot_sessions(&w).await;
    assert!(sessions.len() > 1, "{sessions:?}");
    let cut: i64 =
        sqlx::query_scalar("SELECT count(pg_terminate_backend(pid)) FROM unnest($1::int[]) AS pid")
            .bind(&sessions)
            .fetch_one(w.store.pool())
            .await
            .unwrap();
    assert_eq!(cut as usize, sessions.len());
    let ended = async || hot_sessions(&w).await.is_empty().then_some(());
    eventually("the sessions to end", SOON, ended).await;
    let failed = w.store.lock(&terms(owner), &hints[3..4]).await;
    assert!(failed.unwrap_err().is_transient());
    lock_and_complete(&w, owner, &hints[4]).await;
    // No connection is missing when the store closes; the close would wait for it.
    let closing = tokio::time::timeout(Duration::from_secs(60), w.store.close());
    closing.await.unwrap();
}

/// Connections that were at hand when a deadline passed on another one may be dead too.
#[tokio::test]
async fn suspected_connections_are_not_used_again() {
    let w = World::<PgStore>::open().await;
    let hints = w.ready(vec![work(), work()]).await;
    lock_and_complete(&w, node(), &hints[0]).await;
    let before = hot_sessions(&w).await;
    assert_eq!(before.len(), 1);
    w.store.suspect_connections();
    lock_and_complete(&w, node(), &hints[1]).await;
    let closed = async || {
        let now = hot_sessions(&w).await;
        now.iter().all(|pid| !before.contains(pid)).then_some(())
    };
    eventually("the suspected session to be closed", SOON, closed).await;
}
