//! Background tasks: supervision, waiting, and the places at which a test stops the process.

pub(crate) mod alarm;
#[macro_use]
pub mod crash_point;
pub(crate) mod fast_map;
pub(crate) mod panic_place;
#[macro_use]
mod setters;
pub mod supervisor;
