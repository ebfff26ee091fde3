use jobwire_tests::wait::patience;
use jobwire_tests::{
    Direction, Flow, Kafka, KafkaAdmin, KafkaCluster, KafkaSettings, SmallDisk, eventually, shared,
};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
/// The wait for an answer that is expected not to come.
const A_WHILE: Duration = Duration::from_secs(2);

/// Returns a producer whose messages fail after `patience`.
fn producer(servers: &str, patience: Duration) -> FutureProducer {
    let producer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("message.timeout.ms", patience.as_millis().to_string())
        .create();
    producer.expect("a producer")
}

async fn publish(producer: &FutureProducer, topic: &str, payload: &str) -> Result<(), KafkaError> {
    let record = FutureRecord::<(), _>::to(topic).payload(payload);
    let delivered = producer.send(record, Duration::ZERO).await;
    delivered.map(drop).map_err(|(error, _)| error)
}

/// Waits until a message arrives; the producer may give up early, so it is published repeatedly.
async fn serves(producer: &FutureProducer) {
    eventually("a message to arrive", SOON, || {
        let published = publish(producer, "topic", "message");
        async { published.await.ok() }
    })
    .await;
}

async fn publish_to(kafka: &Kafka, topic: &str, payload: &str) {
    let published = publish(&producer(&kafka.address(), patience(SOON)), topic, payload).await;
    published.expect("Kafka takes a message");
}

#[tokio::test]
async fn each_test_has_topics_of_its_own() {
    let broker = shared::kafka().await;
    let (one, other) = (broker.space(), broker.space());
    assert_ne!(one.prefix, other.prefix);
    let topic = format!("{}mine", one.prefix);
    let admin = broker.admin();
    admin.create_topic(&topic, 2).await;
    assert_eq!(admin.partitions(&topic).await, 2);
    admin.add_partitions(&topic, 3).await;
    assert_eq!(admin.end_offsets(&topic).await, [0, 0, 0]);
    admin.delete_topic(&topic).await;
    assert!(!admin.topics().await.contains(&topic));
}

#[tokio::test]
async fn a_broker_comes_back_with_its_topics_unless_it_was_wiped() {
    let mut kafka = Kafka::start().await;
    let admin = kafka.admin();
    admin.create_topic("kept", 1).await;
    publish_to(&kafka, "kept", "one").await;
    kafka.stop().await;
    kafka.start_again().await;
    assert_eq!(admin.end_offsets("kept").await, [1]);

    publish_to(&kafka, "kept", "two").await;
    kafka.kill();
    std::net::TcpStream::connect(kafka.address()).expect_err("no broker listens");
    kafka.start_again().await;
    assert_eq!(admin.end_offsets("kept").await, [2]);

    kafka.kill();
    kafka.wipe().await;
    kafka.start_again().await;
    assert!(kafka.admin().topics().await.is_empty());
    kafka.admin().create_topic("kept", 1).await;
    assert_eq!(kafka.admin().end_offsets("kept").await, [0]);
}

#[tokio::test]
async fn a_frozen_broker_is_silent_and_goes_on() {
    let kafka = Kafka::start().await;
    kafka.admin().create_topic("topic", 1).await;
    let producer = producer(&kafka.address(), A_WHILE);
    serves(&producer).await;
    kafka.freeze();
    publish(&producer, "topic", "two")
        .await
        .expect_err("no broker answers");
    kafka.thaw();
    serves(&producer).await;
}

#[tokio::test]
async fn a_proxy_stands_between_clients_and_the_broker() {
    let mut settings = KafkaSettings::new();
    let proxy = settings.proxy().await;
    let kafka = Kafka::start_with(settings).await;
    kafka.admin().create_topic("topic", 1).await;
    let through = producer(&proxy.address().to_string(), A_WHILE);
    serves(&through).await;

    proxy.set_both(Flow::Stall);
    publish(&through, "topic", "two")
        .await
        .expect_err("the proxy holds it back, also on the connection that Kafka named");
    publish_to(&kafka, "topic", "past it").await;
    proxy.set(Direction::ToClient, Flow::Pass);
    proxy.set(Direction::ToServer, Flow::Pass);
    serves(&through).await;
}

#[tokio::test]
async fn retention_and_administrators_delete_and_groups_are_remembered() {
    let kafka = Kafka::start().await;
    let admin = kafka.admin();
    admin.create_topic("topic", 1).await;
    for payload in ["one", "two", "three"] {
        publish_to(&kafka, "topic", payload).await;
    }
    assert_eq!(admin.committed("group", "topic").await, [None]);
    commit(&kafka, "group", "topic", 2).await;
    assert_eq!(admin.committed("group", "topic").await, [Some(2)]);
    admin.delete_group("group").await;
    assert_eq!(admin.committed("group", "topic").await, [None]);

    admin.delete_records("topic", 0, 1).await;
    assert_eq!(admin.start_offsets("topic").await, [1]);
    // Retention deletes whole segments; a new segment begins after this time.
    let settings = [("retention.ms", "100"), ("segment.ms", "100")];
    admin.alter_topic("topic", &settings).await;
    eventually("retention to delete everything", SOON, async || {
        let (start, end) = (admin.start_offsets("topic").await, [3]);
        (start == end && admin.end_offsets("topic").await == end).then_some(())
    })
    .await;
}

async fn commit(kafka: &Kafka, group: &str, topic: &str, offset: i64) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka.address())
        .set("group.id", group)
        .create()
        .expect("a consumer");
    let mut offsets = TopicPartitionList::new();
    offsets
        .add_partition_offset(topic, 0, Offset::Offset(offset))
        .expect("an offset");
    eventually("the group to have a coordinator", SOON, async || {
        consumer.commit(&offsets, CommitMode::Sync).ok()
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_ends_the_broker_until_there_is_room() {
    let Some(disk) = SmallDisk::mount(64) else {
        return;
    };
    let settings = KafkaSettings::new().log_directory(disk.path());
    let mut kafka = Kafka::start_with(settings).await;
    let admin = kafka.admin();
    admin.create_topic("topic", 1).await;
    publish_to(&kafka, "topic", "before").await;
    disk.fill();
    let large = "x".repeat(500_000);
    let producer_of_much = producer(&kafka.address(), A_WHILE);
    eventually("the broker to end", SOON, || {
        let ended = kafka.ended();
        let published = publish(&producer_of_much, "topic", &large);
        async move {
            let _ = published.await;
            ended.then_some(())
        }
    })
    .await;
    kafka.kill();
    disk.make_room();
    kafka.start_again().await;
    assert!(admin.end_offsets("topic").await >= vec![1]);
    publish_to(&kafka, "topic", "after").await;
}

#[tokio::test]
async fn a_cluster_survives_any_one_broker() {
    let mut cluster = KafkaCluster::start(3).await;
    let admin = cluster.admin();
    admin.create_topic("topic", 3).await;
    assert_eq!(admin.brokers().await.len(), 3);
    let servers = cluster.url().replace("kafka://", "");
    let producer = producer(&servers, patience(SOON));

    let leader = cluster.leader("topic", 0).await;
    cluster.kill(leader);
    publish_to_partition(&producer, 0).await;
    assert_leads_another(&admin, leader).await;
    cluster.start_again(leader).await;

    // The next broker may be the leader of the controllers.
    let next = (leader + 1) % 3;
    eventually("all replicas to have caught up", SOON, async || {
        let in_sync = admin.in_sync_replicas("topic").await;
        (in_sync == [3, 3, 3]).then_some(())
    })
    .await;
    cluster.stop(next).await;
    publish_to_partition(&producer, 0).await;
    cluster.wipe(next).await;
    cluster.start_again(next).await;
    eventually("the wiped broker to have caught up", SOON, async || {
        let in_sync = admin.in_sync_replicas("topic").await;
        (in_sync == [3, 3, 3]).then_some(())
    })
    .await;
    assert_eq!(admin.end_offsets("topic").await, [2, 0, 0]);
}

async fn publish_to_partition(producer: &FutureProducer, partition: i32) {
    let record = FutureRecord::<(), _>::to("topic")
        .payload("message")
        .partition(partition);
    let delivered = producer.send(record, Duration::ZERO).await;
    delivered.expect("the other brokers take it");
}

async fn assert_leads_another(admin: &KafkaAdmin, dead: usize) {
    // Not every broker learns of the new leader at once.
    eventually("another broker to lead", SOON, async || {
        let leader = admin.leaders("topic").await.first().copied().flatten()?;
        (usize::try_from(leader) != Ok(dead)).then_some(())
    })
    .await;
}
