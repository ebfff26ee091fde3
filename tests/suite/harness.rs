//! The harness keeps what it promises: a test that trusts it must be able to.
//!
//! Time budget: 60 s, most of it three starts of RabbitMQ.
#![allow(
    clippy::expect_used,
    reason = "a panic is how a test reports its failure"
)]

mod leftovers;
mod postgres;
mod program;
mod prometheus;
mod proxy;
mod rabbitmq;
