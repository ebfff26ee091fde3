//! A database, a broker, and nodes that note which job started where and in which order.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::node::NodeBuilder;
use jobwire_core::{
    Client, CommitHook, HandlerError, InProcessTransport, JobQuery, LaneOrder, LaneShare, NewJob,
    Node, NodeOptions, Outcome, PgStore, Running, Store, Transport,
};
use jobwire_tests::{eventually, shared, shared::Space};
use tokio::sync::Semaphore;

use crate::world::{Notes, connect, database, hook, quick};

pub(super) const SOON: Duration = Duration::from_secs(60);

/// Jobs that keep a lane busy although the broker or the producer may be slow.
pub(super) const BACKLOG: i64 = 1_000;

/// The broker of a node.
enum Broker {
    InProcess(InProcessTransport),
    RabbitMq(Space),
    Kafka(Space),
}

pub(super) struct Fleet {
    pub(super) store: PgStore,
    pub(super) jobs: Client<PgStore>,
    pub(super) hook: CommitHook,
    broker: Broker,
    /// Keeps the producer's connection open.
    _producer: Arc<dyn Transport>,
}

impl Fleet {
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
        let store = database().await;
        let producer = transport(&broker).await;
        // A slow machine must not drop a hint.
        let hook = hook(&*producer, Duration::from_secs(60));
        Self {
            jobs: store.client(hook.clone()),
            store,
            hook,
            broker,
            _producer: producer,
        }
    }

    /// Returns a node with these options, still without handlers.
    pub(super) async fn node(&self, options: NodeOptions) -> NodeBuilder {
        Node::builder(self.store.clone(), transport(&self.broker).await).options(options)
    }

    /// Declares lanes that no node receives yet. Hints to a lane that is not declared wait in the
    /// hook for a minute.
    pub(super) async fn declare(&self, names: &[&str]) {
        let names: Vec<(&str, u32)> = names.iter().map(|name| (*name, 1)).collect();
        let node = self.node(lanes(1, &names, LaneOrder::Weighted)).await;
        node.start().await.unwrap().stop().await;
    }

    /// Creates jobs of the type `note` in this lane and waits until their hints are published.
    pub(super) async fn create(&self, lane: &str, count: usize) {
        let jobs = (0..count).map(|number| NewJob::of("note", &number).lane(lane));
        let mut tx = self.jobs.begin().await.unwrap();
        tx.create_many(jobs.collect()).await.unwrap();
        tx.commit().await.unwrap();
        self.until_published().await;
    }

    pub(super) async fn until_published(&self) {
        eventually("the hints to be published", SOON, || async {
            (self.hook.buffered() == 0).then_some(())
        })
        .await;
    }

    pub(super) async fn waiting(&self, lane: &str) -> i64 {
        let filter = JobQuery::default().lane(lane);
        eventually("the database to count", SOON, || async {
            self.store.count(&filter).await.ok()
        })
        .await
    }

    /// Creates jobs if fewer than the backlog wait in a lane. Returns how many waited.
    pub(super) async fn keep_busy(&self, lane: &str) -> i64 {
        let waiting = self.waiting(lane).await;
        if waiting < BACKLOG {
            self.create(lane, 500).await;
        }
        waiting
    }

    pub(super) async fn until_empty(&self, lane: &str) {
        eventually(&format!("lane {lane} to be empty"), SOON, || async {
            (self.waiting(lane).await == 0).then_some(())
        })
        .await;
    }
}

async fn transport(broker: &Broker) -> Arc<dyn Transport> {
    match broker {
        Broker::InProcess(transport) => Arc::new(transport.clone()),
        // One partition, since only a partition keeps the order.
        Broker::RabbitMq(space) | Broker::Kafka(space) => connect(space, 1).await,
    }
}

/// Returns the options of a node that runs this many jobs at once, from these lanes.
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

/// Adds a handler that notes `lane number` and takes this long.
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

/// Adds a handler that holds its slot until the gate opens.
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

/// Starts a node whose only slot is taken, after it has received hints of each of these lanes. Jobs
/// that are created now wait until the gate opens once.
pub(super) async fn plugged(
    fleet: &Fleet,
    options: NodeOptions,
    notes: &Notes,
) -> (Node, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let names: Vec<String> = options.lanes.iter().map(|l| l.lane.to_string()).collect();
    let node = plugging(fleet.node(options).await, notes, &gate);
    let node = noting(node, notes, SHORT).start().await.unwrap();
    for lane in &names {
        fleet.create(lane, 1).await;
    }
    notes.until_within(names.len(), SOON).await;
    let plug = NewJob::of("plug", &()).lane(&*names[0]);
    fleet.jobs.create(plug).await.unwrap();
    eventually("the slot to be taken", SOON, async || {
        notes.all().contains(&"plug".to_owned()).then_some(())
    })
    .await;
    notes.clear();
    (node, gate)
}

/// The duration of a job: long enough for the next hint to arrive.
const SHORT: Duration = Duration::from_millis(20);

/// Returns how many of these starts were of the lane.
pub(super) fn of(lane: &str, starts: &[String]) -> usize {
    let begins = format!("{lane} ");
    starts
        .iter()
        .filter(|start| start.starts_with(&begins))
        .count()
}
