//! A private Kafka broker for tests.

use crate::kafka_security::{KafkaListener, Security};
use crate::kafka_settings::{KafkaSettings, LOG4J};
use crate::{KafkaAdmin, Scratch, Server, Signal, eventually, kafka_jars};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

/// Java takes three seconds on two cores, and much longer on a busy machine.
const START: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(60);

/// One node, broker and controller in one, with its own directories and loopback ports. They stay
/// the same after [`Kafka::stop`], [`Kafka::kill`] and [`Kafka::start_again`].
#[derive(Debug)]
pub struct Kafka {
    // Before the directory: fields drop in this order.
    node: Option<Server>,
    cluster_id: String,
    settings: KafkaSettings,
    scratch: Scratch,
}

impl Kafka {
    /// Starts a broker and returns when it answers.
    ///
    /// # Panics
    /// If Java or Kafka is missing and cannot be installed, or does not start.
    pub async fn start() -> Kafka {
        Kafka::start_with(KafkaSettings::new()).await
    }

    /// Starts a broker with the given settings.
    pub async fn start_with(settings: KafkaSettings) -> Kafka {
        let mut kafka = Kafka::prepare(settings, &new_cluster_id()).await;
        kafka.start_again().await;
        kafka
    }

    /// Prepares a broker without starting it.
    pub(crate) async fn prepare(settings: KafkaSettings, cluster_id: &str) -> Kafka {
        let kafka = Kafka {
            node: None,
            cluster_id: cluster_id.to_owned(),
            settings,
            scratch: Scratch::new(),
        };
        let _ = kafka.scratch.write("log4j2.properties", LOG4J);
        let properties = kafka.settings.properties(&kafka.log_directory());
        let _ = kafka.scratch.write("server.properties", properties);
        kafka.format().await;
        kafka
    }

    /// Formats the log directory as a member of the cluster.
    async fn format(&self) {
        let mut format = kafka_jars::command(self.scratch.path(), "kafka.tools.StorageTool");
        format
            .args(["format", "--cluster-id", &self.cluster_id])
            .args(["--config", "server.properties"])
            .args(
                self.settings
                    .security
                    .iter()
                    .flat_map(Security::format_arguments),
            );
        let mut format = Server::start("Kafka's storage tool", format);
        let status = format.exit(START).await;
        format.output().end(STOP).await;
        let said = format.output().tail();
        assert!(status.success(), "Kafka's storage tool failed:\n{said}");
    }

    fn log_directory(&self) -> PathBuf {
        let own = || self.scratch.join("log");
        self.settings.log_directory.clone().unwrap_or_else(own)
    }

    /// Returns the URL, without a prefix of topics.
    #[must_use]
    pub fn url(&self) -> String {
        format!("kafka://{}", self.address())
    }

    /// Returns the address, as a bootstrap server.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.settings.port)
    }

    /// Returns the address of a secured listener, as a bootstrap server.
    ///
    /// # Panics
    /// If the broker was started without [`KafkaSettings::secured_by`].
    #[must_use]
    pub fn address_of(&self, listener: KafkaListener) -> String {
        let mut listeners = self.security().listeners.iter();
        let found = listeners.find(|(kind, _)| *kind == listener);
        let (_, listener) = found.expect("a secured broker has them all");
        format!("127.0.0.1:{}", listener.port)
    }

    /// Returns the password of the user [`crate::kafka_security::USER`].
    ///
    /// # Panics
    /// If the broker was started without [`KafkaSettings::secured_by`].
    #[must_use]
    pub fn password(&self) -> &str {
        &self.security().password
    }

    fn security(&self) -> &Security {
        let security = self.settings.security.as_ref();
        security.expect("the broker was started with KafkaSettings::secured_by")
    }

    /// Returns an administrator of the broker.
    #[must_use]
    pub fn admin(&self) -> KafkaAdmin {
        KafkaAdmin::of(&self.url())
    }

    /// Returns the node's log (warnings and worse) since its last start.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.node
            .as_ref()
            .map(|node| node.output().all())
            .unwrap_or_default()
    }

    /// Starts it after [`Kafka::stop`], [`Kafka::kill`] or [`Kafka::wipe`], on the same ports, and
    /// returns when it answers.
    pub async fn start_again(&mut self) {
        self.launch();
        self.wait_until_it_serves(1).await;
    }

    /// Starts it without waiting.
    pub(crate) fn launch(&mut self) {
        let mut kafka = kafka_jars::command(self.scratch.path(), "kafka.Kafka");
        kafka.arg("server.properties");
        let name = format!("Kafka (node {})", self.settings.node);
        self.node = Some(Server::start(&name, kafka));
    }

    /// Waits until it lists at least `brokers` brokers, itself among them.
    pub(crate) async fn wait_until_it_serves(&mut self, brokers: usize) {
        let address = self.address();
        let node = i32::from(self.settings.node);
        eventually("Kafka to serve", START, || {
            let process = self.node.as_mut().expect("it was started");
            if process.lost_its_port() {
                self.launch();
            } else {
                process.assert_running();
            }
            let living = living_brokers(address.clone());
            async move {
                let living = living.await;
                (living.len() >= brokers && living.contains(&node)).then_some(())
            }
        })
        .await;
    }

    /// Stops it in an orderly way.
    pub async fn stop(&mut self) {
        if let Some(mut node) = self.node.take() {
            node.signal(Signal::SIGTERM);
            node.exit(STOP).await;
        }
    }

    /// Kills it, as a crash of the process would. Written data stays.
    pub fn kill(&mut self) {
        self.node = None;
    }

    /// Returns whether it ended, by itself or by [`Kafka::stop`] or [`Kafka::kill`].
    pub fn ended(&mut self) -> bool {
        let node = self.node.as_mut();
        node.is_none_or(|node| node.ended().is_some())
    }

    /// Empties the log directory of a stopped broker. It starts again as a member of the same
    /// cluster, without topics, groups and offsets.
    ///
    /// # Panics
    /// If the broker runs.
    pub async fn wipe(&mut self) {
        assert!(self.node.is_none(), "only a stopped broker can be wiped");
        let directory = self.log_directory();
        let entries = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", directory.display()));
        for entry in entries.flatten().map(|entry| entry.path()) {
            let removed = if entry.is_dir() {
                std::fs::remove_dir_all(&entry)
            } else {
                std::fs::remove_file(&entry)
            };
            removed.unwrap_or_else(|error| panic!("cannot remove {}: {error}", entry.display()));
        }
        self.format().await;
    }

    /// Freezes it with all its connections open, as on an overloaded machine.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes it after [`Kafka::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(node) = &self.node {
            node.signal(signal);
        }
    }
}

/// Returns a new cluster id: Kafka expects 16 bytes in 22 characters, without a leading dash.
pub(crate) fn new_cluster_id() -> String {
    let id = Uuid::new_v4().simple().to_string();
    id.chars().take(22).collect()
}

/// Returns the brokers that the broker at `address` considers alive; empty if it does not answer.
/// An open port is not enough: a broker listens before it has joined the cluster.
async fn living_brokers(address: String) -> Vec<i32> {
    let ask = move || {
        let client: Option<BaseConsumer> = ClientConfig::new()
            .set("bootstrap.servers", address)
            .create()
            .ok();
        let metadata = client?.fetch_metadata(None, Duration::from_secs(5)).ok()?;
        Some(
            metadata
                .brokers()
                .iter()
                .map(|broker| broker.id())
                .collect(),
        )
    };
    let living = tokio::task::spawn_blocking(ask).await;
    living.ok().flatten().unwrap_or_default()
}
