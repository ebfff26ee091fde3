//! The bridge, on real engines with their executors off.

mod camunda;
mod conformance;
mod faults;
mod flowable;
mod hooks;
mod processes;
mod program;
mod rescue;
mod store;
mod tap;
mod timers;
