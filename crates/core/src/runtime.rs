//! Background tasks: supervision, and the places at which a test stops the process.

#[macro_use]
pub mod crash_point;
pub(crate) mod fast_map;
pub(crate) mod panic_place;
#[macro_use]
mod setters;
pub mod supervisor;
