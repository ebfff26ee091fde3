//! Tests of the harness that the other tests rely on.
//!
//! Time budget: 120 s, most of it starts of RabbitMQ and of Kafka.
#![allow(
    clippy::expect_used,
    reason = "a panic is how a test reports its failure"
)]

mod kafka;
mod kafka_security;
mod leftovers;
mod postgres;
mod program;
mod prometheus;
mod proxy;
mod rabbitmq;
