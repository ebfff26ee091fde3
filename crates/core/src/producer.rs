//! The producer's side: jobs are created in a transaction, and their hints are published after its COMMIT.

pub mod commit_hook;
pub mod jobs;
