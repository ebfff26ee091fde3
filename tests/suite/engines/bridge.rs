//! The bridge to Flowable, on the real engine with its executor off.

mod faults;
mod flowable;
mod processes;
mod program;
mod rescue;
mod store;
mod tap;
mod timers;
