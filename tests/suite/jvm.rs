//! The Spring sample creates jobs in its own transactions and hints them after their commit: with a
//! real database, over both brokers, for a real node. Budget: 30 s, most of it two starts of Spring
//! and javac.

use std::time::Duration;

use jobwire_core::{JobQuery, PgStore, Store};
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{KafkaAdmin, Program, Running, SpringSample, eventually, http};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};

const SOON: Duration = Duration::from_secs(60);

/// Starts a node that sweeps once an hour: within this test it runs only hinted jobs. Returns the
/// node and its HTTP address after its first leader cycle.
pub(crate) async fn node_that_does_not_sweep(database: &str, space: &Space) -> (Running, String) {
    let broker = match space.url.strip_prefix("kafka://") {
        Some(_) => format!("{}/{}", space.url, space.prefix),
        None => space.url.clone(),
    };
    let node = Program::jobwire()
        .args(["run"])
        .env("JOBWIRE_DATABASE_URL", database)
        .env("JOBWIRE_BROKER_URL", broker)
        .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
        .env("JOBWIRE_KAFKA_PARTITIONS", "3")
        .env("JOBWIRE_HTTP", "127.0.0.1:0")
        .env("JOBWIRE_SWEEP_INTERVAL", "1h")
        // The leader runs a cycle before its lease ends, which would hint the job without a hint.
        .env("JOBWIRE_LEASE", "1h")
        // Where a busy machine loses the connection to the broker, the job would be claimed.
        .env("JOBWIRE_CLAIM_AFTER", "off")
        .start();
    let line = node.wait_for_line("is ready", SOON).await;
    let address = http::address_in(&line);
    eventually("the node to lead", SOON, || async {
        let metrics = http::get(&address, "/metrics").await.ok()?;
        metrics.body.contains("\njobwire_leader 1").then_some(())
    })
    .await;
    until_there(space).await;
    (node, address)
}

/// Waits until the lane has its queue or topic: a message to a missing queue is lost.
async fn until_there(space: &Space) {
    let lane = format!("{}.lane.default", space.prefix);
    if space.url.starts_with("kafka://") {
        let admin = KafkaAdmin::of(&space.url);
        eventually("the topic to be made", SOON, || async {
            admin.topics().await.contains(&lane).then_some(())
        })
        .await;
        return;
    }
    let connection = Connection::connect(&space.url, ConnectionProperties::default());
    let connection = connection.await.unwrap();
    eventually("the queue to be declared", SOON, || async {
        let channel = connection.create_channel().await.ok()?;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let name = lane.as_str().into();
        let found = channel.queue_declare(name, passive, FieldTable::default());
        found.await.ok().map(drop)
    })
    .await;
}

pub(crate) async fn until_empty(store: &PgStore) {
    let filter = JobQuery::default();
    eventually("the hinted jobs to be done", SOON, || async {
        (store.count(&filter).await.ok()? == 0).then_some(())
    })
    .await;
}

async fn the_sample_hints_its_jobs(space: Space) {
    let database = shared::postgres().await.migrated_database().await;
    let store = PgStore::connect(&database).await.unwrap();
    store.migrate().await.unwrap();
    let orders = "CREATE TABLE orders (number bigint PRIMARY KEY)";
    sqlx::query(orders).execute(store.pool()).await.unwrap();
    let sample = SpringSample::compile().await;
    let (node, _) = node_that_does_not_sweep(&database, &space).await;

    let said = sample
        .place(
            &database,
            &space,
            &["17", "18", "-19", "20"].map(str::to_owned),
        )
        .await;

    let placed = said.iter().filter(|line| line.contains("is placed: Job["));
    assert_eq!(placed.count(), 3, "{said:#?}");
    assert!(
        said.contains(&"order -19 is refused".to_owned()),
        "{said:#?}"
    );
    let lost: Vec<_> = said
        .iter()
        .filter(|line| line.contains("no hint"))
        .collect();
    assert!(lost.is_empty(), "{said:#?}");
    until_empty(&store).await;
    let said = node.lines().all();
    let found = |line: &String| line.contains("created without a hint");
    assert!(!said.iter().any(found), "the leader found jobs: {said:#?}");
    let orders: Vec<i64> = sqlx::query_scalar("SELECT number FROM orders ORDER BY number")
        .fetch_all(store.pool())
        .await
        .unwrap();
    assert_eq!(orders, [17, 18, 20]);
}

#[tokio::test]
async fn a_spring_service_hints_its_jobs_over_rabbitmq() {
    the_sample_hints_its_jobs(shared::rabbitmq().await.space().await).await;
}

#[tokio::test]
async fn a_spring_service_hints_its_jobs_over_kafka() {
    the_sample_hints_its_jobs(shared::kafka().await.space()).await;
}
