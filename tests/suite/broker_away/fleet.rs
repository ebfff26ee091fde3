//! A database, a producer, and programs that run nodes; each test brings its broker.

use std::sync::Arc;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::{Client, CommitHook, PgStore, Transport};
use jobwire_kafka::{KafkaOptions, KafkaTransport};
use jobwire_tests::{Cases, Program, Running, eventually, http, shared};
use serde_json::json;
use uuid::Uuid;

use crate::world::hook;

/// A failing test ends after this time; a passing one takes far less.
pub(super) const SOON: Duration = Duration::from_secs(60);

pub(super) struct Fleet {
    database: String,
    /// The URL of the broker for the nodes.
    broker: String,
    prefix: String,
    pub(super) store: PgStore,
    pub(super) jobs: Client<PgStore>,
    cases: Cases,
}

impl Fleet {
    /// The producer and the nodes may have different URLs for the broker.
    pub(super) async fn new(producers: &str, nodes: &str) -> Self {
        let database = shared::postgres().await.migrated_database().await;
        let store = PgStore::connect(&database).await.unwrap();
        store.migrate().await.unwrap();
        let prefix = format!("test-{}", Uuid::new_v4().simple());
        let transport: Arc<dyn Transport> = if producers.starts_with("kafka") {
            let url = format!("{producers}/{prefix}");
            let options = KafkaOptions::default().partitions(4);
            Arc::new(KafkaTransport::connect(&url, options).await.unwrap())
        } else {
            let mut options = AmqpOptions::default();
            options.prefix.clone_from(&prefix);
            Arc::new(AmqpTransport::connect(producers, options).await.unwrap())
        };
        let hook = hook(&*transport, Duration::from_secs(1));
        // The transport lives as long as the producer, as in a separate program.
        let _: &'static Arc<dyn Transport> = Box::leak(Box::new(transport));
        Self {
            jobs: store.client(hook),
            broker: nodes.to_owned(),
            cases: Cases::of(&store),
            database,
            prefix,
            store,
        }
    }

    /// Returns the name of this test's queue for a lane.
    pub(super) fn queue(&self, lane: &str) -> String {
        format!("{}.lane.{lane}", self.prefix)
    }

    /// Starts a program that runs a node; returns when it is ready.
    pub(super) async fn node(&self, settings: &[(&str, &str)]) -> Node {
        let broker = if self.broker.starts_with("kafka") {
            format!("{}/{}", self.broker, self.prefix)
        } else {
            self.broker.clone()
        };
        let mut program = Program::jobwire()
            .args(["run"])
            .env("JOBWIRE_DATABASE_URL", &self.database)
            .env("JOBWIRE_BROKER_URL", broker)
            .env("JOBWIRE_AMQP_PREFIX", &self.prefix)
            .env("JOBWIRE_KAFKA_PARTITIONS", "4")
            .env("JOBWIRE_KAFKA_SESSION_TIMEOUT", "6s")
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .env("JOBWIRE_LEASE", "5s")
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_HINT_MAX_AGE", "1s")
            .env("JOBWIRE_SUSPECT_AFTER", "6s")
            .env("JOBWIRE_CLAIM_AFTER", "2s")
            // Short leases expire on a busy machine even if their nodes live.
            .env("JOBWIRE_QUARANTINE_AFTER", "1000");
        for (name, value) in settings {
            program = program.env(name, value);
        }
        let running = program.start();
        let line = running.wait_for_line("is ready", SOON).await;
        let address = http::address_in(&line);
        Node { running, address }
    }

    /// Creates `cases` exclusive cases of `each` ordered events, in one transaction.
    pub(super) async fn create(&self, cases: i64, each: i64) {
        self.create_in("default", cases, each).await;
    }

    /// Creates events without hints: the leader finds them.
    pub(super) async fn create_unhinted(&self, cases: i64, each: i64) {
        let silent = self.store.client(CommitHook::disconnected());
        self.cases.create(&silent, "default", cases, each).await;
    }

    pub(super) async fn create_in(&self, lane: &str, cases: i64, each: i64) {
        self.cases.create(&self.jobs, lane, cases, each).await;
    }

    /// Waits until all created events have run, and asserts: each once, one at a time in each case,
    /// and in order.
    pub(super) async fn all_have_run(&self) {
        self.cases.all_have_run(SOON).await;
    }

    /// Waits until jobs start by hints on these nodes.
    pub(super) async fn hints_work(&self, nodes: &[&Node]) {
        let before = total(nodes, HINTED).await;
        eventually("a job to come by its hint", SOON, || async {
            self.create(4, 1).await;
            self.all_have_run().await;
            (total(nodes, HINTED).await > before).then_some(())
        })
        .await;
    }
}

pub(super) const HINTED: &str = r#"jobwire_jobs_locked_total{source="hint"}"#;
pub(super) const CLAIMED: &str = r#"jobwire_jobs_locked_total{source="claim"}"#;

pub(super) struct Node {
    pub(super) running: Running,
    address: String,
}

impl Node {
    /// Returns a sample by its name and labels; zero if there is none.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics").await;
        let sample = metrics.lines().find_map(|line| line.strip_prefix(name));
        sample.map_or(0.0, |value| value.trim().parse().unwrap())
    }

    pub(super) async fn health(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("/readyz").await).unwrap()
    }

    async fn get(&self, path: &str) -> String {
        eventually("the node's endpoint to answer", SOON, || async {
            let answer = http::get(&self.address, path).await.ok()?;
            Some(answer.body)
        })
        .await
    }

    /// Waits until the health reports that the node claims.
    pub(super) async fn claims(&self) {
        self.claims_of(&["default"]).await;
    }

    pub(super) async fn claims_of(&self, lanes: &[&str]) {
        eventually("the node to claim", SOON, || async {
            (self.health().await["claiming"] == json!(lanes)).then_some(())
        })
        .await;
    }

    /// Waits until the health, a metric and the log report that jobs come by hints again.
    pub(super) async fn is_back(&self) {
        self.claims_of(&[]).await;
        self.shows(r#"jobwire_claiming{lane="default"}"#, 0.0).await;
        self.running
            .wait_for_line("come by hints again", SOON)
            .await;
    }

    /// Waits until a gauge has this value.
    pub(super) async fn shows(&self, gauge: &str, value: f64) {
        eventually(&format!("{gauge} {value}"), SOON, || async {
            (self.metric(gauge).await == value).then_some(())
        })
        .await;
    }

    /// Waits until the node is ready.
    pub(super) async fn is_ready(&self) {
        eventually("the node to be ready", SOON, || async {
            (self.health().await["ready"] == true).then_some(())
        })
        .await;
    }
}

/// Returns the sum of a metric over nodes.
pub(super) async fn total(nodes: &[&Node], name: &str) -> f64 {
    let mut sum = 0.0;
    for node in nodes {
        sum += node.metric(name).await;
    }
    sum
}

/// Returns the number of orphans that the nodes' sweepers have hinted.
pub(super) async fn swept(nodes: &[&Node]) -> f64 {
    total(nodes, r#"jobwire_swept_total{class="orphan"}"#).await
}
