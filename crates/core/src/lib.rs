//! # The model and the machinery of Jobwire
//!
//! Users depend on the crate `jobwire`, which re-exports what is public here. This crate gives no
//! promise of semantic versioning.
//!
//! The database holds the jobs and decides which node runs them. A broker carries only the *hint*
//! that a job is ready. The transaction that creates a job publishes its hint after COMMIT. Nodes
//! lock and run the job against the database. A low-frequency sweeper publishes a hint again where
//! one was lost, and resets expired leases.
//!
//! The folders are layers. Each names only those above it in this list:
//!
//! | folder | content |
//! | --- | --- |
//! | [`job`] | plain data: jobs, their fields, retry policies, repeats, durations |
//! | [`lane`] | which lane a job gets; the order in which a node serves its lanes |
//! | [`hint`] | the hint and its wire format |
//! | [`telemetry`] | metrics, labels, log throttle |
//! | [`runtime`] | supervised background tasks |
//! | [`transport`] | what carries hints: traits, in-process, several brokers at once |
//! | [`store`] | where jobs live: the trait, PostgreSQL, SQLite |
//! | [`producer`] | creating jobs in a transaction; publishing their hints after COMMIT |
//! | `fleet` | the living nodes, and what each serves |
//! | [`worker`] | running jobs: consumer, executor, completer, leases, fallback |
//! | [`leader`] | leader cycle, sweeper, timers |
//! | [`node`] | starts the parts, stops them, tells their health |

// Without a database there is no store, and what only stores use is unused.
#![cfg_attr(
    not(all(feature = "postgres", feature = "sqlite")),
    allow(dead_code, unused_imports, unused_macros)
)]

#[macro_use]
pub mod runtime;

mod fleet;
pub mod hint;
pub mod job;
pub mod lane;
pub mod leader;
pub mod node;
pub mod producer;
pub mod store;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;
pub mod worker;

pub use hint::Hint;
pub use job::args::JobArgs;
pub use job::new_job::{InvalidJob, NewJob};
pub use job::query::{JobDetails, JobFilter, JobView, LaneBacklog, LaneView};
pub use job::repeat::Repeat;
pub use job::retry::RetryPolicy;
pub use job::{BadLane, Fence, Job, JobId, JobKind, JobState, Lane, NodeId};
pub use lane::order::{LaneOrder, LaneShare};
pub use lane::rule::LaneRule;
pub use node::{Node, NodeOptions};
pub use producer::client::{Client, TransactionHook};
pub use producer::commit_hook::{CommitHook, HookOptions};
pub use producer::lane_move::{LaneMove, LaneMoved};
pub use store::StoreError;
#[cfg(feature = "postgres")]
pub use store::postgres::{PgOptions, PgStore};
#[cfg(feature = "sqlite")]
pub use store::sqlite::{SqliteOptions, SqliteStore};
pub use store::transaction::JobTransaction;
pub use store::{SqlStore, Store};
pub use transport::Transport;
pub use transport::in_process::InProcessTransport;
pub use worker::handler::{
    Handler, HandlerError, HandlerOptions, HandlerResult, Handlers, IntoOutcome, Outcome, Running,
    Stop, Verdict,
};
pub use worker::middleware::{Middleware, Next};

/// The crates whose types are part of the public API.
pub use async_trait::async_trait;
pub use tokio_util::sync::CancellationToken;
pub use {chrono, serde_json, sqlx, uuid};
