//! The RabbitMQ transport against a real broker: faults and refusals.
//!
//! `transport_conformance` tests what every transport must do; these tests cover what only a broker
//! can do to it. A test that stops or blocks a broker starts its own.

mod bad_input;
mod broken;
mod hosts;
mod prefetch;
mod program;
mod queues;
mod refused;
mod secured;
mod statistics;
mod tls;
mod unavailable;
mod unreceived;
mod vhost;
