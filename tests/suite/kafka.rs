//! The Kafka transport against real brokers: faults, and how they heal.
//!
//! `transport_conformance` tests what every transport must do; these tests cover what only Kafka
//! can do to it. Nodes are real, the database is PostgreSQL, and each job writes a row in the
//! transaction that completes it: a fault is healed when every job has exactly one row and no
//! process was restarted. A test that breaks a broker starts its own.

mod bad_input;
mod broker;
mod cluster;
mod ending;
mod fleet;
mod group;
mod offsets;
mod refused;
mod security;
mod storm;
mod topics;
