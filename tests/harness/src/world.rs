//! A world for tests of nodes: a database of its own, a transport, and a record of the jobs that
//! ran.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::{eventually, shared};
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::{
    Client, CommitHook, InProcessTransport, JobQuery, Node, NodeOptions, PgOptions, PgStore,
    SqliteOptions, SqliteStore, Store, Transport,
};

/// The deadline for what should happen soon. Extended for busy machines, as all deadlines.
pub const SOON: Duration = Duration::from_secs(60);

/// A migrated PostgreSQL database, an in-process transport and a producer's hook.
pub struct World {
    /// The URL of the database.
    pub url: String,
    /// The store on it.
    pub store: PgStore,
    /// The transport of its nodes.
    pub transport: InProcessTransport,
    /// Creates jobs and publishes their hints.
    pub jobs: Client<PgStore>,
}

impl World {
    /// Creates a database.
    pub async fn new() -> Self {
        Self::on(shared::postgres().await.migrated_database().await).await
    }

    /// Migrates a database.
    pub async fn on(url: String) -> Self {
        let store = migrated(&url).await;
        let transport = InProcessTransport::new();
        let jobs = store.client(hook(&transport, HookOptions::default().max_age));
        Self {
            url,
            store,
            transport,
            jobs,
        }
    }

    /// Returns the transport, for a node.
    #[must_use]
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.transport.clone())
    }

    /// Returns the builder of a node with [`quick`] options.
    pub fn node(&self) -> jobwire_core::node::NodeBuilder {
        Node::builder(self.store.clone(), self.transport()).options(quick())
    }

    /// Waits until no job is left in any table.
    pub async fn until_empty(&self) {
        self.until_left(0).await;
    }

    /// Waits until this number of jobs is left.
    pub async fn until_left(&self, left: i64) {
        let filter = JobQuery::default();
        eventually("the expected number of jobs", SOON, || async {
            (self.store.count(&filter).await.ok()? == left).then_some(())
        })
        .await;
    }

    /// Returns the number that a query selects.
    pub async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }
}

/// Creates a database, and returns a migrated store on it.
pub async fn database() -> PgStore {
    patient(&shared::postgres().await.migrated_database().await).await
}

/// Returns a [`patient`] store on a database, and migrates it.
pub async fn migrated(url: &str) -> PgStore {
    let store = patient(url).await;
    store.migrate().await.unwrap();
    store
}

/// Starts the commit hook of a producer that keeps hints for at most `max_age`.
pub fn hook(transport: &dyn Transport, max_age: Duration) -> CommitHook {
    let mut options = HookOptions::default();
    options.max_age = max_age;
    CommitHook::start(transport.publisher(), options)
}

/// Returns a store for a database without faults, with timeouts for a slow machine.
pub async fn patient(url: &str) -> PgStore {
    let long = Duration::from_secs(300);
    let mut options = PgOptions::default();
    options.statement_timeout = long;
    options.acquire_timeout = long;
    options.idle_in_transaction_timeout = long;
    PgStore::connect_with(url, options).await.unwrap()
}

/// Like [`patient`], for a file.
pub async fn patient_file(url: &str) -> SqliteStore {
    let mut options = SqliteOptions::default();
    options.busy_timeout = Duration::from_secs(120);
    options.deadline = Duration::from_secs(300);
    SqliteStore::connect_with(url, options).await.unwrap()
}

/// Waits for this time.
pub async fn pass(time: Duration) {
    let later = Instant::now() + time;
    eventually("time to pass", SOON, async || {
        (Instant::now() >= later).then_some(())
    })
    .await;
}

/// Returns the number of sessions of this database that wait for a lock, or sleep.
pub async fn waiting(store: &PgStore) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')",
    )
    .fetch_one(store.pool())
    .await
    .unwrap()
}

/// Waits until at least `sessions` of them wait.
pub async fn until_waiting(store: &PgStore, sessions: i64) {
    eventually("a session that waits for a lock", SOON, async || {
        (waiting(store).await >= sessions).then_some(())
    })
    .await;
}

/// Returns options for tests: the sweeper finds a lost hint within seconds. The lease is long, so
/// that no job runs twice because the machine stalled; a test of expiry sets its own.
#[must_use]
pub fn quick() -> NodeOptions {
    let mut options = NodeOptions::default();
    options.lease = Duration::from_secs(60);
    options.sweep_interval = Duration::from_secs(1);
    options.suspect_after = Duration::from_secs(1);
    options.hook.max_age = Duration::from_secs(1);
    options.shutdown_timeout = Duration::from_secs(5);
    options
}

/// The notes of handlers, in order.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    /// Adds a note.
    pub fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    /// Returns all notes.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Removes all notes.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// Waits for this number of notes, and returns them.
    pub async fn until(&self, count: usize) -> Vec<String> {
        self.until_within(count, SOON).await
    }

    /// Like [`until`](Self::until), with another deadline.
    pub async fn until_within(&self, count: usize, deadline: Duration) -> Vec<String> {
        eventually(&format!("{count} notes"), deadline, || async {
            let notes = self.all();
            (notes.len() >= count).then_some(notes)
        })
        .await
    }
}
