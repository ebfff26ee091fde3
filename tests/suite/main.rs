//! Jobwire, end to end, on real servers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic is the failure report"
)]

mod amqp;
mod batches;
mod broker_away;
mod brokers;
mod budgets;
mod calendars;
mod chaos;
mod crash_points;
mod database_away;
mod demo;
mod docs;
mod engines;
mod event_stream;
mod events;
mod examples;
mod faults;
mod fleet;
mod grafana;
mod harness;
mod hints;
mod jvm;
mod kafka;
mod lanes;
mod layers;
mod library;
mod limits;
mod no_broker;
mod package;
mod program;
mod promises;
mod rules;
mod several_databases;
mod supervision;
mod tap;
mod transport_conformance;
mod world;
