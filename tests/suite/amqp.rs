//! The RabbitMQ transport against a real broker: what goes wrong, and what is refused.
//!
//! What every transport must do is in `transport_conformance`; here is what only a broker can do to
//! it. Tests that stop or block a broker have one of their own.

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
mod world;
