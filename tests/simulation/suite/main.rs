//! The protocol without servers: seeds of the simulation, and a model of exclusive jobs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic is the failure report"
)]

mod leader;
mod model;
mod simulation;
