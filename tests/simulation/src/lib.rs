//! Fleets in a simulated world, and the checker that judges histories of jobs. Needs no server, no
//! client of a broker and no database.
#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a panic is how a test reports its failure"
)]

pub mod history;
pub mod simulation;
