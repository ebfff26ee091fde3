//! A database, a broker, and nodes that note which job started, where, in which order.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::node::NodeBuilder;
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::{
    Client, CommitHook, HandlerError, InProcessTransport, JobFilter, LaneOrder, LaneShare, NewJob,
    Node, NodeOptions, Outcome, PgStore, Running, Store, Transport,
};
use jobwire_tests::{eventually, shared, shared::Space};
use tokio::sync::Semaphore;

use crate::world::{Notes, connect, patient, quick};

pub(super) const SOON: Duration = Duration::from_secs(60);

/// What keeps a lane busy for so long that neither a slow broker nor a slow producer empties it.
pub(super) const BACKLOG: i64 = 1_000;

/// Where a node finds its broker.
enum Broker {
    InProcess(InProcessTransport),
    RabbitMq(Space),
    Kafka(Space),
}

pub(super) struct World {
    pub(super) store: PgStore,
    pub(super) jobs: Client<PgStore>,
    pub(super) hook: CommitHook,
    broker: Broker,
    /// Keeps the producer's connection.
    _producer: Arc<dyn Transport>,
}

impl World {
    pub(super) async fn in_process() -> Self {
        Self::on(Broker::InProcess(InProcessTransport::new())).await
    }

    pub(super) async fn rabbitmq() -> Self {
        Self::on(Broker::RabbitMq(shared::rabbitmq().await.space().await)).await
    }

    pub(super) async fn kafka() -> Self {
        Self::on(Broker::Kafka(shared::kafka().await.space())).await
    }

    async fn on(broker: Broker) -> Self {
        let url = shared::postgres().await.create_database().await;
        let store = patient(&url).await;
        store.migrate().await.unwrap();
        let producer = transport(&broker).await;
        let mut options = HookOptions::default();
        // A slow machine is no reason to drop a hint.
        options.max_age = Duration::from_secs(60);
        let hook = CommitHook::start(producer.publisher(), options);
        Self {
            jobs: store.client(hook.clone()),
            store,
            hook,
            broker,
            _producer: producer,
        }
    }

    /// A node that receives these lanes.
    pub(super) async fn node(&self, options: NodeOptions) -> NodeBuilder {
        Node::builder(self.store.clone(), transport(&self.broker).await).options(options)
    }

    /// Create jobs of the type `note`, in this lane, and wait until their hints have left.
    pub(super) async fn create(&self, lane: &str, count: usize) {
        let jobs = (0..count).map(|number| NewJob::of("note", &number).lane(lane));
        let mut tx = self.jobs.begin().await.unwrap();
        tx.create_many(jobs.collect()).await.unwrap();
        tx.commit().await.unwrap();
        self.until_published().await;
    }

    pub(super) async fn until_published(&self) {
        eventually("the hints have left", SOON, || async {
            (self.hook.buffered() == 0).then_some(())
        })
        .await;
    }

    pub(super) async fn waiting(&self, lane: &str) -> i64 {
        let filter = JobFilter {
            lane: Some(lane.to_owned()),
            ..JobFilter::default()
        };
        eventually("the database to count", SOON, || async {
            self.store.count(&filter).await.ok()
        })
        .await
    }

    /// Create more where less than the backlog waits in a lane. Returns what waited.
    pub(super) async fn keep_busy(&self, lane: &str) -> i64 {
        let waiting = self.waiting(lane).await;
        if waiting < BACKLOG {
            self.create(lane, 500).await;
        }
        waiting
    }

    pub(super) async fn until_empty(&self, lane: &str) {
        eventually(&format!("lane {lane} is empty"), SOON, || async {
            (self.waiting(lane).await == 0).then_some(())
        })
        .await;
    }
}

async fn transport(broker: &Broker) -> Arc<dyn Transport> {
    match broker {
        Broker::InProcess(transport) => Arc::new(transport.clone()),
        // First-in-first-out holds in a partition, so one it is.
        Broker::RabbitMq(space) | Broker::Kafka(space) => connect(space, 1).await,
    }
}

/// A node's options: so many jobs at once, of these lanes.
pub(super) fn lanes(concurrency: usize, lanes: &[(&str, u32)], order: LaneOrder) -> NodeOptions {
    let mut options = quick();
    options.concurrency = concurrency;
    options.lanes = lanes
        .iter()
        .map(|(lane, weight)| LaneShare::new(*lane, *weight))
        .collect();
    options.lane_order = order;
    options
}

/// A handler that notes `lane number` and takes this long.
pub(super) fn noting(builder: NodeBuilder, notes: &Notes, takes: Duration) -> NodeBuilder {
    let notes = notes.clone();
    builder.handler("note", move |job: Running<u64>| {
        let notes = notes.clone();
        async move {
            notes.add(format!("{} {}", job.job.lane, job.payload));
            tokio::time::sleep(takes).await;
            Ok(Outcome::Done)
        }
    })
}

/// A handler that holds its slot until it is let through.
fn plugging(builder: NodeBuilder, notes: &Notes, gate: &Arc<Semaphore>) -> NodeBuilder {
    let (notes, gate) = (notes.clone(), gate.clone());
    builder.handler("plug", move |_: Running<()>| {
        let (notes, gate) = (notes.clone(), gate.clone());
        async move {
            notes.add("plug");
            gate.acquire().await.map_err(HandlerError::from)?.forget();
            Ok(Outcome::Done)
        }
    })
}

/// A node that holds its only slot, having received something of each of these lanes: what is created now
/// waits, until the gate is opened once.
pub(super) async fn plugged(
    world: &World,
    options: NodeOptions,
    notes: &Notes,
) -> (Node, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let names: Vec<String> = options.lanes.iter().map(|l| l.lane.to_string()).collect();
    let node = plugging(world.node(options).await, notes, &gate);
    let node = noting(node, notes, SHORT).start().await.unwrap();
    for lane in &names {
        world.create(lane, 1).await;
    }
    notes.until_within(names.len(), SOON).await;
    let plug = NewJob::of("plug", &()).lane(&*names[0]);
    world.jobs.create(plug).await.unwrap();
    eventually("the slot is taken", SOON, async || {
        notes.all().contains(&"plug".to_owned()).then_some(())
    })
    .await;
    notes.clear();
    (node, gate)
}

/// How long a job takes: long enough that the next hint has arrived.
const SHORT: Duration = Duration::from_millis(20);

/// How many of these starts were of the lane.
pub(super) fn of(lane: &str, starts: &[String]) -> usize {
    let begins = format!("{lane} ");
    starts
        .iter()
        .filter(|start| start.starts_with(&begins))
        .count()
}
