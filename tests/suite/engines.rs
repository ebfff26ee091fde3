//! Facts about process engines on which the bridge relies, on the real engines. A version of an
//! engine that behaves differently fails here, before it fails a user.
//!
//! Budget: 60 s, of which 15 are the start of Flowable, and two minutes more where Maven has to fetch
//! its artifacts. The tests of other engines and other settings are long:
//! `scripts/test --long engines::`.

mod activiti;
mod bridge;
mod camunda;
mod endpoint;
mod flowable;
mod flowable8;
mod own_executor;
mod rows;
