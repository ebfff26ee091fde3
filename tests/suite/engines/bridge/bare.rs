//! The bridge on the tables of an engine, with an application of the test instead of the engine:
//! for answers that a real engine gives seldom, and for TLS. No JVM runs.

mod application;
mod late;
mod rescue;
mod tables;
mod tls;
mod token;
