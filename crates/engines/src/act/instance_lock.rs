//! The holder of an instance's lock, by the engine and the way of execution.

use super::family::Family;
use crate::options::Execution;

/// The holder of the lock of an instance during an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceLock {
    /// The node of Jobwire, with the job.
    OfNode,
    /// The engine, when the endpoint runs the job.
    OfEngine,
}

impl InstanceLock {
    /// Returns the holder for this engine and way of execution.
    pub(super) fn of(family: &Family, execution: Execution) -> Self {
        match family.lacks("e.lock_owner_") {
            Some(_) if execution == Execution::Endpoint => Self::OfEngine,
            _ => Self::OfNode,
        }
    }
}
