//! An administrator's client: changes topics and groups, and queries them.

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::{Metadata, MetadataPartition};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::eventually;

/// The maximum time that Kafka may take to answer, also while it elects a leader.
const ANSWER: Duration = Duration::from_secs(60);
/// The timeout of one request, which is repeated until [`ANSWER`] has passed.
const QUESTION: Duration = Duration::from_secs(5);

/// The administrator of one Kafka. Every method panics if Kafka refuses, or does not answer within
/// a minute.
#[derive(Clone)]
pub struct KafkaAdmin {
    client: Arc<AdminClient<DefaultClientContext>>,
    servers: String,
}

impl KafkaAdmin {
    /// Creates an administrator for the brokers in a URL (`kafka://host:port,…`) without security.
    #[must_use]
    pub fn of(url: &str) -> KafkaAdmin {
        let servers = url.strip_prefix("kafka://").unwrap_or(url);
        let servers = servers.split(['/', '?']).next().unwrap_or_default();
        let client = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .create();
        KafkaAdmin {
            client: Arc::new(client.expect("an administrator")),
            servers: servers.to_owned(),
        }
    }

    /// Creates a topic with the broker's default number of replicas, and returns when each
    /// partition has a leader.
    pub async fn create_topic(&self, topic: &str, partitions: usize) {
        self.create_topic_with(topic, partitions, &[]).await;
    }

    /// Creates a topic with settings, such as `retention.ms`.
    pub async fn create_topic_with(
        &self,
        topic: &str,
        partitions: usize,
        settings: &[(&str, &str)],
    ) {
        let count = i32::try_from(partitions).expect("a number of partitions");
        let mut new = NewTopic::new(topic, count, TopicReplication::Fixed(-1));
        for (name, value) in settings {
            new = new.set(name, value);
        }
        let created = self.client.create_topics([&new], &options()).await;
        succeed("create", topic, created);
        self.wait_for_partitions(topic, partitions).await;
    }

    /// Deletes a topic, and returns when the metadata no longer lists it.
    pub async fn delete_topic(&self, topic: &str) {
        let deleted = self.client.delete_topics(&[topic], &options()).await;
        succeed("delete", topic, deleted);
        eventually("the topic to be gone", ANSWER, async || {
            let topics = self.topics().await;
            (!topics.iter().any(|name| name == topic)).then_some(())
        })
        .await;
    }

    /// Adds partitions to a topic; `partitions` is their number afterwards.
    pub async fn add_partitions(&self, topic: &str, partitions: usize) {
        let new = NewPartitions::new(topic, partitions);
        let added = self.client.create_partitions([&new], &options()).await;
        succeed("add partitions to", topic, added);
        self.wait_for_partitions(topic, partitions).await;
    }

    /// Sets settings of a topic; those not named get their defaults.
    pub async fn alter_topic(&self, topic: &str, settings: &[(&str, &str)]) {
        let mut alter = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for (name, value) in settings {
            alter = alter.set(name, value);
        }
        let altered = self.client.alter_configs([&alter], &options()).await;
        succeed("alter", topic, altered);
    }

    /// Deletes the records before `offset` in a partition, as retention would.
    pub async fn delete_records(&self, topic: &str, partition: i32, offset: i64) {
        let before = list(topic, [(partition, Offset::Offset(offset))]);
        let deleted = self.client.delete_records(&before, &options()).await;
        let deleted = deleted.map(|list| {
            let elements = list.elements_for_topic(topic);
            let errors = elements.iter().map(|element| element.error());
            errors.collect::<KafkaResult<Vec<()>>>()
        });
        match deleted {
            Ok(Ok(_)) => {}
            Ok(Err(error)) | Err(error) => {
                panic!("Kafka cannot delete records of {topic}: {error}")
            }
        }
    }

    /// Deletes a group without members, with its offsets.
    pub async fn delete_group(&self, group: &str) {
        let deleted = self.client.delete_groups(&[group], &options()).await;
        succeed("delete the group", group, deleted);
    }

    /// Returns the names of all topics but Kafka's own, sorted.
    pub async fn topics(&self) -> Vec<String> {
        let metadata = self.metadata().await;
        let names = metadata.topics().iter().map(|topic| topic.name());
        let mut names: Vec<_> = names
            .filter(|name| !name.starts_with("__"))
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    }

    /// Returns the number of partitions of a topic; zero if there is no such topic.
    pub async fn partitions(&self, topic: &str) -> usize {
        self.leaders(topic).await.len()
    }

    /// Returns the broker that leads each partition of a topic, by partition number; `None` where
    /// there is no leader.
    pub async fn leaders(&self, topic: &str) -> Vec<Option<i32>> {
        leaders(&self.metadata().await, topic)
    }

    /// Returns the number of in-sync replicas of each partition of a topic.
    pub async fn in_sync_replicas(&self, topic: &str) -> Vec<usize> {
        let metadata = self.metadata().await;
        let partitions = partitions(&metadata, topic);
        let in_sync = partitions.iter().map(|partition| partition.isr().len());
        in_sync.collect()
    }

    /// Returns the brokers in the cluster.
    pub async fn brokers(&self) -> Vec<i32> {
        let metadata = self.metadata().await;
        metadata
            .brokers()
            .iter()
            .map(|broker| broker.id())
            .collect()
    }

    /// Returns the offset of the oldest message that retention has left in each partition.
    pub async fn start_offsets(&self, topic: &str) -> Vec<i64> {
        let offsets = self.watermarks(topic).await;
        offsets.into_iter().map(|(start, _)| start).collect()
    }

    /// Returns the offset after the newest message of each partition.
    pub async fn end_offsets(&self, topic: &str) -> Vec<i64> {
        let offsets = self.watermarks(topic).await;
        offsets.into_iter().map(|(_, end)| end).collect()
    }

    /// Returns the offset that a group has committed for each partition of a topic, if any.
    pub async fn committed(&self, group: &str, topic: &str) -> Vec<Option<i64>> {
        let count = i32::try_from(self.partitions(topic).await).expect("a number");
        // Repeated: the group's coordinator may have to be elected, or to load.
        eventually("Kafka to return committed offsets", ANSWER, || {
            let asked = list(topic, (0..count).map(|n| (n, Offset::Invalid)));
            let mut config = ClientConfig::new();
            config
                .set("bootstrap.servers", &self.servers)
                .set("group.id", group);
            let answered = blocking(move || {
                let consumer: BaseConsumer = config.create()?;
                consumer.committed_offsets(asked, QUESTION)
            });
            async { answered.await.ok().map(|list| offsets(&list)) }
        })
        .await
    }

    /// Returns whether members of a group wait for the answer to their join.
    pub async fn is_joining(&self, group: &str) -> bool {
        let (client, group) = (Arc::clone(&self.client), group.to_owned());
        let asked = blocking(move || {
            let answer = client.inner().fetch_group_list(Some(&group), QUESTION)?;
            let mut groups = answer.groups().iter();
            Ok(groups.any(|group| group.state() == "PreparingRebalance"))
        });
        asked.await.unwrap_or(false)
    }

    async fn watermarks(&self, topic: &str) -> Vec<(i64, i64)> {
        let count = i32::try_from(self.partitions(topic).await).expect("a number");
        eventually("Kafka to return the offsets of a topic", ANSWER, || {
            let (client, topic) = (Arc::clone(&self.client), topic.to_owned());
            let ask = move |n| client.inner().fetch_watermarks(&topic, n, QUESTION);
            let asked = blocking(move || (0..count).map(ask).collect::<KafkaResult<_>>());
            async { asked.await.ok() }
        })
        .await
    }

    async fn wait_for_partitions(&self, topic: &str, partitions: usize) {
        eventually("the partitions to have leaders", ANSWER, async || {
            let leaders = leaders(&self.metadata().await, topic);
            (leaders.len() == partitions && leaders.iter().all(Option::is_some)).then_some(())
        })
        .await;
    }

    async fn metadata(&self) -> Metadata {
        eventually("Kafka to return its topics", ANSWER, || {
            let client = Arc::clone(&self.client);
            let asked = blocking(move || client.inner().fetch_metadata(None, QUESTION));
            async { asked.await.ok() }
        })
        .await
    }
}

fn leaders(metadata: &Metadata, topic: &str) -> Vec<Option<i32>> {
    let partitions = partitions(metadata, topic);
    let leaders = partitions.iter().map(|partition| partition.leader());
    leaders.map(|id| (id >= 0).then_some(id)).collect()
}

/// Returns the partitions by number; none if there is no such topic.
fn partitions<'a>(metadata: &'a Metadata, topic: &str) -> Vec<&'a MetadataPartition> {
    let topics = metadata.topics().iter();
    let mut partitions: Vec<_> = topics
        .filter(|found| found.name() == topic)
        .flat_map(|found| found.partitions())
        .collect();
    partitions.sort_by_key(|partition| partition.id());
    partitions
}

fn list(topic: &str, offsets: impl IntoIterator<Item = (i32, Offset)>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        list.add_partition_offset(topic, partition, offset)
            .expect("an offset");
    }
    list
}

/// Returns the offsets by partition number.
fn offsets(list: &TopicPartitionList) -> Vec<Option<i64>> {
    let mut elements = list.elements();
    elements.sort_by_key(|element| element.partition());
    let offsets = elements.iter().map(|element| match element.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    });
    offsets.collect()
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(ANSWER))
        .operation_timeout(Some(ANSWER))
}

/// Panics if the request or any element of its answer failed.
fn succeed<T: Debug, E: Debug>(what: &str, name: &str, answer: KafkaResult<Vec<Result<T, E>>>) {
    let answer = answer.unwrap_or_else(|error| panic!("Kafka cannot {what} {name}: {error}"));
    for result in answer {
        if let Err(refusal) = result {
            panic!("Kafka refused to {what} {name}: {refusal:?}");
        }
    }
}

/// Runs a request on a blocking thread, since the client library blocks.
async fn blocking<T: Send + 'static>(
    ask: impl FnOnce() -> KafkaResult<T> + Send + 'static,
) -> KafkaResult<T> {
    let asked = tokio::task::spawn_blocking(ask).await;
    asked.unwrap_or(Err(KafkaError::Canceled))
}
