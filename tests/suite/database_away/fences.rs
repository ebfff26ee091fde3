//! A server does not repeat a fence that it forgot in a crash, or never received before its
//! promotion: fences only grow (rule 1).

use std::time::Duration;

use jobwire_core::{CommitHook, Hint, NewJob, NodeId, PgOptions, PgStore, Store};
use jobwire_tests::{Flow, Postgres, Proxy, eventually};
use serde_json::json;
use sqlx::{Connection, Executor};

use super::SOON;
use super::crash::terms;

/// More than the sequence logs ahead.
const JOBS: usize = 40;

async fn store(url: &str) -> PgStore {
    let mut options = PgOptions::default();
    options.statement_timeout = Duration::from_secs(60);
    // A crash forgets locks and the fences of the sequence for them.
    options.durable_locks = false;
    PgStore::connect_with(url, options).await.unwrap()
}

/// Locks new jobs and returns their first and last fence; tries again after a lost connection.
async fn fences(store: &PgStore) -> (i64, i64) {
    eventually("jobs to be locked", SOON, async || {
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

/// The server's WAL writer would otherwise write the fences to disk.
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
        // The old store, with new connections, and a new store.
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

/// The key of the advisory lock by which nodes of older versions keep their leaps apart.
const LEAPS: i64 = 0x006a_6f62_7769_7265;

/// Any role may hold an advisory lock, and without a leap no node locks a job.
#[tokio::test]
async fn an_advisory_lock_that_another_program_holds_stops_no_leap() {
    let server = Postgres::start().await;
    let url = migrated(&server).await;
    let mut other = sqlx::PgConnection::connect(&url).await.unwrap();
    let hold = sqlx::query("SELECT pg_advisory_lock($1)").bind(LEAPS);
    other.execute(hold).await.unwrap();
    let (_, last) = fences(&store(&url).await).await;
    let (first, _) = fences(&store(&url).await).await;
    assert!(first > last, "a fence was handed out twice");
    let held = sqlx::query_scalar("SELECT pg_advisory_unlock($1)").bind(LEAPS);
    let held: bool = held.fetch_one(&mut other).await.unwrap();
    assert!(held);
}

/// The main process survives and recovers: the server does not restart.
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

/// The standby received neither the last fences nor the leap before them.
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
    eventually("the standby to catch up", SOON, async || {
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
    assert!(
        handed_out > known + (1 << 32),
        "a store sets the fences forward when it starts"
    );

    primary.kill().await;
    address.lead_to(&standby.address());
    // New connections now lead to a read-only server.
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
