//! The number of database statements, counted by PostgreSQL itself: every call, BEGIN and COMMIT
//! included.

use std::time::{Duration, Instant};

use jobwire_core::{NewJob, PgStore};
use jobwire_tests::{Program, eventually, shared};

use crate::fleet::Fleet;

async fn fleet() -> Fleet {
    let database = shared::postgres().await.migrated_database().await;
    Fleet::new(database, shared::rabbitmq().await.space().await).await
}

/// Resets the counter. Its own statements contain its name and are left out.
async fn reset(store: &PgStore) {
    for sql in [
        "CREATE EXTENSION IF NOT EXISTS pg_stat_statements",
        "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)",
    ] {
        sqlx::query(sql).execute(store.pool()).await.unwrap();
    }
}

async fn calls(store: &PgStore) -> Vec<(i64, String)> {
    sqlx::query_as(
        "SELECT calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 70) FROM pg_stat_statements
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND query NOT LIKE '%pg_stat_statements%'
         ORDER BY calls DESC",
    )
    .fetch_all(store.pool())
    .await
    .unwrap()
}

/// Promise 7, idle: three nodes with default settings, one minute.
#[tokio::test]
async fn an_idle_fleet_asks_next_to_nothing() {
    let fleet = fleet().await;
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let node = Program::jobwire()
            .args(["run"])
            .env("JOBWIRE_DATABASE_URL", &fleet.database)
            .env("JOBWIRE_BROKER_URL", &fleet.space.url)
            .env("JOBWIRE_AMQP_PREFIX", &fleet.space.prefix)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .start();
        node.wait_for_line("is ready", Duration::from_secs(60))
            .await;
        nodes.push(node);
    }
    // On a busy machine not every minute is idle: a node that loses the broker claims, and a leader
    // that stalls loses the lead.
    let mut minutes = Vec::new();
    for _ in 0..4 {
        let calls = a_minute(&fleet.store).await;
        let all: i64 = calls.iter().map(|(calls, _)| calls).sum();
        println!("{all} statements in an idle minute of three nodes: {calls:?}");
        if (1..20).contains(&all) {
            return;
        }
        minutes.push((all, calls));
    }
    panic!("each idle minute had no leader or 20 statements or more: {minutes:#?}");
}

async fn a_minute(store: &PgStore) -> Vec<(i64, String)> {
    reset(store).await;
    let started = Instant::now();
    eventually("a minute to pass", Duration::from_secs(90), || async {
        (started.elapsed() >= Duration::from_secs(60)).then_some(())
    })
    .await;
    calls(store).await
}

/// Rule 24: two nodes of one database that hear nothing of each other, as with a broken broker. The
/// one that follows asks the database once an interval which node leads, so it leads soon after the
/// other has died.
#[tokio::test]
async fn nodes_that_hear_nothing_ask_once_an_interval() {
    const INTERVALS: i64 = 20;
    let fleet = fleet().await;
    let other = format!("{}-other", fleet.space.prefix);
    let nodes = [
        fleet.node(&[]).await,
        fleet.node(&[("JOBWIRE_AMQP_PREFIX", &other)]).await,
    ];
    reset(&fleet.store).await;
    let started = Instant::now();
    eventually(
        "twenty intervals to pass",
        Duration::from_secs(30),
        || async { (started.elapsed() >= Duration::from_secs(20)).then_some(()) },
    )
    .await;
    let asked: i64 = sqlx::query_scalar(
        "SELECT sum(calls)::bigint FROM pg_stat_statements
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND query LIKE '%INSERT INTO jobwire.leader AS l%'",
    )
    .fetch_one(fleet.store.pool())
    .await
    .unwrap();
    let passed = started.elapsed().as_secs_f64();
    println!("{asked} leader cycles in {passed:.1} s");
    // The leader of an idle fleet of this lease runs one in two seconds.
    assert!(asked > INTERVALS * 4 / 5, "{asked} in {passed} s");
    assert!(asked as f64 <= passed * 2.0 + 2.0, "{asked} in {passed} s");
    drop(nodes);
}

/// Promise 7 under load: batches share locks, completions and all other statements.
#[tokio::test]
async fn a_drain_needs_few_statements_per_job() {
    const JOBS: i64 = 20_000;
    let fleet = fleet().await;
    for _ in 0..JOBS / 1000 {
        let mut tx = fleet.jobs.begin().await.unwrap();
        tx.create_many((0..1000).map(|_| NewJob::of("noop", &())).collect())
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    reset(&fleet.store).await;
    let _node = fleet.node(&[]).await;
    fleet.until_empty(Duration::from_secs(120)).await;
    let calls = calls(&fleet.store).await;
    let polls = calls
        .iter()
        .filter(|(_, query)| query.contains("SELECT count(*)"));
    let polls: i64 = polls.map(|(calls, _)| calls).sum();
    let all: i64 = calls.iter().map(|(calls, _)| calls).sum::<i64>() - polls;
    let per_job = all as f64 / JOBS as f64;
    assert!(per_job < 0.2, "{per_job} statements per job: {calls:#?}");
    println!("{per_job:.4} statements per job: {calls:?}");
}

/// Bulk creation: 10,000 jobs in one transaction, in few statements.
#[tokio::test]
async fn ten_thousand_jobs_are_created_in_few_statements() {
    let fleet = fleet().await;
    reset(&fleet.store).await;
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create_many((0..10_000).map(|n| NewJob::of("unserved", &n)).collect())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let calls = calls(&fleet.store).await;
    // A slow machine may open another connection: its settings do not count as creation.
    let of_a_connection = ["SET ", "SELECT concat_ws($1, extract($2 FROM pg_postmaster"];
    let is_setting = |query: &str| {
        !query.starts_with("SET LOCAL")
            && of_a_connection.iter().any(|text| query.starts_with(text))
    };
    let counted = calls.iter().filter(|(_, query)| !is_setting(query));
    let all: i64 = counted.map(|(calls, _)| calls).sum();
    // Four inserts. The others belong to the transaction: the statements of BEGIN and of a checked
    // commit, each in one message.
    assert!(all <= 10, "{all} statements: {calls:#?}");
}
