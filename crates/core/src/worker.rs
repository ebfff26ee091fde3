//! The worker's side of a node: receives hints, runs locked jobs, commits outcomes.
//!
//! ```text
//! consumer ─► store.lock ─► executor ─► completer ─► store.complete, store.fail
//!    ▲                         ▲
//!    │ hints                   │ jobs without a hint
//! transport                 fallback (the broker is away), handoff, lost_leases
//! ```
//!
//! `context` holds the data that these parts share. The dependencies between the files of this
//! folder have no cycle, and no file that `context` names uses the context.

pub(crate) mod addressed;
pub(crate) mod attempt;
pub(crate) mod batch_ends;
pub(crate) mod cached_metrics;
pub mod checkpoint;
pub(crate) mod completer;
pub(crate) mod consumer;
pub(crate) mod context;
pub(crate) mod departures;
pub(crate) mod elastic;
pub(crate) mod elastic_slots;
pub(crate) mod executor;
pub(crate) mod fallback;
pub(crate) mod fault_score;
pub(crate) mod finished;
pub(crate) mod forward;
pub mod group;
pub mod handler;
pub mod handler_transaction;
pub(crate) mod held_hints;
pub(crate) mod held_instances;
pub(crate) mod inbox;
pub(crate) mod inline_start;
pub(crate) mod leadership;
pub(crate) mod lease_book;
pub(crate) mod life_signs;
pub mod limit;
pub(crate) mod lost_leases;
pub mod middleware;
pub(crate) mod next_timer;
pub mod options;
pub(crate) mod outcome;
pub(crate) mod own_hints;
pub(crate) mod permit_exchange;
pub(crate) mod permits;
pub(crate) mod processor;
pub(crate) mod quarantine;
pub(crate) mod reach;
pub(crate) mod refused_outcomes;
pub(crate) mod release;
pub(crate) mod renewal;
pub(crate) mod reports;
pub(crate) mod retry_function;
pub(crate) mod row_batch;
pub(crate) mod row_pause;
pub(crate) mod running;
pub(crate) mod served;
pub(crate) mod signals;
pub(crate) mod slot_limit;
pub(crate) mod slot_pool;
pub(crate) mod slots;
pub(crate) mod stages;
pub(crate) mod statement;
pub(crate) mod stop_counts;
pub(crate) mod suspects;
pub(crate) mod tell;
pub(crate) mod under_way;
pub(crate) mod unreadable;
