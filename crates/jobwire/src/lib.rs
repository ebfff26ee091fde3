//! facade
pub use jobwire_core::*;
