//! A node dies while a backlog waits in the broker: its jobs start before the backlog, although the
//! hints of the backlog come first.

use jobwire_core::{JobQuery, NewJob, Store};
use jobwire_tests::{Signal, eventually, shared};
use serde_json::json;
use uuid::Uuid;

use super::fleet::{Fleet, SOON};

const BACKLOG: i64 = 240;
const SLOTS: &str = "4";

async fn a_dead_nodes_jobs_come_before_the_backlog(broker: &str) {
    let fleet = Fleet::new(broker, broker).await;
    let small = [("JOBWIRE_CONCURRENCY", SLOTS)];
    let mut victim = fleet.node(&small).await.running;
    let _survivor = fleet.node(&small).await;
    let started = victim.wait_for_line("node started", SOON).await;
    let owner: Uuid = started
        .split_whitespace()
        .find_map(|field| field.strip_prefix("node=")?.parse().ok())
        .unwrap_or_else(|| panic!("no node is named: {started}"));

    let sleeps = (0..BACKLOG).map(|_| NewJob::of("sleep", &json!({ "ms": 1_000 })));
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create_many(sleeps.collect()).await.unwrap();
    tx.commit().await.unwrap();
    let held = async || {
        let held = "SELECT job_id FROM jobwire.job_lease WHERE owner = $1";
        let held = sqlx::query_scalar(held).bind(owner);
        let held: Vec<Uuid> = held.fetch_all(fleet.store.pool()).await.unwrap();
        (!held.is_empty()).then_some(held)
    };
    // A frozen node keeps the leases that it holds at that moment.
    let held = eventually("the victim to hold jobs", SOON, async || {
        victim.signal(Signal::SIGSTOP);
        let holds = held().await;
        if holds.is_none() {
            victim.signal(Signal::SIGCONT);
        }
        holds
    })
    .await;
    victim.signal(Signal::SIGKILL);
    victim.exit(SOON).await;

    eventually("the victim's jobs to be done", SOON, async || {
        let left = "SELECT count(*) FROM jobwire.job WHERE id = ANY($1)";
        let left = sqlx::query_scalar(left).bind(&held);
        let left: i64 = left.fetch_one(fleet.store.pool()).await.ok()?;
        (left == 0).then_some(())
    })
    .await;
    // The survivor runs four jobs a second. Behind the backlog these jobs would have been last.
    let left = fleet.store.count(&JobQuery::default()).await.unwrap();
    assert!(left >= BACKLOG / 2, "only {left} jobs still waited");
}

#[tokio::test]
async fn on_rabbitmq_a_dead_nodes_jobs_come_before_the_backlog() {
    a_dead_nodes_jobs_come_before_the_backlog(shared::rabbitmq().await.url()).await;
}

#[tokio::test]
async fn on_kafka_a_dead_nodes_jobs_come_before_the_backlog() {
    a_dead_nodes_jobs_come_before_the_backlog(shared::kafka().await.url()).await;
}
