//! Several private Kafka brokers in one cluster.

use crate::kafka::new_cluster_id;
use std::time::Duration;

use crate::{Kafka, KafkaAdmin, KafkaSettings, eventually, port};
use tokio::task::JoinSet;

/// The longest wait for a partition's leader.
const LEADER: Duration = Duration::from_secs(60);

/// Brokers with the numbers 0, 1, 2 …, each also a controller. Topics have one replica on each
/// broker and accept a message when all brokers but one have it, so any one broker may be missing.
#[derive(Debug)]
pub struct KafkaCluster {
    nodes: Vec<Kafka>,
}

impl KafkaCluster {
    /// Starts `brokers` brokers and returns when all are in the cluster. Of three, one may be
    /// missing.
    ///
    /// # Panics
    /// If Java or Kafka is missing and cannot be installed, or does not start.
    pub async fn start(brokers: u16) -> KafkaCluster {
        let voters: Vec<_> = (0..brokers).map(|node| (node, port::free())).collect();
        let cluster_id = new_cluster_id();
        let mut preparing = JoinSet::new();
        for node in 0..brokers {
            let mut settings = settings(brokers);
            settings.node = node;
            settings.voters.clone_from(&voters);
            let cluster_id = cluster_id.clone();
            preparing.spawn(async move { (node, Kafka::prepare(settings, &cluster_id).await) });
        }
        let mut nodes = preparing.join_all().await;
        nodes.sort_by_key(|(node, _)| *node);
        let mut nodes: Vec<_> = nodes.into_iter().map(|(_, kafka)| kafka).collect();
        for kafka in &mut nodes {
            kafka.launch();
        }
        for kafka in &mut nodes {
            kafka.wait_until_it_serves(usize::from(brokers)).await;
        }
        KafkaCluster { nodes }
    }

    /// Returns the URL with all brokers, without a prefix of topics.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses = self.nodes.iter().map(Kafka::address);
        format!("kafka://{}", addresses.collect::<Vec<_>>().join(","))
    }

    /// Returns the cluster's administrator, which uses any broker that answers.
    #[must_use]
    pub fn admin(&self) -> KafkaAdmin {
        KafkaAdmin::of(&self.url())
    }

    /// Returns one of the brokers, to inspect, freeze and thaw.
    #[must_use]
    pub fn broker(&self, number: usize) -> &Kafka {
        &self.nodes[number]
    }

    /// Returns the broker that leads a partition. A broker may not know the leader of a new
    /// partition at once.
    pub async fn leader(&self, topic: &str, partition: usize) -> usize {
        let admin = self.admin();
        eventually("the partition to have a leader", LEADER, async || {
            let leaders = admin.leaders(topic).await;
            let leader = leaders.get(partition).copied().flatten()?;
            usize::try_from(leader).ok()
        })
        .await
    }

    /// Kills one broker, as a crash would.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].kill();
    }

    /// Stops one broker in an orderly way: it hands its partitions over first.
    pub async fn stop(&mut self, number: usize) {
        self.nodes[number].stop().await;
    }

    /// Empties one broker that was stopped or killed. When it starts again it copies everything
    /// from the others.
    pub async fn wipe(&mut self, number: usize) {
        self.nodes[number].wipe().await;
    }

    /// Starts one broker again, and returns when it is back in the cluster.
    pub async fn start_again(&mut self, number: usize) {
        self.nodes[number].start_again().await;
    }
}

fn settings(brokers: u16) -> KafkaSettings {
    let in_sync = brokers.saturating_sub(1).max(1);
    let mut settings = KafkaSettings::new()
        .set("default.replication.factor", brokers)
        .set("min.insync.replicas", in_sync);
    for internal in [
        "offsets.topic",
        "transaction.state.log",
        "share.coordinator.state.topic",
    ] {
        settings = settings.set(&format!("{internal}.replication.factor"), brokers);
    }
    for internal in ["transaction.state.log", "share.coordinator.state.topic"] {
        settings = settings.set(&format!("{internal}.min.isr"), in_sync);
    }
    settings
}
