//! Several brokers for one database: lanes over both, and a live fleet that moves from one to the
//! other.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::transport::routed::RoutedTransport;
use jobwire_core::{
    Client, CommitHook, HandlerOptions, Handlers, JobFilter, Lane, NewJob, Node, Outcome, PgStore,
    Running, Store, Transport,
};
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{KafkaAdmin, eventually};

use crate::world::{connect, quick};

const SOON: Duration = Duration::from_secs(90);

/// One database, and a separate space on each of two brokers.
struct World {
    store: PgStore,
    rabbitmq: Space,
    kafka: Space,
}

impl World {
    async fn new() -> Self {
        let url = shared::postgres().await.create_database().await;
        let store = PgStore::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        sqlx::query("CREATE TABLE done (job uuid NOT NULL, node text NOT NULL)")
            .execute(store.pool())
            .await
            .unwrap();
        Self {
            store,
            rabbitmq: shared::rabbitmq().await.space().await,
            kafka: shared::kafka().await.space(),
        }
    }

    async fn rabbitmq(&self) -> Arc<dyn Transport> {
        connect(&self.rabbitmq, 3).await
    }

    async fn kafka(&self) -> Arc<dyn Transport> {
        connect(&self.kafka, 3).await
    }

    fn producer(&self, transport: &Arc<dyn Transport>) -> Client<PgStore> {
        let hook = CommitHook::start(transport.publisher(), HookOptions::default());
        self.store.client(hook)
    }

    /// Starts a node whose handler inserts a row in the transaction that completes its job.
    async fn node(&self, name: &'static str, transport: Arc<dyn Transport>, lanes: &str) -> Node {
        let mut handlers = Handlers::default();
        let options = HandlerOptions::default().in_transaction();
        handlers.add_with("note", options, move |job: Running<u32>| async move {
            let mut guard = job.transaction::<PgStore>().await?;
            sqlx::query("INSERT INTO done (job, node) VALUES ($1, $2)")
                .bind(job.job.id.uuid())
                .bind(name)
                .execute(&mut *guard)
                .await?;
            Ok(Outcome::Done)
        });
        let mut options = quick();
        options.lanes = lanes.split(',').map(|lane| lane.parse().unwrap()).collect();
        Node::builder(self.store.clone(), transport)
            .handlers(handlers)
            .options(options)
            .start()
            .await
            .unwrap()
    }

    async fn until_done(&self) {
        let filter = JobFilter::default();
        eventually("all jobs to be done", SOON, || async {
            (self.store.count(&filter).await.ok()? == 0).then_some(())
        })
        .await;
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn lanes_go_over_two_brokers_and_each_node_serves_its_own() {
    let world = World::new().await;
    let routed = async || {
        let bulk = Lane::unchecked("bulk");
        let kafka = world.kafka().await;
        let routed = RoutedTransport::builder(world.rabbitmq().await).lanes([bulk], kafka);
        Arc::new(routed.build()) as Arc<dyn Transport>
    };
    let producing = routed().await;
    let jobs = world.producer(&producing);
    let one = world.node("default", routed().await, "default").await;
    let two = world.node("bulk", routed().await, "bulk").await;
    for n in 0..100_u32 {
        let lane = if n % 2 == 0 { "bulk" } else { "default" };
        jobs.create(NewJob::of("note", &n).lane(lane))
            .await
            .unwrap();
    }
    // These jobs have no hint: the leader, which receives one of the lanes, hints both.
    for lane in ["default", "bulk"] {
        for n in 0..5_u32 {
            let job = NewJob::of("note", &n).lane(lane);
            Client::without_hints(world.store.clone())
                .create(job)
                .await
                .unwrap();
        }
    }
    world.until_done().await;
    assert_eq!(world.count("SELECT count(*) FROM done").await, 110);
    assert_eq!(
        world.count("SELECT count(DISTINCT job) FROM done").await,
        110
    );
    let topics = KafkaAdmin::of(&world.kafka.url).topics().await;
    let lanes: Vec<&String> = topics
        .iter()
        .filter(|t| t.starts_with(&format!("{}.lane.", world.kafka.prefix)))
        .collect();
    assert_eq!(lanes, [&format!("{}.lane.bulk", world.kafka.prefix)]);
    one.stop().await;
    two.stop().await;
}

/// The order of docs/operating/deployment.md: first nodes, then producers, then nodes without the
/// former broker.
#[tokio::test]
async fn a_live_fleet_moves_from_rabbitmq_to_kafka() {
    let world = World::new().await;
    let moving = async || {
        let routed = RoutedTransport::builder(world.kafka().await).former(world.rabbitmq().await);
        Arc::new(routed.build()) as Arc<dyn Transport>
    };
    let mut created = 0;
    let mut create = async |jobs: &Client<PgStore>, count: u32| {
        for n in 0..count {
            let job = NewJob::of("note", &n).instance(format!("case-{}", n % 7));
            jobs.create(job).await.unwrap();
            created += 1;
        }
    };
    let old_producer = world.producer(&world.rabbitmq().await);
    let first = world.node("old 1", world.rabbitmq().await, "default").await;
    let second = world.node("old 2", world.rabbitmq().await, "default").await;
    create(&old_producer, 30).await;
    first.stop().await;
    let third = world.node("moving 1", moving().await, "default").await;
    create(&old_producer, 30).await;
    second.stop().await;
    let fourth = world.node("moving 2", moving().await, "default").await;
    create(&old_producer, 30).await;
    let new_producer = world.producer(&world.kafka().await);
    create(&new_producer, 30).await;
    third.stop().await;
    let fifth = world.node("new 1", world.kafka().await, "default").await;
    create(&new_producer, 30).await;
    fourth.stop().await;
    let sixth = world.node("new 2", world.kafka().await, "default").await;
    create(&new_producer, 30).await;
    world.until_done().await;
    assert_eq!(world.count("SELECT count(*) FROM done").await, created);
    assert_eq!(
        world.count("SELECT count(DISTINCT job) FROM done").await,
        created
    );
    fifth.stop().await;
    sixth.stop().await;
}
