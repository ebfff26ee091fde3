//! Several brokers for one database: lanes over both, and a live fleet that moves from one to the
//! other.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::transport::routed::RoutedTransport;
use jobwire_core::{
    Client, CommitHook, HandlerOptions, Handlers, JobQuery, Lane, NewJob, Node, Outcome, PgStore,
    Running, Store, Transport,
};
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{KafkaAdmin, eventually};

use crate::world::{connect, quick};

const SOON: Duration = Duration::from_secs(90);

/// One database, and a separate space on each of two brokers.
struct TwoBrokers {
    store: PgStore,
    rabbitmq: Space,
    kafka: Space,
}

impl TwoBrokers {
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
        let filter = JobQuery::default();
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
    let brokers = TwoBrokers::new().await;
    let routed = async || {
        let bulk = Lane::unchecked("bulk");
        let kafka = brokers.kafka().await;
        let routed = RoutedTransport::builder(brokers.rabbitmq().await).lanes([bulk], kafka);
        Arc::new(routed.build()) as Arc<dyn Transport>
    };
    let producing = routed().await;
    let jobs = brokers.producer(&producing);
    let one = brokers.node("default", routed().await, "default").await;
    let two = brokers.node("bulk", routed().await, "bulk").await;
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
            Client::without_hints(brokers.store.clone())
                .create(job)
                .await
                .unwrap();
        }
    }
    brokers.until_done().await;
    assert_eq!(brokers.count("SELECT count(*) FROM done").await, 110);
    assert_eq!(
        brokers.count("SELECT count(DISTINCT job) FROM done").await,
        110
    );
    let topics = KafkaAdmin::of(&brokers.kafka.url).topics().await;
    let lanes: Vec<&String> = topics
        .iter()
        .filter(|t| t.starts_with(&format!("{}.lane.", brokers.kafka.prefix)))
        .collect();
    assert_eq!(lanes, [&format!("{}.lane.bulk", brokers.kafka.prefix)]);
    one.stop().await;
    two.stop().await;
}

/// The order of docs/operating/deployment.md: first nodes, then producers, then nodes without the
/// former broker.
#[tokio::test]
async fn a_leader_that_lacks_the_broker_of_a_lane_resigns_in_favour_of_a_node_that_has_it() {
    let brokers = TwoBrokers::new().await;
    let lacks = brokers
        .node("lacks", brokers.rabbitmq().await, "default")
        .await;
    eventually("the first node to lead", SOON, || async {
        lacks.health().leads.then_some(())
    })
    .await;
    let kafka = brokers.kafka().await;
    let routed =
        RoutedTransport::builder(brokers.rabbitmq().await).lanes([Lane::unchecked("bulk")], kafka);
    let has = brokers.node("has", Arc::new(routed.build()), "bulk").await;
    let job = NewJob::of("note", &1).lane("bulk");
    Client::without_hints(brokers.store.clone())
        .create(job)
        .await
        .unwrap();
    brokers.until_done().await;
    // On a slow machine the lead may change again meanwhile.
    eventually("the node with both brokers to lead", SOON, || async {
        (has.health().leads && !lacks.health().leads).then_some(())
    })
    .await;
    has.stop().await;
    lacks.stop().await;
}

#[tokio::test]
async fn a_live_fleet_moves_from_rabbitmq_to_kafka() {
    let brokers = TwoBrokers::new().await;
    let moving = async || {
        let routed =
            RoutedTransport::builder(brokers.kafka().await).former(brokers.rabbitmq().await);
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
    let old_producer = brokers.producer(&brokers.rabbitmq().await);
    let first = brokers
        .node("old 1", brokers.rabbitmq().await, "default")
        .await;
    let second = brokers
        .node("old 2", brokers.rabbitmq().await, "default")
        .await;
    create(&old_producer, 30).await;
    first.stop().await;
    let third = brokers.node("moving 1", moving().await, "default").await;
    create(&old_producer, 30).await;
    second.stop().await;
    let fourth = brokers.node("moving 2", moving().await, "default").await;
    create(&old_producer, 30).await;
    let new_producer = brokers.producer(&brokers.kafka().await);
    create(&new_producer, 30).await;
    third.stop().await;
    let fifth = brokers
        .node("new 1", brokers.kafka().await, "default")
        .await;
    create(&new_producer, 30).await;
    fourth.stop().await;
    let sixth = brokers
        .node("new 2", brokers.kafka().await, "default")
        .await;
    create(&new_producer, 30).await;
    brokers.until_done().await;
    assert_eq!(brokers.count("SELECT count(*) FROM done").await, created);
    assert_eq!(
        brokers.count("SELECT count(DISTINCT job) FROM done").await,
        created
    );
    fifth.stop().await;
    sixth.stop().await;
}
