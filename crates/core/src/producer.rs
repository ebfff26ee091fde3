//! The producer's side: creates jobs in a transaction and publishes their hints after its COMMIT.
//! The [client](client::Client) also reads, retries, deletes and cancels jobs.

pub mod batches;
pub mod bulk;
pub mod client;
pub mod commit_hook;
pub mod gate_change;
mod gates;
mod hint_room;
pub mod lane_move;
mod operations;
mod operations_told;
pub(crate) mod periodic;
pub mod priority_cascade;
pub mod purge;
mod purge_kept;
mod queries;
mod rules;
mod transaction_operations;
