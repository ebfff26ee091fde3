//! The bridge, on real engines with their executors off.

mod camunda;
mod conformance;
mod faults;
mod flowable;
mod processes;
mod rescue;
mod store;
