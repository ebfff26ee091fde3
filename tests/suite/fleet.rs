//! A fleet for tests: `jobwire run` processes with a database and a broker, and a producer.

use std::sync::Arc;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::{Client, CommitHook, JobQuery, PgStore, Store, Transport};
use jobwire_tests::{Cases, Program, Running, eventually, shared::Space};

pub(crate) struct Fleet {
    pub(crate) database: String,
    pub(crate) space: Space,
    pub(crate) store: PgStore,
    pub(crate) jobs: Client<PgStore>,
}

impl Fleet {
    /// Returns a fleet with a migrated database and a producer that publishes to the broker.
    pub(crate) async fn new(database: String, space: Space) -> Self {
        let store = PgStore::connect(&database).await.unwrap();
        store.migrate().await.unwrap();
        let mut options = AmqpOptions::default();
        options.prefix.clone_from(&space.prefix);
        let transport = AmqpTransport::connect(&space.url, options).await.unwrap();
        let hook = CommitHook::start(transport.publisher(), HookOptions::default());
        // The transport lives as long as the producer, as in a separate program.
        let _: &'static Arc<AmqpTransport> = Box::leak(Box::new(Arc::new(transport)));
        let jobs = store.client(hook);
        Self {
            database,
            space,
            store,
            jobs,
        }
    }

    /// Starts a node with a short lease; returns when it is ready.
    pub(crate) async fn node(&self, settings: &[(&str, &str)]) -> Running {
        self.node_on(&self.database, &self.space.url, settings)
            .await
    }

    /// Starts a node that uses other addresses, for example those of a proxy.
    pub(crate) async fn node_on(
        &self,
        database: &str,
        broker: &str,
        settings: &[(&str, &str)],
    ) -> Running {
        let node = self.start_on(database, broker, settings);
        node.wait_for_line("is ready", Duration::from_secs(60))
            .await;
        node
    }

    /// Starts a node without waiting until it is ready: it may die before.
    pub(crate) fn start_on(
        &self,
        database: &str,
        broker: &str,
        settings: &[(&str, &str)],
    ) -> Running {
        let mut program = Program::jobwire()
            .args(["run"])
            .env("JOBWIRE_DATABASE_URL", database)
            .env("JOBWIRE_BROKER_URL", broker)
            .env("JOBWIRE_AMQP_PREFIX", &self.space.prefix)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .env("JOBWIRE_LEASE", "3s")
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_HINT_MAX_AGE", "1s")
            .env("JOBWIRE_SUSPECT_AFTER", "2s")
            .env("JOBWIRE_AMQP_CONFIRM_TIMEOUT", "1s")
            .env("JOBWIRE_KAFKA_CONFIRM_TIMEOUT", "1s")
            // Short leases expire on a busy machine even if their nodes live.
            .env("JOBWIRE_QUARANTINE_AFTER", "1000");
        for (name, value) in settings {
            program = program.env(name, value);
        }
        program.start()
    }

    /// Waits until no job is left in any table.
    pub(crate) async fn until_empty(&self, deadline: Duration) {
        let filter = JobQuery::default();
        eventually("all jobs to be done", deadline, || async {
            (self.store.count(&filter).await.ok()? == 0).then_some(())
        })
        .await;
    }

    pub(crate) async fn leased(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL AND expires_at > clock_timestamp()")
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }

    /// Returns the number of statements of nodes that wait for another transaction.
    pub(crate) async fn waiting_for_a_lock(&self) -> i64 {
        sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'jobwire' AND wait_event_type = 'Lock'",
        )
        .fetch_one(self.store.pool())
        .await
        .unwrap()
    }

    /// Returns what the events have written.
    pub(crate) fn cases(&self) -> Cases {
        Cases::of(&self.store)
    }
}
