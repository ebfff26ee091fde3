//! Histories of jobs, and the checker that judges them.
//!
//! A history is the record of every job by the database, the creators and the handlers. The chaos
//! suite (`tests/src/chaos`) and the simulation feed the same checker; it needs no server. See
//! [`Checker`] for the invariants that it verifies.

mod account;
mod calendar;
mod checker;
mod event;
mod instance;
mod lineage;
pub mod permits;
mod report;
mod single;
#[cfg(test)]
mod tests;

pub use account::{HintAccount, total};
pub use calendar::Calendar;
pub use checker::{Checker, Limits};
pub use event::{Answer, Creation, Entry, Event, Micros, Outcome, Place, Series, Strikes, Waits};
pub use report::{Counts, Invariant, Report, Violation};
