//! A database, a topic prefix on a broker, nodes on both, and the rows that their jobs wrote.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::Marker;
use jobwire_core::transport::{Receiver, Subscription, Transport, TransportError};
use jobwire_core::{
    Client, HandlerError, HandlerOptions, Handlers, Hint, Lane, Node, NodeOptions, Outcome,
    PgStore, Running,
};
use jobwire_kafka::{KafkaOptions, KafkaTransport};
use jobwire_tests::{Cases, KafkaAdmin, Program, eventually, shared};
use tokio::sync::Semaphore;
use tracing_subscriber::util::SubscriberInitExt;
use uuid::Uuid;

pub(super) use crate::transport_conformance::subject::{ids, soon, take, tickets};
use crate::world::{hook, migrated};

/// The deadline of a failing test. A passing test is much faster.
pub(super) const HEALED: Duration = Duration::from_secs(30);

/// Prints what is logged on this thread, if the test fails, until the returned value is dropped.
pub(super) fn logged() -> impl Sized {
    let logs = tracing_subscriber::fmt().with_test_writer();
    logs.with_env_filter("info,jobwire_kafka=debug")
        .set_default()
}

/// One database and one prefix of topics.
pub(super) struct Fleet {
    pub(super) database: String,
    /// The broker's URL, with the prefix.
    pub(super) url: String,
    pub(super) prefix: String,
    pub(super) store: PgStore,
    /// The transport of the producer.
    pub(super) transport: KafkaTransport,
    pub(super) jobs: Client<PgStore>,
    /// Each permit lets a job of the type `hold` end, in this process.
    pub(super) gate: Arc<Semaphore>,
    cases: Cases,
}

impl Fleet {
    /// Uses the shared broker, which stays up: the producer waits when it is slow.
    pub(super) async fn new() -> Self {
        let url = shared::kafka().await.url();
        Self::with(url, patient(), Duration::from_secs(30)).await
    }

    /// Uses a broker of the test, which may disturb it.
    pub(super) async fn on(broker: &str) -> Self {
        Self::with(broker, options(), Duration::from_secs(1)).await
    }

    async fn with(broker: &str, options: KafkaOptions, max_age: Duration) -> Self {
        let database = shared::postgres().await.create_database().await;
        let store = migrated(&database).await;
        let prefix = format!("test-{}", Uuid::new_v4().simple());
        let url = format!("{broker}/{prefix}");
        let transport = connect_with(&url, options).await;
        Self {
            jobs: store.client(hook(&transport, max_age)),
            cases: Cases::of(&store),
            gate: Arc::new(Semaphore::new(0)),
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

    /// Starts a node with its own transport, as in a process of its own.
    pub(super) async fn node(&self) -> Worker {
        self.node_with(8, connect(&self.url).await).await
    }

    pub(super) async fn node_with(&self, concurrency: usize, transport: KafkaTransport) -> Worker {
        let mut options = quick();
        options.concurrency = concurrency;
        self.node_of(options, transport).await
    }

    pub(super) async fn node_of(&self, options: NodeOptions, transport: KafkaTransport) -> Worker {
        let node = Node::builder(self.store.clone(), Arc::new(transport.clone()))
            .handlers(handlers(&self.gate))
            .options(options)
            .start();
        Worker {
            node: node.await.unwrap(),
            transport,
        }
    }

    /// Returns a program that runs a node.
    pub(super) fn program(&self) -> Program {
        Program::jobwire()
            .args(["run"])
            .env("JOBWIRE_DATABASE_URL", &self.database)
            .env("JOBWIRE_BROKER_URL", &self.url)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .env("JOBWIRE_LEASE", "3s")
            // A failed attempt would let the rest of its case pass.
            .env("JOBWIRE_STATEMENT_TIMEOUT", "5m")
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_HINT_MAX_AGE", "1s")
            .env("JOBWIRE_SUSPECT_AFTER", "2s")
            .env("JOBWIRE_AMQP_CONFIRM_TIMEOUT", "1s")
            .env("JOBWIRE_KAFKA_CONFIRM_TIMEOUT", "1s")
            .env("JOBWIRE_KAFKA_PARTITIONS", "4")
            .env("JOBWIRE_KAFKA_CONFIRM_TIMEOUT", "1s")
            .env("JOBWIRE_KAFKA_SESSION_TIMEOUT", "2s")
    }

    /// Creates `cases` cases of `each` events, in one transaction.
    pub(super) async fn create(&self, cases: i64, each: i64) {
        self.cases.create(&self.jobs, "default", cases, each).await;
    }

    /// Returns how many jobs were created so far.
    pub(super) fn created(&self) -> i64 {
        self.cases.created()
    }

    /// Asserts that every created job runs once, and those of a case in order.
    pub(super) async fn all_have_run(&self) {
        self.cases.all_have_run(HEALED).await;
    }

    /// Waits until at least this many jobs have run.
    pub(super) async fn have_run(&self, jobs: i64) {
        self.cases.have_run(jobs, HEALED).await;
    }

    /// Returns the number of hints beyond the first of each waiting job: those of the sweeper.
    pub(super) async fn hinted_again(&self) -> i64 {
        self.number("SELECT coalesce(sum(hints - 1), 0)::bigint FROM jobwire.job WHERE hints > 1")
            .await
    }

    pub(super) async fn number(&self, sql: &'static str) -> i64 {
        self.cases.number(sql).await
    }

    /// Waits until the producer publishes hints again.
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

/// Returns options with which a transport gives up and reconnects quickly.
pub(super) fn options() -> KafkaOptions {
    KafkaOptions::default()
        .partitions(4)
        .confirm_timeout(Duration::from_secs(1))
        .session_timeout(Duration::from_secs(2))
        .commit_interval(Duration::from_millis(200))
        .release_after(Duration::from_millis(500))
        .statistics_interval(Some(Duration::from_secs(1)))
}

/// Returns options for a broker that is up but may be slow.
pub(super) fn patient() -> KafkaOptions {
    options()
        .confirm_timeout(Duration::from_secs(15))
        .session_timeout(Duration::from_secs(10))
}

/// Publishes to a broker that is up. A broker that does not answer for seconds counts as away, and
/// the publish is repeated.
pub(super) async fn publish(transport: &KafkaTransport, lane: &Lane, hints: Vec<Hint>) {
    eventually("the hints to be taken", HEALED, || async {
        taken(transport.publisher().publish(lane, hints.clone()).await)
    })
    .await;
}

/// Publishes a marker in the same way.
pub(super) async fn publish_marker(transport: &KafkaTransport, lane: &Lane, marker: Marker) {
    eventually("the marker to be taken", HEALED, || async {
        taken(transport.publisher().publish_marker(lane, marker).await)
    })
    .await;
}

fn taken(answer: Result<(), TransportError>) -> Option<()> {
    match answer {
        Ok(()) => Some(()),
        Err(problem) if problem.is_transient() => None,
        Err(problem) => panic!("{problem}"),
    }
}

/// Returns the brokers' refusal. Transient errors are tried again.
pub(super) async fn refusal<T>(
    what: &str,
    ask: impl AsyncFn() -> Result<T, TransportError>,
) -> TransportError {
    eventually(what, HEALED, || async {
        ask().await.err().filter(|problem| !problem.is_transient())
    })
    .await
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

pub(super) fn quick() -> NodeOptions {
    let mut options = crate::world::quick();
    options.suspect_after = Duration::from_secs(2);
    options
}

/// Returns two handlers: `event` writes a row in the transaction that completes its job; `hold`
/// holds a slot until the gate opens.
fn handlers(gate: &Arc<Semaphore>) -> Handlers {
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
            .bind(job.job.id.uuid())
            .bind(job.job.process_instance.as_deref())
            .bind(job.payload["position"].as_i64())
            .bind(job.fence.number())
            .bind(job.node.uuid())
            .execute(&mut *guard)
            .await?;
            Ok(Outcome::Done)
        },
    );
    let gate = gate.clone();
    handlers.add("hold", move |job: Running<()>| {
        let gate = gate.clone();
        async move {
            tokio::select! {
                () = job.stop.cancelled() => Ok(Outcome::Snooze(Duration::ZERO)),
                permit = gate.acquire() => {
                    permit.map_err(HandlerError::from)?.forget();
                    Ok(Outcome::Done)
                }
            }
        }
    });
    handlers
}
