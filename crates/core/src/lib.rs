//! # Jobwire: jobs that live in your database, carried by your broker
//!
//! The database holds the jobs and decides who runs them; a broker carries only the *hint* that a job is
//! ready. The transaction that creates a job publishes its id when it commits; a fleet of nodes locks and
//! runs it against the database; a low-frequency sweeper hints again what was orphaned or whose lock
//! expired. Nobody polls.
//!
//! * Create jobs in your own transaction: [`Jobs`], [`NewJob`], [`transaction`].
//! * Run them: [`Node`], [`Handlers`], [`handler`].
//! * Where they live: [`Store`], [`PgStore`], [`SqliteStore`].
//! * What carries their hints: [`transport`]; in one process [`InProcessTransport`], RabbitMQ in
//!   `jobwire-amqp`.
//!
//! Inside out, and never the other way: `job` (plain data) ← `store`, `transport` (traits and
//! implementations) ← machinery (`commit_hook`, `lease`, `executor`, `completion`, `consumer`, `timers`,
//! `sweeper`, `leader`, over what they share: `shared`) ← `node`.

#[macro_use]
pub mod crash_point;

mod alarm;
mod allowance;
mod claim;
mod clock;
pub mod commit_hook;
mod completion;
mod consumer;
mod created;
pub mod duration;
pub mod error;
mod executor;
mod finished;
mod first_turn;
mod fleet;
mod forward;
pub mod handler;
mod health;
mod held_hints;
mod held_instances;
pub mod hint;
pub mod job;
pub mod label;
pub mod lane_move;
pub mod lane_order;
pub mod lane_rule;
mod leader;
mod lease;
mod meters;
pub mod metrics;
pub mod new_job;
pub mod node;
mod options;
pub mod packing;
pub mod plain;
mod quarantine;
pub mod query;
pub mod rarely;
mod reconciliation;
mod renewal;
pub mod repeat;
mod rescue;
pub mod retry;
mod row_batch;
pub mod scope;
mod served;
mod shared;
pub mod store;
pub mod supervisor;
pub mod sweeper;
mod timers;
pub mod transaction;
pub mod transport;
mod under_way;
mod unreadable;
mod unreceived;

pub use commit_hook::{CommitHook, HookOptions};
pub use error::StoreError;
pub use handler::{
    Handler, HandlerError, HandlerOptions, HandlerResult, Handlers, Outcome, Running, Stop, Verdict,
};
pub use hint::Hint;
pub use job::{Fence, Job, JobId, JobKind, JobState, Lane, NodeId};
pub use lane_move::{LaneMove, LaneMoved};
pub use lane_order::{LaneOrder, LaneShare};
pub use lane_rule::LaneRule;
pub use new_job::{InvalidJob, NewJob};
pub use node::{Node, NodeOptions};
pub use query::{JobFilter, JobView, LaneBacklog, LaneView};
pub use retry::RetryPolicy;
pub use store::postgres::{PgOptions, PgStore};
pub use store::sqlite::{SqliteOptions, SqliteStore};
pub use store::{SqlStore, Store};
pub use transaction::{JobTransaction, Jobs, TransactionHook};
pub use transport::Transport;
pub use transport::in_process::InProcessTransport;
