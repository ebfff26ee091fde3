//! A world for tests of nodes: a database of its own, a transport, and a record of the jobs that
//! ran.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::{
    Client, CommitHook, InProcessTransport, JobFilter, Node, NodeOptions, PgOptions, PgStore,
    SqliteOptions, SqliteStore, Store, Transport,
};
use jobwire_kafka::{KafkaOptions, KafkaTransport};
use jobwire_tests::shared::Space;
use jobwire_tests::{Proxy, eventually, shared};

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A migrated PostgreSQL database, an in-process transport and a producer's hook.
pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) store: PgStore,
    pub(crate) transport: InProcessTransport,
    pub(crate) jobs: Client<PgStore>,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::on(shared::postgres().await.create_database().await).await
    }

    pub(crate) async fn on(url: String) -> Self {
        let store = patient(&url).await;
        store.migrate().await.unwrap();
        let transport = InProcessTransport::new();
        let hook = CommitHook::start(transport.publisher(), HookOptions::default());
        let jobs = store.client(hook);
        Self {
            url,
            store,
            transport,
            jobs,
        }
    }

    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.transport.clone())
    }

    pub(crate) fn node(&self) -> jobwire_core::node::NodeBuilder {
        Node::builder(self.store.clone(), self.transport()).options(quick())
    }

    /// Waits until no job is left in any table.
    pub(crate) async fn until_empty(&self) {
        self.until_left(0).await;
    }

    pub(crate) async fn until_left(&self, left: i64) {
        let filter = JobFilter::default();
        eventually("the expected number of jobs", SOON, || async {
            (self.store.count(&filter).await.ok()? == left).then_some(())
        })
        .await;
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }
}

/// Returns a store for a database without faults, with timeouts for a slow machine.
pub(crate) async fn patient(url: &str) -> PgStore {
    let long = Duration::from_secs(300);
    let mut options = PgOptions::default();
    options.statement_timeout = long;
    options.acquire_timeout = long;
    options.idle_in_transaction_timeout = long;
    PgStore::connect_with(url, options).await.unwrap()
}

/// Starts a proxy in front of the server of this database.
pub(crate) async fn proxy_before(url: &str) -> Proxy {
    let server = url::Url::parse(url).unwrap();
    let (host, port) = (server.host_str().unwrap(), server.port().unwrap());
    Proxy::start(&format!("{host}:{port}")).await
}

/// Like `patient`, for a file.
pub(crate) async fn patient_file(url: &str) -> SqliteStore {
    let mut options = SqliteOptions::default();
    options.busy_timeout = Duration::from_secs(120);
    options.deadline = Duration::from_secs(300);
    SqliteStore::connect_with(url, options).await.unwrap()
}

/// Returns a transport to a space on RabbitMQ or Kafka; on Kafka a topic has this number of
/// partitions.
pub(crate) async fn connect(space: &Space, partitions: i32) -> Arc<dyn Transport> {
    if space.url.starts_with("kafka://") {
        let url = format!("{}/{}", space.url, space.prefix);
        let options = KafkaOptions::default().partitions(partitions);
        return Arc::new(KafkaTransport::connect(&url, options).await.unwrap());
    }
    let mut options = AmqpOptions::default();
    options.prefix.clone_from(&space.prefix);
    Arc::new(AmqpTransport::connect(&space.url, options).await.unwrap())
}

/// Waits for this time.
pub(crate) async fn pass(time: Duration) {
    let later = Instant::now() + time;
    eventually("time to pass", SOON, async || {
        (Instant::now() >= later).then_some(())
    })
    .await;
}

/// Returns the number of sessions of this database that wait for a lock, or sleep.
pub(crate) async fn waiting(store: &PgStore) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')",
    )
    .fetch_one(store.pool())
    .await
    .unwrap()
}

/// Waits until at least `sessions` of them wait.
pub(crate) async fn until_waiting(store: &PgStore, sessions: i64) {
    eventually("a session that waits for a lock", SOON, async || {
        (waiting(store).await >= sessions).then_some(())
    })
    .await;
}

/// Returns options for tests: the sweeper finds a lost hint within seconds. The lease is long, so
/// that no job runs twice because the machine stalled; a test of expiry sets its own.
pub(crate) fn quick() -> NodeOptions {
    let mut options = NodeOptions::default();
    options.lease = Duration::from_secs(60);
    options.sweep_interval = Duration::from_secs(1);
    options.suspect_after = Duration::from_secs(1);
    options.hook.max_age = Duration::from_secs(1);
    options.shutdown_timeout = Duration::from_secs(5);
    options
}

/// The notes of handlers, in order.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    pub(crate) async fn until(&self, count: usize) -> Vec<String> {
        self.until_within(count, SOON).await
    }

    pub(crate) async fn until_within(&self, count: usize, deadline: Duration) -> Vec<String> {
        eventually(&format!("{count} notes"), deadline, || async {
            let notes = self.all();
            (notes.len() >= count).then_some(notes)
        })
        .await
    }
}
