//! The bridge, on real engines with their executors off.

mod activiti;
mod both_ways;
mod camunda;
mod conformance;
mod endpoint;
mod endpoint_alone;
mod faults;
mod fleet;
mod flowable;
mod flowable8;
mod hooks;
mod kinds;
mod lists;
mod load;
mod old_artefact;
mod operators;
mod other_databases;
mod processes;
mod program;
mod refusals;
mod rescue;
mod routing;
mod store;
mod tap;
mod timers;
mod watchdog;
