//! Consumers of the stream on both brokers: every event, in order by instance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jobwire::{Client, Handlers, NewJob, Node, NodeOptions, PgStore, Running, Store, Transport};
use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_harness::world::database;
use jobwire_kafka::{KafkaOptions, KafkaTransport};
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{Proxy, eventually};
use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::Value;

use super::switch_on;
use crate::hints::Contract;

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// An event as a consumer got it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) key: String,
    pub(crate) event: Value,
}

impl Received {
    pub(crate) fn text(&self, field: &str) -> &str {
        self.event[field].as_str().unwrap_or_default()
    }

    pub(crate) fn kind(&self) -> &str {
        self.event["data"]["kind"].as_str().unwrap_or_default()
    }
}

/// A queue that is bound to all events. The consumer declares the exchange as the leader does.
pub(crate) struct Queue {
    channel: Channel,
    name: String,
    _connection: Connection,
}

impl Queue {
    pub(crate) async fn bind(space: &Space, pattern: &str) -> Self {
        let connection = Connection::connect(&space.url, ConnectionProperties::default());
        let connection = connection.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let exchange = format!("{}.events", space.prefix);
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let none = FieldTable::default();
        channel
            .exchange_declare(
                exchange.as_str().into(),
                ExchangeKind::Topic,
                durable,
                none.clone(),
            )
            .await
            .unwrap();
        let queue = format!("{exchange}.test");
        let options = QueueDeclareOptions::default();
        let declared = channel.queue_declare(queue.as_str().into(), options, none.clone());
        declared.await.unwrap();
        let bound = channel.queue_bind(
            queue.as_str().into(),
            exchange.as_str().into(),
            pattern.into(),
            QueueBindOptions::default(),
            none,
        );
        bound.await.unwrap();
        Self {
            channel,
            name: queue,
            _connection: connection,
        }
    }

    pub(crate) async fn next(&mut self) -> Received {
        let delivery = eventually("an event", SOON, async || {
            let options = BasicGetOptions { no_ack: true };
            let got = self.channel.basic_get(self.name.as_str().into(), options);
            Some(got.await.unwrap()?.delivery)
        })
        .await;
        let kind = delivery.properties.content_type().as_ref().unwrap();
        assert_eq!(kind.as_str(), "application/cloudevents+json; charset=UTF-8");
        Received {
            key: delivery.routing_key.to_string(),
            event: serde_json::from_slice(&delivery.data).unwrap(),
        }
    }

    /// Receives until this many events of this kind have come. An event whose confirm was late comes
    /// twice, with the same id.
    pub(crate) async fn until(&mut self, kind: &str, times: usize) -> Vec<Received> {
        let mut received: Vec<Received> = Vec::new();
        while received.iter().filter(|one| one.kind() == kind).count() < times {
            let event = self.next().await;
            if received
                .iter()
                .all(|one| one.text("id") != event.text("id"))
            {
                received.push(event);
            }
        }
        received
    }
}

fn handlers() -> Handlers {
    let mut handlers = Handlers::default();
    handlers.add("work", |_: Running<u64>| async { Ok(()) });
    handlers
}

async fn node(store: &PgStore, transport: Arc<dyn Transport>) -> Node {
    Node::builder(store.clone(), transport)
        .options(NodeOptions::default().concurrency(4))
        .handlers(handlers())
        .start()
        .await
        .unwrap()
}

/// Creates exclusive jobs of some instances, in one transaction each.
async fn create(store: &PgStore, node: &Node) {
    let client = Client::new(store.clone(), node.hook());
    for number in 0..5_u64 {
        let of = |instance: u64| NewJob::of("work", &number).instance(format!("order-{instance}"));
        client.create_many((0..4).map(of).collect()).await.unwrap();
    }
}

/// Each job of an instance was done before the next one was locked, and the events say so in this order.
/// There are four instances of five jobs.
pub(crate) fn assert_in_order(received: &[Received]) {
    let contract = Contract::new();
    for one in received {
        contract.assert_event(&one.event);
    }
    let mut instances: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for one in received {
        let instance = one.event["partitionkey"].as_str().unwrap();
        let event = (one.kind(), one.text("subject"));
        instances.entry(instance).or_default().push(event);
    }
    assert_eq!(instances.len(), 4);
    for (instance, events) in instances {
        let created = events.iter().filter(|(kind, _)| *kind == "created");
        let jobs: Vec<&str> = created.map(|(_, job)| *job).collect();
        assert_eq!(jobs.len(), 5, "{instance}: {events:?}");
        let runs: Vec<_> = events
            .iter()
            .copied()
            .filter(|(kind, _)| *kind != "created")
            .collect();
        let expected: Vec<_> = jobs
            .iter()
            .flat_map(|job| [("locked", *job), ("succeeded", *job)])
            .collect();
        assert_eq!(runs, expected, "{instance}");
        let place = |event| events.iter().position(|other| *other == event);
        for job in jobs {
            assert!(place(("created", job)) < place(("locked", job)));
        }
    }
}

async fn until_published(store: &PgStore) {
    eventually("all events to be published", SOON, async || {
        (store.waiting_events().await.ok()?.0 == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_events_of_an_instance_come_in_their_order_over_rabbitmq() {
    let store = database().await;
    switch_on(&store).await;
    let space = shared::rabbitmq().await.space().await;
    let mut queue = Queue::bind(&space, "#").await;
    let mut options = AmqpOptions::default();
    options.prefix.clone_from(&space.prefix);
    let transport = AmqpTransport::connect(&space.url, options).await.unwrap();
    let node = node(&store, Arc::new(transport)).await;
    create(&store, &node).await;
    let received = queue.until("succeeded", 20).await;
    assert_in_order(&received);
    for one in &received {
        assert_eq!(one.key, format!("{}.work", one.kind()));
        assert_eq!(one.text("specversion"), "1.0");
        assert_eq!(one.text("source"), "jobwire/test");
        assert_eq!(one.text("type"), format!("io.jobwire.job.{}", one.kind()));
    }
    until_published(&store).await;
    node.stop().await;
}

/// The broker is away while jobs run. Nobody waits for it, and afterwards every event comes.
#[tokio::test]
async fn events_wait_for_a_broker_that_is_away() {
    let store = database().await;
    switch_on(&store).await;
    let space = shared::rabbitmq().await.space().await;
    let mut queue = Queue::bind(&space, "succeeded.*").await;
    let url = url::Url::parse(&space.url).unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5672));
    let proxy = Proxy::start(&server).await;
    let mut options = AmqpOptions::default().confirm_timeout(Duration::from_secs(1));
    options.prefix.clone_from(&space.prefix);
    let transport = AmqpTransport::connect(&proxy.url(&space.url), options).await;
    let node = node(&store, Arc::new(transport.unwrap())).await;
    let client = Client::new(store.clone(), node.hook());
    client.create(NewJob::of("work", &0)).await.unwrap();
    queue.until("succeeded", 1).await;
    until_published(&store).await;

    proxy.refuse().await;
    proxy.cut();
    let jobs = (1..=10).map(|number| NewJob::of("work", &number));
    let jobs = client.create_many(jobs.collect()).await.unwrap();
    // The node claims its jobs from the database. An event that was never confirmed is not deleted.
    eventually("the jobs to be done", SOON, async || {
        let events = store.next_events(1_000).await.ok()?;
        let done = events.iter().filter(|event| event.kind == "succeeded");
        (done.count() == 10).then_some(())
    })
    .await;
    proxy.accept().await;
    let received = queue.until("succeeded", 10).await;
    for job in jobs {
        let job = job.to_string();
        assert!(received.iter().any(|one| one.text("subject") == job));
    }
    until_published(&store).await;
    node.stop().await;
}

#[tokio::test]
async fn the_events_of_an_instance_come_in_their_order_over_kafka() {
    let store = database().await;
    switch_on(&store).await;
    let space = shared::kafka().await.space();
    let url = format!("{}/{}", space.url, space.prefix);
    let transport = KafkaTransport::connect(&url, KafkaOptions::default());
    let node = node(&store, Arc::new(transport.await.unwrap())).await;
    create(&store, &node).await;
    eventually("the jobs to be done", SOON, async || {
        let left = store.count(&jobwire::JobQuery::default()).await.ok()?;
        (left == 0).then_some(())
    })
    .await;
    until_published(&store).await;
    node.stop().await;

    let servers = space.url.replace("kafka://", "");
    let topic = format!("{}.events", space.prefix);
    let received = tokio::task::spawn_blocking(move || consume(&servers, &topic, 60));
    let received = received.await.unwrap();
    assert_in_order(&received);
    for one in &received {
        assert_eq!(one.key, one.text("partitionkey"));
    }
}

/// Reads a topic from its start until this many events have come. An event whose confirm was late
/// comes twice, with the same id.
fn consume(servers: &str, topic: &str, records: usize) -> Vec<Received> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers)
        .set("group.id", format!("{topic}.test"));
    let consumer = BaseConsumer::from_config(&config).unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), SOON).unwrap();
    let partitions = metadata.topics()[0].partitions();
    let mut all = TopicPartitionList::new();
    for partition in partitions {
        let added = all.add_partition_offset(topic, partition.id(), Offset::Beginning);
        added.unwrap();
    }
    consumer.assign(&all).unwrap();
    let mut received: Vec<Received> = Vec::new();
    while received.len() < records {
        let record = consumer.poll(SOON).expect("a record").unwrap();
        let header = record.headers().unwrap().get(0);
        assert_eq!(header.key, "content-type");
        assert!(
            header
                .value
                .unwrap()
                .starts_with(b"application/cloudevents+json")
        );
        let event = Received {
            key: String::from_utf8(record.key().unwrap().to_vec()).unwrap(),
            event: serde_json::from_slice(record.payload().unwrap()).unwrap(),
        };
        if received
            .iter()
            .all(|one| one.text("id") != event.text("id"))
        {
            received.push(event);
        }
    }
    received
}
