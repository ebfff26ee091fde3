//! # The model and the machinery of Jobwire
//!
//! Users depend on the crate `jobwire`, which re-exports the public parts of this crate. This crate
//! does not promise semantic versioning.
//!
//! The database holds the jobs and decides which node runs them. A broker carries only the *hint*
//! that a job is ready. The hint is published after the COMMIT of the transaction that creates the
//! job. Nodes lock jobs in the database and run them. A low-frequency sweeper publishes lost hints
//! again and resets expired leases.
//!
//! The folders are layers. Each names only those above it in this list:
//!
//! | folder | content |
//! | --- | --- |
//! | [`job`] | plain data: jobs, their fields, retry policies, repeats, durations |
//! | [`lane`] | the lane of a job; the order in which a node serves its lanes |
//! | [`hint`] | the hint and its wire format |
//! | [`telemetry`] | metrics, labels, log throttle |
//! | [`runtime`] | supervised background tasks |
//! | [`event`] | events of jobs, and their listeners |
//! | [`transport`] | carries hints: traits, in-process, several brokers at once |
//! | [`store`] | where jobs live: the trait, PostgreSQL, SQLite |
//! | [`producer`] | creating jobs in a transaction; publishing their hints after COMMIT |
//! | `fleet` | the living nodes, and the types and jobs that each serves |
//! | [`worker`] | running jobs: consumer, executor, completer, leases, fallback |
//! | [`leader`] | leader cycle, sweeper, timers |
//! | [`node`] | starts and stops the parts; reports their health |

// Without a database there is no store, and code that only stores use is unused.
#![cfg_attr(
    not(all(feature = "postgres", feature = "sqlite")),
    allow(dead_code, unused_imports, unused_macros)
)]

#[macro_use]
pub mod runtime;

pub mod event;
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

pub use event::{JobEvent, JobEventKind, JobListener};
pub use hint::Hint;
pub use job::any_error::Error;
pub use job::args::JobArgs;
pub use job::batch::{Batch, BatchEnd, BatchState, BatchView};
pub use job::calendar::{self, BusinessCalendar, Calendars, WorkingHours};
pub use job::new_job::{InvalidJob, NewJob};
pub use job::periodic::PeriodicJob;
pub use job::progress::{MAX_CHECKPOINT_BYTES, MAX_PROGRESS_BYTES, Progress, ProgressView};
pub use job::query::{
    JobCursor, JobDetails, JobPage, JobQuery, JobSort, JobView, LaneBacklog, LaneView, SortBy,
    TextField, TextMatch,
};
pub use job::repeat::{CatchUp, Closed, Repeat};
pub use job::retry::{RetryFrom, RetryPolicy};
pub use job::sealed::{Ciphertext, Encryption, PayloadCipher, SealError, SealedIn};
pub use job::unique::UniqueKey;
pub use job::{BadLane, BatchId, Fence, Job, JobId, JobKind, JobState, Lane, NodeId};
pub use lane::order::{LaneOrder, LaneShare};
pub use lane::priority::{JobDefinition, PriorityRule, PriorityScope};
pub use lane::rule::LaneRule;
pub use lane::start_order::StartOrder;
pub use node::{Node, NodeOptions};
pub use producer::batches::BatchCancelled;
pub use producer::bulk::{BULK_TYPE, BulkAction, BulkOperation};
pub use producer::client::{Client, TransactionHook};
pub use producer::commit_hook::{CommitHook, HookOptions};
pub use producer::lane_move::{LaneMove, LaneMoved};
pub use producer::purge::{KeptSettings, Purge, Purged};
pub use store::Creation;
pub use store::StoreError;
#[cfg(feature = "postgres")]
pub use store::postgres::wakes::PgTransport;
#[cfg(feature = "postgres")]
pub use store::postgres::{PgOptions, PgStore};
#[cfg(feature = "sqlite")]
pub use store::sqlite::{SqliteOptions, SqliteStore};
pub use store::tap::TapMode;
pub use store::transaction::JobTransaction;
pub use store::{SqlStore, Store};
pub use transport::Transport;
pub use transport::in_process::InProcessTransport;
pub use worker::checkpoint::CheckpointError;
pub use worker::elastic::Elastic;
pub use worker::group::GroupOptions;
pub use worker::handler::{
    Handler, HandlerError, HandlerOptions, HandlerResult, Handlers, IntoOutcome, Outcome, Running,
    Stop, Verdict,
};
pub use worker::limit::Limit;
pub use worker::middleware::{Middleware, Next};
pub use worker::slot_limit::SlotLimit;
pub use worker::slot_pool::SlotPool;

/// The crates whose types are part of the public API.
pub use async_trait::async_trait;
pub use tokio_util::sync::CancellationToken;
pub use {chrono, chrono_tz, serde_json, sqlx, uuid};
