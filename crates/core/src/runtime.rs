//! Background tasks: supervision, and the places at which a test stops the process.

#[macro_use]
pub mod crash_point;
pub mod supervisor;
