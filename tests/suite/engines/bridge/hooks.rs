//! Engines without the commit tap: their own hooks publish the hints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jobwire_core::store::TapMode;
use jobwire_core::{Hint, JobId, Node, NodeOptions, Transport};
use jobwire_engines::handlers;
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{EngineSettings, HintCounts, Proxy, eventually};

use super::flowable::{DONE, options, quick, repeated, store, until_ended, until_no_lock_is_left};
use crate::engines::rows::World;
use crate::world::connect;

/// The longest time in which an engine may commit a start. A broker that is away must not show.
const COMMIT: Duration = Duration::from_secs(2);

/// A node without the commit tap.
struct HintedNode {
    node: Node,
    transport: Arc<dyn Transport>,
}

impl HintedNode {
    /// Starts a node, and returns when it leads and its lane stands on the broker.
    async fn start(world: &World, space: &Space, node: NodeOptions) -> HintedNode {
        let store = store(world, options(&world.engine)).await;
        let lane = store.options().lane.clone();
        let transport = connect(space, 3).await;
        let node = Node::builder(store.clone(), transport.clone())
            .handlers(handlers(&store).unwrap())
            .options(node.lanes(vec![lane.clone().into()]).tap(TapMode::Off))
            .start()
            .await
            .unwrap();
        eventually("the node to lead", DONE, || async {
            node.health().leads.then_some(())
        })
        .await;
        let publisher = transport.publisher();
        eventually("the lane to be there", DONE, || async {
            let of_no_job = Hint::new(JobId::generate());
            publisher.publish(&lane, vec![of_no_job]).await.ok()
        })
        .await;
        HintedNode { node, transport }
    }

    async fn stop(self) {
        self.node.stop().await;
        self.transport.close(Duration::from_secs(5)).await;
    }
}

/// Returns the options of a node that runs one leader cycle, at its start. After it, only hints
/// start jobs, and only what the leader is told moves timers.
fn without_looks() -> NodeOptions {
    NodeOptions::default()
        .concurrency(8)
        .lease(Duration::from_secs(1_200))
        .sweep_interval(Duration::from_secs(600))
}

fn dropped(counts: &HintCounts) -> u64 {
    counts.dropped.values().sum()
}

async fn every_job_starts_by_the_hint_of_the_hook(
    settings: fn(&str) -> EngineSettings,
    space: Space,
) {
    let world = World::start(|database| settings(database).hints(&space)).await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let node = HintedNode::start(&world, &space, without_looks()).await;
    // A start that rolls back publishes nothing.
    assert_eq!(engine.start_in_vain("broken").await.status, 500);
    let ones = engine.start_instances("one", 20, &[]).await;
    until_ended(&rows, &ones).await;
    eventually("the confirms", DONE, || async {
        (engine.hint_counts().await.published >= 20).then_some(())
    })
    .await;
    assert_eq!(engine.hint_counts().await.published, 20);
    let mut instances = engine.start_instances("fork", 5, &[]).await;
    instances.extend(engine.start_instances("chain", 3, &[]).await);
    let wait = [("wait", "PT1S")];
    instances.extend(engine.start_instances("timer", 3, &wait).await);
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    let counts = engine.hint_counts().await;
    assert!(counts.timers >= 1, "{counts:?}");
    assert_eq!(dropped(&counts), 0, "{counts:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_of_flowable_starts_by_the_hint_of_its_hook_over_rabbitmq() {
    let space = shared::rabbitmq().await.space().await;
    every_job_starts_by_the_hint_of_the_hook(EngineSettings::flowable7, space).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_of_camunda_starts_by_the_hint_of_its_hook_over_kafka() {
    let space = shared::kafka().await.space();
    every_job_starts_by_the_hint_of_the_hook(EngineSettings::camunda7, space).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_job_of_flowable_starts_by_the_hint_of_its_hook_over_kafka() {
    let space = shared::kafka().await.space();
    every_job_starts_by_the_hint_of_the_hook(EngineSettings::flowable7, space).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_job_of_camunda_starts_by_the_hint_of_its_hook_over_rabbitmq() {
    let space = shared::rabbitmq().await.space().await;
    every_job_starts_by_the_hint_of_the_hook(EngineSettings::camunda7, space).await;
}

/// A failed job of Flowable waits among the timers for ten seconds; Camunda's is ready at once.
async fn a_failed_job_is_tried_again_without_a_look(
    settings: fn(&str) -> EngineSettings,
    space: Space,
) {
    let world = World::start(|database| settings(database).hints(&space)).await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let node = HintedNode::start(&world, &space, without_looks()).await;
    let instance = engine.start_instance("failing", &[("failures", "2")]).await;
    until_ended(&rows, std::slice::from_ref(&instance)).await;
    assert_eq!(rows.effects(&instance).await, ["work"; 3]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_failed_job_of_flowable_is_tried_again_without_a_look() {
    let space = shared::rabbitmq().await.space().await;
    a_failed_job_is_tried_again_without_a_look(EngineSettings::flowable7, space).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_failed_job_of_camunda_is_tried_again_without_a_look() {
    let space = shared::rabbitmq().await.space().await;
    a_failed_job_is_tried_again_without_a_look(EngineSettings::camunda7, space).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn while_the_broker_is_away_the_engine_commits_and_the_leader_finds_the_jobs() {
    let space = shared::rabbitmq().await.space().await;
    let broker = url::Url::parse(&space.url).unwrap();
    let address = format!(
        "{}:{}",
        broker.host_str().unwrap(),
        broker.port().unwrap_or(5672)
    );
    let proxy = Proxy::start(&address).await;
    let through = Space {
        url: proxy.url(&space.url),
        prefix: space.prefix.clone(),
    };
    let world = World::start(|database| {
        EngineSettings::flowable7(database)
            .hints(&through)
            .hint_max_age(Duration::from_secs(2))
    })
    .await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let node = HintedNode::start(&world, &space, quick()).await;
    let published = |count: u64| async move {
        eventually("the hint to be published", DONE, || async {
            (engine.hint_counts().await.published == count).then_some(())
        })
        .await;
    };
    let one = engine.start_instances("one", 1, &[]).await;
    until_ended(&rows, &one).await;
    published(1).await;
    proxy.refuse().await;
    proxy.cut();
    let mut instances = Vec::new();
    for _ in 0..20 {
        let begun = Instant::now();
        instances.push(engine.start_instance("one", &[]).await);
        assert!(begun.elapsed() < COMMIT, "{:?}", begun.elapsed());
    }
    until_ended(&rows, &instances).await;
    eventually("the hints to be dropped", DONE, || async {
        (engine.hint_counts().await.dropped["too-old"] == 20).then_some(())
    })
    .await;
    proxy.accept().await;
    let one = engine.start_instances("one", 1, &[]).await;
    until_ended(&rows, &one).await;
    published(2).await;
    assert_eq!(repeated(&rows).await, []);
    node.stop().await;
}
