//! Rule 8: a hint reaches a node that serves its job's type, from any node of the lane.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::{Marker, Ready};
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::transport::{
    Control, Publisher, Receiver, Subscription, TransportError, TransportHealth,
};
use jobwire_core::{
    Client, CommitHook, Handlers, Hint, JobQuery, Lane, NewJob, Node, NodeId, NodeOptions, Outcome,
    PgStore, Running, Store, Transport,
};
use jobwire_tests::eventually;
use jobwire_tests::shared::{self, Space};
use jobwire_tests::wait::patience;
use tokio::sync::broadcast;

use super::world::{SOON, count_hints_again, create, hinted_again, store};
use crate::world::{Notes, connect, pass};

/// Enough partitions for each node to have some.
pub(super) const PARTITIONS: i32 = 6;

/// A database, a space on a broker, and a producer.
pub(super) struct World {
    pub(super) store: PgStore,
    pub(super) space: Space,
    jobs: Client<PgStore>,
    _transport: Arc<dyn Transport>,
}

impl World {
    pub(super) async fn new(space: Space) -> Self {
        let store = store().await;
        count_hints_again(&store).await;
        let transport = connect(&space, PARTITIONS).await;
        let hook = CommitHook::start(transport.publisher(), HookOptions::default());
        Self {
            jobs: store.client(hook),
            store,
            space,
            _transport: transport,
        }
    }

    /// Starts a node that runs `common`, and perhaps `rare`; each job leaves a note.
    async fn node(&self, types: &[&'static str], slots: usize, notes: &Notes) -> Node {
        self.node_with(types, options(slots), notes).await
    }

    async fn node_with(&self, types: &[&'static str], options: NodeOptions, notes: &Notes) -> Node {
        let transport = connect(&self.space, PARTITIONS).await;
        self.node_over(transport, types, options, notes).await
    }

    async fn node_over(
        &self,
        transport: Arc<dyn Transport>,
        types: &[&'static str],
        options: NodeOptions,
        notes: &Notes,
    ) -> Node {
        let mut handlers = Handlers::default();
        for name in types {
            let notes = notes.clone();
            handlers.add(*name, move |job: Running<u64>| {
                let notes = notes.clone();
                async move {
                    tokio::time::sleep(Duration::from_millis(job.payload)).await;
                    notes.add(job.job.element.clone().unwrap_or_default());
                    Ok(Outcome::Done)
                }
            });
        }
        let node = Node::builder(self.store.clone(), transport);
        node.handlers(handlers)
            .options(options)
            .start()
            .await
            .unwrap()
    }

    pub(super) async fn create(&self, jobs: impl Iterator<Item = NewJob>) {
        let mut tx = self.jobs.begin().await.unwrap();
        tx.create_many(jobs.collect()).await.unwrap();
        tx.commit().await.unwrap();
    }

    pub(super) async fn until_left(&self, left: i64) {
        let filter = JobQuery::default();
        eventually("the jobs to be done", SOON, || async {
            (self.store.count(&filter).await.ok()? == left).then_some(())
        })
        .await;
    }

    async fn assert_none_hinted_again(&self) {
        assert_eq!(
            hinted_again(&self.store).await,
            0,
            "the sweeper hinted jobs again"
        );
    }

    async fn create_rare(&self, jobs: usize, payload: u64) {
        self.create((0..jobs).map(|_| NewJob::of("rare", &payload)))
            .await;
    }

    /// Waits until each of these nodes has run jobs that all of them serve, so that it has its part
    /// of the lane.
    async fn until_all_work(&self, nodes: &[&Notes]) {
        eventually("all nodes to work", SOON, || async {
            self.create((0..60).map(|_| NewJob::of("common", &1_u64)))
                .await;
            self.until_left(0).await;
            nodes
                .iter()
                .all(|notes| !notes.all().is_empty())
                .then_some(())
        })
        .await;
        for notes in nodes {
            notes.clear();
        }
        sqlx::raw_sql("DELETE FROM jobwire.hinted_again")
            .execute(self.store.pool())
            .await
            .unwrap();
    }
}

/// Returns options with which no hint counts as lost within a test.
fn options(slots: usize) -> NodeOptions {
    let mut options = NodeOptions::default();
    options.concurrency = slots;
    options.sweep_interval = Duration::from_secs(10);
    options.suspect_after = Duration::from_secs(600);
    options.lease = Duration::from_secs(60);
    options.shutdown_timeout = Duration::from_secs(5);
    options
}

async fn one_of_three_serves_a_type(space: Space) {
    let world = World::new(space).await;
    let [one, two, three] = [(); 3].map(|()| Notes::default());
    let common = world.node(&["common"], 16, &one).await;
    let also_common = world.node(&["common"], 16, &two).await;
    let rare = world.node(&["common", "rare"], 16, &three).await;
    world.until_all_work(&[&one, &two, &three]).await;

    world.create_rare(400, 1).await;
    world.until_left(0).await;
    assert_eq!(three.all().len(), 400);
    world.assert_none_hinted_again().await;

    // In an instance with jobs of both types, each job hands over to a node that serves the next
    // one.
    let step = |n: usize| {
        let job_type = if n.is_multiple_of(2) {
            "rare"
        } else {
            "common"
        };
        NewJob::of(job_type, &1_u64).element(n.to_string())
    };
    world
        .create((0..20).map(|n| step(n).instance("order-17")))
        .await;
    world.until_left(0).await;
    world.assert_none_hinted_again().await;
    let even: Vec<String> = (0..20).step_by(2).map(|n| n.to_string()).collect();
    let done = three.all();
    let done: Vec<&String> = done
        .iter()
        .filter(|element| even.contains(element))
        .collect();
    assert_eq!(done, even.iter().collect::<Vec<_>>());
    for node in [common, also_common, rare] {
        node.stop().await;
    }
}

#[tokio::test]
async fn one_of_three_nodes_serves_a_type_on_rabbitmq() {
    one_of_three_serves_a_type(shared::rabbitmq().await.space().await).await;
}

#[tokio::test]
async fn one_of_three_nodes_serves_a_type_on_kafka() {
    one_of_three_serves_a_type(shared::kafka().await.space()).await;
}

/// The only node that serves a type has no free slot for seconds. The forwarded hints stay with it.
#[tokio::test]
async fn what_is_forwarded_waits_for_a_slot() {
    let world = World::new(shared::rabbitmq().await.space().await).await;
    let [one, two] = [(); 2].map(|()| Notes::default());
    let common = world.node(&["common"], 16, &one).await;
    let rare = world.node(&["common", "rare"], 1, &two).await;
    world.until_all_work(&[&one, &two]).await;
    // Longer than a node keeps the broker's hints while no slot is free.
    world.create_rare(6, 4_000).await;
    world.until_left(0).await;
    assert_eq!(two.all().len(), 6);
    world.assert_none_hinted_again().await;
    for node in [common, rare] {
        node.stop().await;
    }
}

/// No living node serves the type: its job waits and spends no attempt.
#[tokio::test]
async fn a_type_that_no_node_serves_waits_for_one() {
    let world = World::new(shared::rabbitmq().await.space().await).await;
    let [one, two] = [(); 2].map(|()| Notes::default());
    let mut options = options(16);
    options.sweep_interval = Duration::from_secs(1);
    options.suspect_after = Duration::from_secs(1);
    options.hook.max_age = Duration::from_secs(1);
    let common = world.node_with(&["common"], options, &one).await;
    world.create_rare(20, 1).await;
    world
        .create((0..20).map(|_| NewJob::of("common", &1_u64)))
        .await;
    world.until_left(20).await;
    // Lasts several sweeps.
    pass(Duration::from_secs(5)).await;
    assert_eq!(hinted_again(&world.store).await, 0, "an unserved job waits");
    let attempts: i32 = sqlx::query_scalar("SELECT max(failures) FROM jobwire.job")
        .fetch_one(world.store.pool())
        .await
        .unwrap();
    assert_eq!(attempts, 0);
    let rare = world.node(&["rare"], 16, &two).await;
    world.until_left(0).await;
    assert_eq!((one.all().len(), two.all().len()), (20, 20));
    for node in [common, rare] {
        node.stop().await;
    }
}

/// A transport whose node can be kept from sending beats.
#[derive(Clone)]
struct Muted {
    transport: Arc<dyn Transport>,
    silent: Arc<AtomicBool>,
}

#[async_trait]
impl Transport for Muted {
    fn name(&self) -> &'static str {
        self.transport.name()
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.clone())
    }

    async fn subscribe(&self, to: Subscription) -> Result<Box<dyn Receiver>, TransportError> {
        self.transport.subscribe(to).await
    }

    fn listen(&self) -> broadcast::Receiver<Control> {
        self.transport.listen()
    }

    async fn close(&self, within: Duration) {
        self.transport.close(within).await;
    }
}

#[async_trait]
impl Publisher for Muted {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        self.transport.publisher().publish(lane, hints).await
    }

    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        let publisher = self.transport.publisher();
        publisher.publish_marker(lane, marker).await
    }

    fn tell(&self, control: Control) -> bool {
        let is_beat = matches!(control, Control::NodeAlive { .. });
        (is_beat && self.silent.load(Ordering::Relaxed)) || self.transport.publisher().tell(control)
    }

    fn health(&self) -> TransportHealth {
        self.transport.publisher().health()
    }
}

/// The only node that serves a type is not heard for some seconds, as on a machine that stalls. Its
/// jobs are forwarded to it all the same: a short silence settles no hint.
#[tokio::test]
async fn a_node_that_is_silent_for_seconds_gets_its_jobs() {
    let world = World::new(shared::rabbitmq().await.space().await).await;
    let [one, two] = [(); 2].map(|()| Notes::default());
    let mut options = options(16);
    // A node that is silent for two seconds gets no jobs from others, if one that was heard can
    // take them.
    options.sweep_interval = Duration::from_secs(1);
    let common = world.node_with(&["common"], options.clone(), &one).await;
    let muted = Muted {
        transport: connect(&world.space, PARTITIONS).await,
        silent: Arc::default(),
    };
    let transport = Arc::new(muted.clone());
    let types = ["common", "rare"];
    let rare = world.node_over(transport, &types, options, &two).await;
    world.until_all_work(&[&one, &two]).await;
    muted.silent.store(true, Ordering::Relaxed);
    pass(Duration::from_secs(4)).await;
    world.create_rare(40, 1).await;
    world.until_left(0).await;
    assert_eq!(two.all().len(), 40);
    world.assert_none_hinted_again().await;
    for node in [common, rare] {
        node.stop().await;
    }
}

/// Another node does not know yet that a node stops, and addresses a job to it. The job goes to the
/// lane.
#[tokio::test]
async fn a_job_that_is_addressed_to_a_node_that_stops_goes_to_another() {
    let world = World::new(shared::rabbitmq().await.space().await).await;
    let [one, two] = [(); 2].map(|()| Notes::default());
    let mut beats = options(16);
    beats.sweep_interval = Duration::from_secs(1);
    beats.shutdown_timeout = Duration::from_secs(60);
    let stopping = world.node_with(&["common", "rare"], beats, &one).await;
    let other = world.node(&["rare"], 16, &two).await;
    let transport = connect(&world.space, PARTITIONS).await;
    let mut control = transport.listen();
    let to = stopping.id();
    let mut until_told = async |meant: fn(&Control) -> Option<NodeId>| {
        let told = async {
            loop {
                if let Ok(message) = control.recv().await
                    && meant(&message) == Some(to)
                {
                    return;
                }
            }
        };
        tokio::time::timeout(patience(SOON), told).await.unwrap();
    };
    // From now on the listener misses nothing.
    until_told(|message| match message {
        Control::NodeAlive { node, .. } => Some(*node),
        _ => None,
    })
    .await;
    // Lasts until the job below was addressed to the node.
    world
        .create(std::iter::once(NewJob::of("common", &10_000_u64)))
        .await;
    let leased = "SELECT count(*) FROM jobwire.job_lease";
    eventually("the long job to run", SOON, async || {
        let leased: i64 = sqlx::query_scalar(leased)
            .fetch_one(world.store.pool())
            .await
            .unwrap();
        (leased == 1).then_some(())
    })
    .await;
    let stopped = tokio::spawn(stopping.stop());
    until_told(|message| match message {
        Control::NodeLeaves { node } => Some(*node),
        _ => None,
    })
    .await;
    let hint = create(&world.store, NewJob::of("rare", &1_u64)).await;
    let jobs = vec![Ready {
        lane: Lane::default(),
        hint,
    }];
    transport
        .publisher()
        .tell(Control::Forwarded { node: to, jobs });
    eventually("the job to run on the other node", SOON, async || {
        (two.all().len() == 1).then_some(())
    })
    .await;
    assert_eq!(hinted_again(&world.store).await, 0);
    stopped.await.unwrap();
    other.stop().await;
}

/// Measures the time from a job's commit to its start, for a type that all of eight nodes serve and
/// for one that a single node serves. Prints the results; run it alone on a quiet machine.
async fn measure_a_rare_type(name: &str, space: Space) {
    const NODES: usize = 8;
    const JOBS: u64 = 300;
    let world = World::new(space).await;
    let waits: [Arc<Mutex<Vec<u64>>>; 2] = Default::default();
    let micros = || u64::try_from(chrono::Utc::now().timestamp_micros()).unwrap();
    let mut nodes = Vec::new();
    for n in 0..NODES {
        let mut handlers = Handlers::default();
        let types = ["common", "rare"];
        let served = if n == 0 { &types[..] } else { &types[..1] };
        for (job_type, waits) in served.iter().zip(&waits) {
            let waits = waits.clone();
            handlers.add(*job_type, move |job: Running<u64>| {
                waits.lock().unwrap().push(micros() - job.payload);
                async { Ok(Outcome::Done) }
            });
        }
        let transport = connect(&world.space, PARTITIONS).await;
        let node = Node::builder(world.store.clone(), transport).handlers(handlers);
        nodes.push(node.options(options(16)).start().await.unwrap());
    }
    // Lets every node learn of all others and get its part of the lane.
    tokio::time::sleep(Duration::from_secs(12)).await;
    for n in 0..2 * JOBS {
        let job_type = if n % 2 == 0 { "common" } else { "rare" };
        let job = NewJob::of(job_type, &micros());
        world.create(std::iter::once(job)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.until_left(0).await;
    world.assert_none_hinted_again().await;
    for (job_type, waits) in ["common", "rare"].iter().zip(&waits) {
        let mut waits = waits.lock().unwrap().clone();
        waits.sort_unstable();
        let at = |part: usize| waits[(waits.len() - 1) * part / 100] as f64 / 1e3;
        println!(
            "{name}, {job_type}: {} jobs, commit to start p50 {:.1} ms, p99 {:.1} ms, slowest {:.1} ms",
            waits.len(),
            at(50),
            at(99),
            at(100)
        );
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn how_long_a_rare_type_waits() {
    measure_a_rare_type("RabbitMQ", shared::rabbitmq().await.space().await).await;
    measure_a_rare_type("Kafka", shared::kafka().await.space()).await;
}
