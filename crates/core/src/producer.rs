//! The producer's side: jobs are created in a transaction, and their hints are published after its
//! COMMIT. The [client](client::Client) also reads, retries, deletes and cancels jobs.

pub mod client;
pub mod commit_hook;
pub mod lane_move;
mod operations;
