//! The Kafka transport against real brokers: what goes wrong, and what heals it.
//!
//! What every transport must do is in `transport_conformance`; here is what only Kafka can do to it.
//! Nodes are real, the database is PostgreSQL, and each job writes a row in the transaction that completes
//! it: a fault is healed when every job has its row, once, and nothing was started again. Tests that
//! abuse a broker have one of their own.

mod bad_input;
mod broker;
mod cluster;
mod ending;
mod group;
mod offsets;
mod refused;
mod security;
mod storm;
mod topics;
mod world;
