//! The servers, proxies and nodes of a chaos run.

use super::deploys;
use super::options::{Broker, Options};
use super::producer::HINT_MAX_AGE;
use super::workload::Kind;
use crate::history::{Calendar, total};
use crate::lines::Lines;
use crate::wait::within;
use crate::{
    Flow, HintAccount, Kafka, KafkaSettings, Postgres, Program, Proxy, RabbitMq, Running,
    ServerClock, Signal, cargo, eventually, http,
};
use chrono::{DateTime, Utc};
use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::telemetry::metrics::JOBS_IN_FLIGHT;
use jobwire_core::{PgStore, Transport};
use jobwire_kafka::{KafkaOptions, KafkaTransport};
use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// The prefix of the names of queues and topics.
pub const PREFIX: &str = "chaos";
/// The schema of the history.
const SCHEMA: &str = include_str!("schema.sql");
/// The time within which clients reconnect after an outage. They try again at growing intervals.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// The pause of the thread that watches the machine, and how much longer it takes where the machine
/// has stood still: a virtual machine that was paused, or that got no processor.
const TICK: Duration = Duration::from_millis(200);
const STALL: Duration = Duration::from_secs(2);
/// The time within which a started program is ready or has ended.
const READY: Duration = Duration::from_secs(120);

/// A broker of either kind.
#[derive(Debug)]
pub enum AnyBroker {
    /// RabbitMQ, behind a proxy for each node.
    RabbitMq(RabbitMq),
    /// Kafka, behind one proxy, since it tells its clients where to connect.
    Kafka(Kafka),
}

/// One node and the network in front of it.
#[derive(Debug)]
pub struct Node {
    number: usize,
    running: Option<Running>,
    /// The network between it and the database.
    pub database: Proxy,
    /// The network between it and the broker.
    pub broker: Arc<Proxy>,
    /// Whether it was stopped with SIGSTOP.
    frozen: bool,
    /// The number of processes that were started for it.
    starts: u64,
}

/// Everything that a chaos run breaks.
#[derive(Debug)]
pub struct World {
    /// The database server.
    pub postgres: Mutex<Postgres>,
    /// The broker.
    pub broker: Mutex<AnyBroker>,
    /// The nodes.
    pub nodes: Vec<Arc<Mutex<Node>>>,
    /// The network between producers and the database.
    pub producers: Proxy,
    /// The URL of the database, past all proxies.
    pub url: String,
    /// The URL of the broker, past all proxies.
    pub broker_url: String,
    /// The database's clock.
    pub clock: ServerClock,
    calendar: StdMutex<Calendar>,
    /// Events that no fault explains.
    surprises: StdMutex<Vec<String>>,
    /// The number of starts of nodes.
    pub starts: AtomicU64,
    /// The longest time for which the machine stood still, in milliseconds.
    pub longest_stall: AtomicU64,
    /// The output of each process of a node, with the number of the node.
    outputs: StdMutex<Vec<(usize, Lines)>>,
    program: PathBuf,
    options: Options,
    /// Shifts the clock of a process, where that is possible.
    pub clock_library: Option<&'static PathBuf>,
}

impl World {
    /// Starts everything but the nodes.
    pub async fn start(options: &Options) -> World {
        let (postgres, (broker, kafka_proxy)) =
            tokio::join!(Postgres::start_with_clock(), start_broker(options.broker));
        let url = postgres.create_database().await;
        prepare(&url).await;
        let broker_url = match &broker {
            AnyBroker::RabbitMq(rabbitmq) => rabbitmq.url(),
            AnyBroker::Kafka(kafka) => format!("{}/{PREFIX}", kafka.url()),
        };
        let mut nodes = Vec::new();
        for number in 1..=options.nodes {
            let broker = match (&broker, &kafka_proxy) {
                (AnyBroker::RabbitMq(rabbitmq), _) => {
                    Arc::new(Proxy::start(&rabbitmq.address()).await)
                }
                (_, Some(proxy)) => proxy.clone(),
                (AnyBroker::Kafka(kafka), None) => Arc::new(Proxy::start(&kafka.address()).await),
            };
            nodes.push(Arc::new(Mutex::new(Node {
                number,
                running: None,
                database: Proxy::start(&postgres.address()).await,
                broker,
                frozen: false,
                starts: 0,
            })));
        }
        World {
            producers: Proxy::start(&postgres.address()).await,
            clock: postgres.clock().clone(),
            calendar: StdMutex::default(),
            postgres: Mutex::new(postgres),
            broker: Mutex::new(broker),
            nodes,
            url,
            broker_url,
            surprises: StdMutex::default(),
            starts: AtomicU64::new(0),
            longest_stall: AtomicU64::new(0),
            outputs: StdMutex::default(),
            program: options.node.clone().unwrap_or_else(|| chaos_node().clone()),
            options: options.clone(),
            clock_library: clock_library(options.broker),
        }
    }

    /// Returns the lease of the nodes.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.options.lease
    }

    /// Returns the number of jobs that all nodes together run at once.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.options.nodes * self.options.concurrency
    }

    /// Returns the disturbances so far: outages, jumps of the clock, faults of nodes.
    #[must_use]
    pub fn calendar(&self) -> Calendar {
        self.with_calendar(|calendar| calendar.clone())
    }

    fn with_calendar<T>(&self, work: impl FnOnce(&mut Calendar) -> T) -> T {
        let calendar = self.calendar.lock();
        work(&mut calendar.unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the last disturbance in the calendar has ended, and records the beginning of the
    /// calm.
    pub async fn quiet(&self) {
        let end = self.with_calendar(|calendar| calendar.end());
        let left = end.unwrap_or(0) - self.clock.now().timestamp_micros();
        tokio::time::sleep(Duration::from_micros(u64::try_from(left).unwrap_or(0))).await;
        let now = self.clock.now().timestamp_micros();
        self.with_calendar(|calendar| calendar.calm(now));
    }

    /// Records that a server was away from `from` until now. The outage counts until its clients
    /// are back.
    pub fn outage_since(&self, from: DateTime<Utc>) {
        let until = self.clock.now() + self.options.lease + BACK_WITHIN;
        self.with_calendar(|calendar| {
            calendar.outage(from.timestamp_micros(), until.timestamp_micros());
        });
    }

    /// Records that a node was broken from `from` until now.
    pub fn hurt_since(&self, node: usize, from: DateTime<Utc>) {
        let until = self.clock.now() + BACK_WITHIN;
        self.with_calendar(|calendar| {
            calendar.hurt(node, from.timestamp_micros(), until.timestamp_micros());
        });
    }

    /// Sets the clock of the database ahead.
    pub fn jump(&self, by: Duration) {
        let before = self.clock.now();
        self.clock.jump(by);
        let to = (before + by).timestamp_micros();
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        // No leader ends a lease for the length of one lease.
        let doubted = i64::try_from((2 * self.options.lease).as_micros()).unwrap_or(i64::MAX);
        self.with_calendar(|calendar| calendar.jump(to, by, doubted));
    }

    /// Records an event that no fault explains.
    pub fn surprise(&self, what: String) {
        self.say(&what);
        let surprises = self.surprises.lock();
        surprises.unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Returns the events that no fault explains.
    #[must_use]
    pub fn surprises(&self) -> Vec<String> {
        let surprises = self.surprises.lock();
        surprises.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records when the whole machine stands still, until the world is dropped.
    #[allow(clippy::disallowed_methods, reason = "a thread of its own")]
    pub fn watch_the_machine(self: &Arc<Self>) {
        let world = Arc::downgrade(self);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            loop {
                std::thread::sleep(TICK);
                let passed = last.elapsed();
                last = Instant::now();
                let Some(world) = world.upgrade() else { return };
                if passed > TICK + STALL {
                    world.stalled_for(passed);
                }
            }
        });
    }

    fn stalled_for(&self, time: Duration) {
        self.say(&format!("the machine stood still for {time:?}"));
        let until = self.clock.now() + self.options.lease + BACK_WITHIN;
        let from = self.clock.now() - time;
        self.with_calendar(|calendar| {
            calendar.stall(from.timestamp_micros(), until.timestamp_micros());
        });
        let longest = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.longest_stall.fetch_max(longest, Ordering::Relaxed);
    }

    fn keep_output(&self, node: usize, lines: Lines) {
        let outputs = self.outputs.lock();
        let mut outputs = outputs.unwrap_or_else(PoisonError::into_inner);
        outputs.push((node, lines));
    }

    /// Returns the last lines that each of the last processes of the nodes has printed.
    #[must_use]
    pub fn last_outputs(&self) -> Vec<String> {
        let outputs = self.outputs.lock();
        let outputs = outputs.unwrap_or_else(PoisonError::into_inner);
        let from = outputs.len().saturating_sub(2 * self.nodes.len());
        let last = outputs[from..].iter();
        last.map(|(node, lines)| format!("node {node}:\n{}", lines.tail()))
            .collect()
    }

    /// Prints an event.
    #[allow(clippy::print_stderr, reason = "for who watches a long run")]
    pub fn say(&self, what: &str) {
        if self.options.talk {
            eprintln!("{} {what}", chrono::Utc::now().format("%H:%M:%S%.3f"));
        }
    }

    /// Starts the process of a node, and waits until it is ready. While the database is away the
    /// process ends, and is started again.
    pub async fn start_node(&self, node: &mut Node, shift: Option<&str>) {
        for _ in 0..200 {
            self.starts.fetch_add(1, Ordering::Relaxed);
            node.starts += 1;
            let mut running = self.program(node, shift).start();
            self.keep_output(node.number, running.lines().clone());
            let ready = within(READY, || {
                let said = running.lines().all();
                let ready = said.iter().any(|line| line.contains("is ready"));
                let ended = running.ended().is_some();
                std::future::ready((ready || ended).then_some(ready && !ended))
            });
            if ready.await == Some(true) {
                node.running = Some(running);
                return;
            }
            drop(running);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.surprise(format!("node {} could not be started", node.number));
    }

    fn program(&self, node: &Node, shift: Option<&str>) -> Program {
        let hints = self.options.hints_per_message.to_string();
        let turn = node.starts + u64::try_from(node.number).unwrap_or_default();
        let other = self.options.other_node.as_ref();
        let other = other.filter(|_| node.number > 1 && turn.is_multiple_of(2));
        let mut program = Program::at(other.unwrap_or(&self.program))
            .env("JOBWIRE_DATABASE_URL", node.database.url(&self.url))
            .env("JOBWIRE_BROKER_URL", node.broker.url(&self.broker_url))
            .env("JOBWIRE_AMQP_PREFIX", PREFIX)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .env("JOBWIRE_CONCURRENCY", self.options.concurrency.to_string())
            .env(
                "JOBWIRE_DURABLE_LOCKS",
                self.options.durable_locks.to_string(),
            )
            .env("JOBWIRE_AMQP_HINTS_PER_MESSAGE", &hints)
            .env("JOBWIRE_KAFKA_HINTS_PER_MESSAGE", &hints)
            .env(
                "JOBWIRE_ROW_LOCK_TYPES",
                Kind::BY_ROW.map(Kind::job_type).join(","),
            )
            .env("JOBWIRE_ROW_LOCK_FROM", "1")
            .env(
                "JOBWIRE_LEASE",
                format!("{}ms", self.options.lease.as_millis()),
            )
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env(
                "JOBWIRE_HINT_MAX_AGE",
                format!("{}s", HINT_MAX_AGE.as_secs()),
            )
            .env("JOBWIRE_SUSPECT_AFTER", "4s")
            .env("JOBWIRE_STATEMENT_TIMEOUT", "2s")
            .env("JOBWIRE_SHUTDOWN_TIMEOUT", "2s")
            .env("JOBWIRE_AMQP_CONFIRM_TIMEOUT", "2s")
            .env("JOBWIRE_KAFKA_CONFIRM_TIMEOUT", "2s")
            .env("JOBWIRE_KAFKA_SESSION_TIMEOUT", "6s")
            .env(
                "JOBWIRE_LOG",
                "warn,jobwire_core::leader=info,jobwire_core::worker::consumer=error",
            )
            .env("RUST_BACKTRACE", "0")
            .env("CHAOS_DATABASE_URL", &self.url);
        if self.options.deploys {
            let kinds = deploys::served(node.number, self.options.nodes, node.starts);
            program = program.env(
                "CHAOS_TYPES",
                kinds.map(Kind::job_type).collect::<Vec<_>>().join(","),
            );
        }
        if let (Some(shift), Some(library)) = (shift, self.clock_library) {
            program = program
                .env("LD_PRELOAD", library)
                .env("FAKETIME", shift)
                .env("DONT_FAKE_MONOTONIC", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        program
    }

    /// Starts all nodes.
    pub async fn start_nodes(&self) {
        for node in &self.nodes {
            self.start_node(&mut *node.lock().await, None).await;
        }
    }

    /// Restarts each node that ended by itself, and records a surprise.
    pub async fn look_after_nodes(&self) {
        for node in &self.nodes {
            let Ok(mut node) = node.try_lock() else {
                continue;
            };
            if let Some(status) = node.ended() {
                let tail = node.tail();
                let number = node.number;
                self.surprise(format!("node {number} ended by itself ({status}):\n{tail}"));
                self.start_node(&mut node, None).await;
            }
        }
    }

    /// Returns the number of hints that the living nodes received, and the errors in their accounts
    /// (I9). No hint may be under way.
    pub async fn hint_accounts(&self) -> (u64, Vec<String>) {
        let (mut hints, mut wrong) = (0, Vec::new());
        for node in &self.nodes {
            let node = node.lock().await;
            let (node, last) = (&*node, &Cell::new(None));
            let balanced = within(Duration::from_secs(60), || async {
                let page = http::get(&node.endpoint()?, "/metrics").await.ok()?.body;
                let account = HintAccount::read(&page);
                last.set(Some(account));
                account.is_balanced().then_some(account)
            });
            match balanced.await {
                Some(account) => hints += account.received,
                None => wrong.push(format!("node {}: {:?}", node.number, last.get())),
            }
        }
        (hints, wrong)
    }

    /// Returns the node that holds the most jobs, by its own metrics.
    pub async fn busiest_node(&self) -> &Arc<Mutex<Node>> {
        let mut busiest = (&self.nodes[0], 0);
        for shared in &self.nodes {
            let node = shared.lock().await;
            let Some(address) = node.endpoint() else {
                continue;
            };
            let page = http::get(&address, "/metrics").await;
            let jobs = page.map_or(0, |page| total(&page.body, JOBS_IN_FLIGHT));
            if jobs > busiest.1 {
                busiest = (shared, jobs);
            }
        }
        busiest.0
    }

    /// Shuts down all nodes, one after the other.
    pub async fn stop_nodes(&self) {
        for node in &self.nodes {
            let mut node = node.lock().await;
            self.terminate(&mut node).await;
        }
    }

    /// Sends SIGTERM to a node and waits for its end.
    pub async fn terminate(&self, node: &mut Node) {
        let number = node.number;
        let Some(mut running) = node.running.take() else {
            return;
        };
        running.signal(Signal::SIGTERM);
        let status = within(Duration::from_secs(120), || {
            std::future::ready(running.ended())
        });
        match status.await {
            Some(status) if status.success() => {}
            Some(status) => {
                let tail = running.lines().tail();
                self.surprise(format!(
                    "node {number} ended with {status} after SIGTERM:\n{tail}"
                ));
            }
            None => {
                let tail = running.lines().tail();
                self.surprise(format!("node {number} did not end after SIGTERM:\n{tail}"));
            }
        }
    }

    /// Lets every byte pass again.
    pub async fn heal_network(&self) {
        for node in &self.nodes {
            let node = node.lock().await;
            for proxy in [&node.database, &*node.broker] {
                proxy.set_both(Flow::Pass);
                proxy.accept().await;
            }
        }
        self.producers.set_both(Flow::Pass);
        self.producers.accept().await;
    }

    /// Connects a store of this process to the database, directly or through a proxy.
    pub async fn store(&self, through: Option<&Proxy>) -> PgStore {
        let url = through.map_or_else(|| self.url.clone(), |proxy| proxy.url(&self.url));
        let mut options = jobwire_core::PgOptions::default();
        options.max_connections = 4;
        options.statement_timeout = Duration::from_secs(2);
        eventually("the producer to reach the database", READY, || async {
            PgStore::connect_with(&url, options.clone()).await.ok()
        })
        .await
    }

    /// Connects a transport of this process directly to the broker.
    pub async fn transport(&self) -> Arc<dyn Transport> {
        let url = &self.broker_url;
        eventually("the producer to reach the broker", READY, || async {
            let transport: Arc<dyn Transport> = if url.starts_with("kafka") {
                let options = KafkaOptions::default()
                    .confirm_timeout(Duration::from_secs(2))
                    .hints_per_message(self.options.hints_per_message);
                Arc::new(KafkaTransport::connect(url, options).await.ok()?)
            } else {
                let options = AmqpOptions::default()
                    .prefix(PREFIX.to_owned())
                    .confirm_timeout(Duration::from_secs(2))
                    .hints_per_message(self.options.hints_per_message);
                Arc::new(AmqpTransport::connect(url, options).await.ok()?)
            };
            Some(transport)
        })
        .await
    }
}

impl Node {
    /// Returns its number, from 1.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns its exit status, if it has ended by itself.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.running.as_mut()?.ended()
    }

    /// Returns the address of its HTTP endpoint.
    fn endpoint(&self) -> Option<String> {
        let said = self.said();
        let ready = said.iter().find(|line| line.contains("is ready"))?;
        Some(http::address_in(ready))
    }

    fn tail(&self) -> String {
        let running = self.running.as_ref();
        running
            .map(|running| running.lines().tail())
            .unwrap_or_default()
    }

    /// Returns its output since its start.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        let running = self.running.as_ref();
        running
            .map(|running| running.lines().all())
            .unwrap_or_default()
    }

    /// Kills the process, as a crash would.
    pub fn kill(&mut self) {
        self.running = None;
        self.frozen = false;
    }

    /// Sends SIGSTOP.
    pub fn freeze(&mut self) {
        if let Some(running) = &self.running {
            running.signal(Signal::SIGSTOP);
            self.frozen = true;
        }
    }

    /// Sends SIGCONT.
    pub fn thaw(&mut self) {
        if let Some(running) = self.running.as_ref().filter(|_| self.frozen) {
            running.signal(Signal::SIGCONT);
        }
        self.frozen = false;
    }
}

async fn start_broker(kind: Broker) -> (AnyBroker, Option<Arc<Proxy>>) {
    match kind {
        Broker::RabbitMq => (AnyBroker::RabbitMq(RabbitMq::start().await), None),
        Broker::Kafka => {
            let mut settings = KafkaSettings::new();
            let proxy = settings.proxy().await;
            let kafka = Kafka::start_with(settings).await;
            (AnyBroker::Kafka(kafka), Some(Arc::new(proxy)))
        }
    }
}

/// Installs Jobwire's tables and the history in an empty database.
///
/// # Panics
/// If the database can't be used.
pub async fn prepare(url: &str) {
    let store = PgStore::connect(url).await;
    let store = store.unwrap_or_else(|error| panic!("cannot connect: {error}"));
    let migrated = store.migrate().await;
    migrated.unwrap_or_else(|error| panic!("cannot migrate: {error}"));
    let installed = sqlx::raw_sql(SCHEMA).execute(store.pool()).await;
    installed.unwrap_or_else(|error| panic!("cannot install the history: {error}"));
}

/// Returns the path of the nodes' program. The first call builds it.
///
/// # Panics
/// If it does not compile.
pub fn chaos_node() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| cargo::build("chaos_node"))
}

/// Returns the library that shifts a process's clock, if it is installed. Kafka can't use it:
/// librdkafka waits with functions of the C library that ignore the shift, so its threads would
/// wait an hour or not at all.
#[must_use]
pub fn clock_library(broker: Broker) -> Option<&'static PathBuf> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    if broker == Broker::Kafka {
        return None;
    }
    let find = || {
        let directories = std::fs::read_dir("/usr/lib").ok()?;
        let mut places: Vec<PathBuf> = directories.flatten().map(|entry| entry.path()).collect();
        places.push("/usr/lib".into());
        let library = |place: PathBuf| place.join("faketime/libfaketimeMT.so.1");
        places.into_iter().map(library).find(|path| path.exists())
    };
    PATH.get_or_init(find).as_ref()
}
