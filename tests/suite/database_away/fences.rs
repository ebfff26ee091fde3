//! What a server has forgotten after a crash, or never heard of before its promotion, it does not hand out again:
//! fences only grow (rule 1).

use std::time::Duration;

use jobwire_core::{CommitHook, Hint, NewJob, NodeId, PgOptions, PgStore, Store};
use jobwire_tests::{Flow, Postgres, Proxy, eventually};
use serde_json::json;

use super::SOON;
use super::crash::terms;

/// More than the sequence logs ahead.
const JOBS: usize = 40;

async fn store(url: &str) -> PgStore {
    let mut options = PgOptions::default();
    options.statement_timeout = Duration::from_secs(60);
    // A crash forgets what was locked, and what the sequence gave out for it.
    options.durable_locks = false;
    PgStore::connect_with(url, options).await.unwrap()
}

/// Fences of new jobs, the first and the last one; again where the connection was lost.
async fn fences(store: &PgStore) -> (i64, i64) {
    eventually("jobs are locked", SOON, async || {
        let jobs = store.client(CommitHook::disconnected());
        let mut tx = jobs.begin().await.ok()?;
        let mut hints = Vec::new();
        for _ in 0..JOBS {
            let id = tx.create(NewJob::of("noop", &json!({}))).await.ok()?;
            hints.push(Hint::new(id));
        }
        tx.commit().await.ok()?;
        let locked = store.lock(&terms(NodeId::generate()), &hints).await.ok()?;
        let fences = locked.jobs.iter().map(|job| job.fence.number());
        assert_eq!(locked.jobs.len(), JOBS, "{:?}", locked.refused);
        Some((fences.clone().min()?, fences.max()?))
    })
    .await
}

async fn migrated(server: &Postgres) -> String {
    let url = server.create_database().await;
    store(&url).await.migrate().await.unwrap();
    url
}

/// The server's writer would bring them to the disk by itself.
const SLOW_WRITER: &[&str] = &["wal_writer_delay=10s"];

#[tokio::test]
async fn fences_do_not_repeat_after_the_server_was_killed() {
    let mut server = Postgres::start_with(SLOW_WRITER).await;
    let url = migrated(&server).await;
    let old = store(&url).await;
    let mut last = 0;
    for _ in 0..3 {
        let (_, handed_out) = fences(&old).await;
        server.kill().await;
        server.start_again().await;
        // The store that was there before, with new connections, and one that begins.
        for store in [old.clone(), store(&url).await] {
            let (first, newest) = fences(&store).await;
            assert!(
                first > handed_out && first > last,
                "a fence was handed out twice"
            );
            last = newest;
        }
    }
}

/// The main process lives on, and recovers: it was not started anew.
#[tokio::test]
async fn fences_do_not_repeat_after_a_process_of_the_server_was_killed() {
    let server = Postgres::start_with(SLOW_WRITER).await;
    let url = migrated(&server).await;
    let store = store(&url).await;
    for _ in 0..3 {
        let (_, handed_out) = fences(&store).await;
        let victim = sqlx::query_scalar("SELECT pg_backend_pid()");
        let victim: i32 = victim.fetch_one(store.pool()).await.unwrap();
        server.kill_process(victim);
        let (first, _) = fences(&store).await;
        assert!(first > handed_out, "a fence was handed out twice");
    }
}

/// The standby received neither the last fences nor the leap that led to them.
#[tokio::test]
async fn fences_do_not_repeat_after_a_standby_was_promoted() {
    let mut primary = Postgres::start().await;
    let url = migrated(&primary).await;
    let address = Proxy::start(&primary.address()).await;
    let replication = Proxy::start(&primary.address()).await;
    let standby = primary
        .start_standby(&format!("{}", replication.address()))
        .await;
    let early = store(&address.url(&url)).await;
    let (_, known) = fences(&early).await;
    eventually("the standby follows", SOON, async || {
        let there = PgStore::connect(&standby.url(url.rsplit('/').next()?))
            .await
            .ok()?;
        let last = sqlx::query_scalar("SELECT last_value FROM jobwire.fence_seq");
        let last: i64 = last.fetch_one(there.pool()).await.ok()?;
        (last >= known).then_some(())
    })
    .await;
    replication.set_both(Flow::Stall);
    let late = store(&address.url(&url)).await;
    let (_, handed_out) = fences(&late).await;
    assert!(handed_out > known + (1 << 32), "it leaps at its start");

    primary.kill().await;
    address.lead_to(&standby.address());
    // Connections that are opened now lead to a server that only reads.
    let jobs = late.client(CommitHook::disconnected());
    let refused = eventually("a standby to answer", SOON, async || {
        let error = jobs.create(NewJob::of("noop", &json!({}))).await.err()?;
        error.is_read_only().then_some(error)
    });
    refused.await;
    standby.promote().await;
    for store in [late, early] {
        let (first, _) = fences(&store).await;
        assert!(first > handed_out, "a fence was handed out twice");
    }
}
