//! A database, a part of a broker, nodes on both, and what their jobs wrote.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jobwire_core::commit_hook::HookOptions;
use jobwire_core::transport::{Receiver, Subscription, Transport};
use jobwire_core::{
    CommitHook, HandlerOptions, Handlers, JobFilter, Jobs, Lane, NewJob, Node, NodeOptions,
    Outcome, PgStore, Running, Store,
};
use jobwire_kafka::{KafkaOptions, KafkaTransport};
use jobwire_tests::{KafkaAdmin, Program, eventually, shared};
use serde_json::json;
use uuid::Uuid;

pub(super) use crate::transport_conformance::world::{ids, soon, take, tickets};

/// A failing test ends after this; a passing one never gets near it.
pub(super) const HEALED: Duration = Duration::from_secs(30);

/// One database and one prefix of topics.
pub(super) struct World {
    pub(super) database: String,
    /// The broker's, with the prefix.
    pub(super) url: String,
    pub(super) prefix: String,
    pub(super) store: PgStore,
    /// The producer's.
    pub(super) transport: KafkaTransport,
    pub(super) jobs: Jobs<PgStore>,
    created: AtomicI64,
}

impl World {
    /// On the shared broker.
    pub(super) async fn new() -> Self {
        Self::on(shared::kafka().await.url()).await
    }

    pub(super) async fn on(broker: &str) -> Self {
        let database = shared::postgres().await.create_database().await;
        let store = PgStore::connect(&database).await.unwrap();
        store.migrate().await.unwrap();
        let prefix = format!("test-{}", Uuid::new_v4().simple());
        let url = format!("{broker}/{prefix}");
        let transport = connect(&url).await;
        let mut options = HookOptions::default();
        options.max_age = Duration::from_secs(1);
        let hook = CommitHook::start(transport.publisher(), options);
        Self {
            jobs: store.jobs(hook),
            created: AtomicI64::new(0),
            database,
            url,
            prefix,
            store,
            transport,
        }
    }

    pub(super) fn admin(&self) -> KafkaAdmin {
        KafkaAdmin::of(&self.url)
    }

    pub(super) fn topic(&self) -> String {
        format!("{}.lane.default", self.prefix)
    }

    pub(super) fn group(&self) -> String {
        format!("{}.workers.default", self.prefix)
    }

    /// A node with a transport of its own, as in a process of its own.
    pub(super) async fn node(&self) -> Worker {
        self.node_with(8, connect(&self.url).await).await
    }

    pub(super) async fn node_with(&self, concurrency: usize, transport: KafkaTransport) -> Worker {
        let mut options = quick();
        options.concurrency = concurrency;
        let node = Node::builder(self.store.clone(), std::sync::Arc::new(transport.clone()))
            .handlers(handlers())
            .options(options)
            .start();
        Worker {
            node: node.await.unwrap(),
            transport,
        }
    }

    /// A program that runs a node.
    pub(super) fn program(&self) -> Program {
        Program::jobwire()
            .args(["run"])
            .env("JOBWIRE_DATABASE_URL", &self.database)
            .env("JOBWIRE_BROKER_URL", &self.url)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .env("JOBWIRE_LEASE", "3s")
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_HINT_MAX_AGE", "1s")
            .env("JOBWIRE_SUSPECT_AFTER", "2s")
            .env("JOBWIRE_KAFKA_PARTITIONS", "4")
            .env("JOBWIRE_KAFKA_CONFIRM_TIMEOUT", "1s")
            .env("JOBWIRE_KAFKA_SESSION_TIMEOUT", "2s")
    }

    /// So many cases of so many events each, in one transaction. It must commit, whatever the broker does.
    pub(super) async fn create(&self, cases: i64, each: i64) {
        let mut tx = self.jobs.begin().await.unwrap();
        let mut jobs = Vec::new();
        let batch = Uuid::new_v4();
        for position in 1..=each {
            for case in 0..cases {
                jobs.push(
                    NewJob::of("event", &json!({ "position": position }))
                        .instance(format!("{batch}-{case}"))
                        .element("step"),
                );
            }
        }
        tx.create_many(jobs).await.unwrap();
        // Far more than a commit takes, far less than any timeout of a broker that is asked.
        let committed = tokio::time::timeout(Duration::from_secs(15), tx.commit()).await;
        committed.expect("a commit waits for no broker").unwrap();
        self.created.fetch_add(cases * each, Ordering::Relaxed);
    }

    /// Jobs that were created so far.
    pub(super) fn created(&self) -> i64 {
        self.created.load(Ordering::Relaxed)
    }

    /// Every job that was created has run, once, and those of a case in order.
    pub(super) async fn all_have_run(&self) {
        let filter = JobFilter::default();
        eventually("all jobs are done", HEALED, || async {
            (self.store.count(&filter).await.ok()? == 0).then_some(())
        })
        .await;
        let created = self.created.load(Ordering::Relaxed);
        let rows = self.number("SELECT count(*) FROM jobwire.event_log").await;
        let jobs = "SELECT count(DISTINCT job_id) FROM jobwire.event_log";
        assert_eq!((rows, self.number(jobs).await), (created, created));
        let disorder = "SELECT count(*) FROM (
             SELECT position, lag(position) OVER w AS before, started_at, lag(ended_at) OVER w AS ended_before
             FROM jobwire.event_log WINDOW w AS (PARTITION BY process_instance ORDER BY ended_at, position)) e
             WHERE before > position OR ended_before > started_at";
        assert_eq!(self.number(disorder).await, 0, "every case in order");
    }

    /// At least so many jobs have run.
    pub(super) async fn have_run(&self, jobs: i64) {
        eventually(&format!("{jobs} jobs to have run"), HEALED, || async {
            let rows = self.number("SELECT count(*) FROM jobwire.event_log").await;
            (rows >= jobs).then_some(())
        })
        .await;
    }

    /// Hints for jobs that wait, above one each: those of the sweeper.
    pub(super) async fn hinted_again(&self) -> i64 {
        self.number("SELECT coalesce(sum(hints - 1), 0)::bigint FROM jobwire.job WHERE hints > 1")
            .await
    }

    pub(super) async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }

    /// The producer's hints leave again.
    pub(super) async fn until_healthy(&self) {
        eventually("the transport to be healthy", HEALED, || async {
            let health = self.transport.publisher().health();
            (health.publishing && health.receiving).then_some(())
        })
        .await;
    }
}

/// A node in this process.
pub(super) struct Worker {
    node: Node,
    pub(super) transport: KafkaTransport,
}

impl Worker {
    pub(super) async fn stop(self) {
        self.node.stop().await;
        self.transport.close(Duration::from_secs(5)).await;
    }
}

/// Quick to give up, and to come back.
pub(super) fn options() -> KafkaOptions {
    KafkaOptions {
        partitions: 4,
        confirm_timeout: Duration::from_secs(1),
        session_timeout: Duration::from_secs(2),
        commit_interval: Duration::from_millis(200),
        release_after: Duration::from_millis(500),
        statistics_interval: Some(Duration::from_secs(1)),
        ..KafkaOptions::default()
    }
}

pub(super) async fn connect(url: &str) -> KafkaTransport {
    connect_with(url, options()).await
}

pub(super) async fn connect_with(url: &str, options: KafkaOptions) -> KafkaTransport {
    soon("connecting", KafkaTransport::connect(url, options))
        .await
        .unwrap()
}

pub(super) async fn subscribe(transport: &KafkaTransport, prefetch: u16) -> Box<dyn Receiver> {
    let subscription = Subscription {
        lanes: vec![Lane::default()],
        prefetch,
    };
    soon("subscribing", transport.subscribe(subscription))
        .await
        .unwrap()
}

fn quick() -> NodeOptions {
    let mut options = crate::world::quick();
    options.suspect_after = Duration::from_secs(2);
    options
}

/// `event` writes a row in the transaction that completes its job; `nap` holds a slot.
fn handlers() -> Handlers {
    let mut handlers = Handlers::default();
    handlers.add_with(
        "event",
        HandlerOptions::default().in_transaction(),
        |job: Running<serde_json::Value>| async move {
            let mut guard = job.transaction::<PgStore>().await?;
            sqlx::query(
                "INSERT INTO jobwire.event_log \
                 (job_id, process_instance, activity, position, fence, node, started_at, ended_at) \
                 VALUES ($1, $2, 'step', $3, $4, $5, transaction_timestamp(), clock_timestamp())",
            )
            .bind(job.job.id.0)
            .bind(job.job.process_instance.as_deref())
            .bind(job.payload["position"].as_i64())
            .bind(job.fence.0)
            .bind(job.node.0)
            .execute(&mut ***guard.get()?)
            .await?;
            Ok(Outcome::Done)
        },
    );
    handlers.add("nap", |job: Running<u64>| async move {
        tokio::select! {
            () = job.stop.cancelled() => Ok(Outcome::Snooze(Duration::ZERO)),
            () = tokio::time::sleep(Duration::from_millis(job.payload)) => Ok(Outcome::Done),
        }
    });
    handlers
}
