//! # Jobwire: jobs in your database, hints over your broker
//!
//! Jobwire runs background jobs that live in your database. A job is created in your own
//! transaction, beside your own statements: it exists if and only if that transaction commits. A
//! broker carries only the *hint* that a job is ready, so no node polls. A lost hint costs latency,
//! never a job.
//!
//! # Concept
//!
//! | word | meaning |
//! | --- | --- |
//! | [`NewJob`] | a job to create: type, payload, process instance, due date, retry policy |
//! | store | where jobs live: `PgStore` (feature `postgres`), `SqliteStore` (feature `sqlite`) |
//! | [`Client`] | creates jobs in transactions; lists, retries, deletes and cancels them |
//! | hint | the message that says that a job is ready |
//! | transport | carries hints: `amqp::AmqpTransport` (feature `amqp`), `kafka::KafkaTransport` (feature `kafka`), `PgTransport` (no broker, feature `postgres`), [`InProcessTransport`] |
//! | [`Node`] | locks jobs and runs their handlers; a fleet has as many as you start |
//! | lease | the row that records the lock of a running job. The node renews it; when the node dies, another node takes the job over |
//! | fence | the number of a lock. Fences only grow, and every statement that changes a locked job names its fence |
//!
//! Each job is finished once. Its handler may run twice if its node dies in between. A handler
//! whose effects must happen once works inside
//! [the transaction that completes its job](Running::transaction).
//!
//! # Three-minute start
//!
//! ```toml
//! [dependencies]
//! jobwire = { version = "0.1", features = ["sqlite"] }
//! serde = { version = "1", features = ["derive"] }
//! tokio = { version = "1", features = ["macros", "rt-multi-thread", "signal"] }
//! tracing-subscriber = "0.3"
//! ```
//!
#![cfg_attr(feature = "sqlite", doc = "```no_run")]
#![cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
//! use std::sync::Arc;
//!
//! use jobwire::{Error, HandlerResult, InProcessTransport, JobArgs, NewJob, Node, Running, SqliteStore};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendInvoice {
//!     order: u64,
//! }
//!
//! impl JobArgs for SendInvoice {
//!     const TYPE: &'static str = "send-invoice";
//! }
//!
//! async fn send_invoice(job: Running<SendInvoice>) -> HandlerResult {
//!     println!("invoice for order {}", job.payload.order);
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     tracing_subscriber::fmt::init(); // warnings of Jobwire go to this log, and nowhere else
//!     let store = SqliteStore::connect("sqlite:jobs.db").await?;
//!     store.migrate().await?;
//!
//!     let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
//!         .job(send_invoice)
//!         .start()
//!         .await?;
//!
//!     let client = store.client(node.hook());
//!     client.create(NewJob::new(&SendInvoice { order: 17 })).await?;
//!
//!     tokio::signal::ctrl_c().await?;
//!     node.stop().await;
//!     Ok(())
//! }
//! ```
//!
//! # Producers
//!
//! A transaction of the client publishes its hints after COMMIT:
//!
#![cfg_attr(feature = "postgres", doc = "```no_run")]
#![cfg_attr(not(feature = "postgres"), doc = "```ignore")]
//! # async fn example(client: jobwire::Client<jobwire::PgStore>) -> Result<(), jobwire::Error> {
//! use jobwire::{NewJob, sqlx};
//!
//! let mut tx = client.begin().await?;
//! sqlx::query("INSERT INTO orders (id) VALUES (17)").execute(&mut *tx).await?;
//! tx.create(NewJob::of("send-invoice", &17).instance("order-17")).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! For your own transaction use [`Client::hook`]. A process that only creates jobs needs no
//! node:
//!
#![cfg_attr(all(feature = "postgres", feature = "amqp"), doc = "```no_run")]
#![cfg_attr(not(all(feature = "postgres", feature = "amqp")), doc = "```ignore")]
//! # async fn example() -> Result<(), jobwire::Error> {
//! use jobwire::amqp::{AmqpOptions, AmqpTransport};
//! use jobwire::transport::Transport;
//! use jobwire::{CommitHook, HookOptions, NewJob, PgStore};
//!
//! let store = PgStore::connect("postgres://user:password@host/database").await?;
//! let transport = AmqpTransport::connect("amqps://user:password@host", AmqpOptions::default()).await?;
//! let hook = CommitHook::start(transport.publisher(), HookOptions::default());
//! let client = store.client(hook);
//! client.create(NewJob::of("send-invoice", &17)).await?;
//! # Ok(()) }
//! ```
//!
//! # Handlers
//!
//! A handler is an async function of a [`Running`] job. [`worker::handler`] has the table of
//! answers: done, snooze, retry, dead letter. [`HandlerOptions`] set timeout, concurrency, retry
//! policy and the completing transaction of a type; [`worker::middleware`] puts code around all
//! handlers.
//!
//! # Operating
//!
//! [`NodeOptions`] has the options of a node. [`Node::health`] serves health endpoints. The metrics
//! in [`metrics`] go to the recorder that your program installs. [`Client`] lists, retries, deletes
//! and cancels jobs. The program `jobwire` (crate `jobwire-cli`) does the same from a shell, and
//! runs nodes with built-in handlers.
//!
//! # Testing
//!
//! With the feature `testing`, `testing::running` builds the argument of a handler, and
//! `testing::run_due` runs all due jobs of a database in memory.
//!
//! # Features
//!
//! | feature | brings |
//! | --- | --- |
//! | `postgres` | `PgStore` |
//! | `sqlite` | `SqliteStore` |
//! | `amqp` | `amqp`: hints over RabbitMQ |
//! | `engines` | `engines`: the jobs of a Flowable, Activiti or Camunda 7 that already runs, and `postgres` |
//! | `kafka` | `kafka`: hints over Kafka. Compiles librdkafka from its C sources |
//! | `testing` | `testing`, and `sqlite` |
//!
//! No feature is on by default.

#[cfg(feature = "postgres")]
mod connect;

/// Business calendars.
pub use jobwire_core::calendar;
/// The maximum number of events that wait for one listener.
pub use jobwire_core::event::LISTENER_BUFFER;
pub use jobwire_core::{
    BULK_TYPE, BadLane, Batch, BatchCancelled, BatchEnd, BatchId, BatchState, BatchView,
    BulkAction, BulkOperation, BusinessCalendar, Calendars, CatchUp, CheckpointError, Ciphertext,
    Client, Closed, CommitHook, Creation, Elastic, Encryption, Error, Fence, GroupOptions, Handler,
    HandlerError, HandlerOptions, HandlerResult, Handlers, HookOptions, InProcessTransport,
    IntoOutcome, InvalidJob, Job, JobArgs, JobCursor, JobDefinition, JobDetails, JobEvent,
    JobEventKind, JobId, JobKind, JobListener, JobPage, JobQuery, JobSort, JobState,
    JobTransaction, JobView, KeptSettings, Lane, LaneMove, LaneMoved, LaneOrder, LaneRule,
    LaneShare, Limit, Middleware, NewJob, Next, Node, NodeId, NodeOptions, Outcome, PayloadCipher,
    PeriodicJob, PriorityRule, PriorityScope, Progress, ProgressView, Purge, Purged, Repeat,
    RetryFrom, RetryPolicy, Running, SealError, SealedIn, SlotPool, SortBy, SqlStore, StartOrder,
    Stop, Store, StoreError, TextField, TextMatch, TransactionHook, Transport, UniqueKey, Verdict,
    WorkingHours,
};
/// The limits of checkpoints and of the text of a progress, in bytes.
pub use jobwire_core::{MAX_CHECKPOINT_BYTES, MAX_PROGRESS_BYTES};

#[cfg(feature = "postgres")]
pub use jobwire_core::{PgOptions, PgStore, PgTransport};
#[cfg(feature = "sqlite")]
pub use jobwire_core::{SqliteOptions, SqliteStore};

/// The type to which [`Stop`] dereferences.
pub use jobwire_core::CancellationToken;
/// For implementations of [`Handler`].
pub use jobwire_core::async_trait;

/// The crate for dates of jobs.
pub use jobwire_core::chrono;
/// The crate for time zones of repetitions.
pub use jobwire_core::chrono_tz;
/// The crate for payloads as JSON text.
pub use jobwire_core::serde_json;
/// The crate for correlation ids.
pub use jobwire_core::uuid;

/// The version of sqlx whose transactions Jobwire accepts.
pub use jobwire_core::sqlx;

/// Hints over RabbitMQ.
#[cfg(feature = "amqp")]
pub use jobwire_amqp as amqp;
/// The jobs of process engines that already run.
#[cfg(feature = "engines")]
pub use jobwire_engines as engines;
/// Hints over Kafka.
#[cfg(feature = "kafka")]
pub use jobwire_kafka as kafka;

/// Tests of handlers without a broker.
#[cfg(feature = "testing")]
pub use jobwire_core::testing;

/// The event stream: events of jobs that are published to the broker.
pub mod event {
    pub use jobwire_core::event::stream::{
        CONTENT_TYPE, COUNTED_EVENTS, EventStream, EventStreamState, OutgoingEvent, STREAMED_KINDS,
        StreamedEvent,
    };
}

/// Nodes: their health, and changes of the types and the scope that they serve.
pub mod node {
    pub use jobwire_core::job::scope::{Needs, Scope};
    pub use jobwire_core::node::{
        BadOption, Executed, HealthWatch, NodeBuilder, NodeHealth, Registry, StartError,
    };
}

/// Stores: their options, and the results of operations.
///
/// Nodes call the methods of the traits [`Store`] and [`SqlStore`].
/// These methods may change in any version; use [`Client`] instead.
pub mod store {
    pub use jobwire_core::job::periodic::{Declared, InvalidPeriodicJob};
    pub use jobwire_core::job::query::{LaneBacklog, LaneView, UnservedScope, UnservedType};
    pub use jobwire_core::producer::gate_change::GateChanged;
    pub use jobwire_core::producer::priority_cascade::PriorityCascaded;
    pub use jobwire_core::store::attempts::{
        AttemptCursor, AttemptField, AttemptOutcome, AttemptPage, AttemptQuery, AttemptSort,
        AttemptView, BadAttemptCursor, ErrorGroup, Incident, IncidentFilter, Resolution,
    };
    #[cfg(feature = "postgres")]
    pub use jobwire_core::store::postgres;
    #[cfg(feature = "sqlite")]
    pub use jobwire_core::store::sqlite;
    pub use jobwire_core::store::{
        Change, DefinitionKey, Ended, EndedScope, Gate, GateView, InvalidDefinitionKey, Operated,
        OperatedJobs, PauseScope, SUSPENSION_TYPE, SchemaStatus, Suspended, SuspensionScope,
    };
    pub use jobwire_core::store::{MAX_NAMES, PeriodicView, Refusal, TapMode};
    pub use jobwire_core::store::{NodeView, SqlStore, Store, StuckBatch};
}

/// Transports: the one that a URL names, security of the connection, and several brokers at once.
pub mod transport {
    #[cfg(feature = "postgres")]
    pub use crate::connect::connect;
    pub use jobwire_core::hint::{Hint, Ready};
    pub use jobwire_core::transport::routed::{Builder as RoutedBuilder, RoutedTransport};
    pub use jobwire_core::transport::{
        BadSetting, BrokerSecurity, EventPublisher, Plaintext, Publisher, Transport,
        TransportError, TransportHealth,
    };
}

/// Handlers: their answers, the completing transaction, and middleware.
pub mod worker {
    pub use jobwire_core::worker::{group, handler, handler_transaction, middleware};
}

/// Retry policies, repeats and durations as text.
pub mod text {
    pub use jobwire_core::job::duration::{BadDuration, parse as parse_duration};
    pub use jobwire_core::job::repeat::{BadRepeat, Cron, Period, Schedule};
    pub use jobwire_core::job::retry::BadRetryPolicy;
    pub use jobwire_core::lane::rule::BadRule;
}

/// The metrics: names, units, labels and meanings, and [`describe`](metrics::describe) for the
/// recorder.
pub mod metrics {
    pub use jobwire_core::telemetry::metrics::{
        ALL, COUNT_BUCKETS, Kind, Metric, SECONDS_BUCKETS, describe,
    };
}
