//! Every store on a real database, and the store in memory that the simulation uses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic is the failure report"
)]

mod plans;
mod store_conformance;
mod wakes;
