//! The bridge, on real engines with their executors off.

mod camunda;
mod conformance;
mod faults;
mod flowable;
mod load;
mod operators;
mod processes;
mod program;
mod refusals;
mod rescue;
mod store;
mod tap;
mod timers;
mod watchdog;
