//! Facts about process engines on which the bridge relies, on the real engines. A version of an
//! engine that behaves differently fails here, before it fails a user.
//!
//! Budget: 5 minutes, of which 15 s are the start of each engine; scripts/setup has fetched
//! them. The tests of other engines and other settings are long:
//! `scripts/test --long engines::`.

mod activiti;
mod bench;
mod bridge;
mod camunda;
mod endpoint;
mod flowable;
mod flowable8;
mod hooks;
mod own_executor;
mod rows;
