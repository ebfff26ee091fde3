//! A run: a job under its lock, with its handler. Each step of the executor receives it.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::job::{Job, LockToken};
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;
use crate::worker::handler::Registration;
use crate::worker::lease_book::Lease;

/// A job under its lock, with its handler.
pub(super) struct Run<'a> {
    pub(super) node: &'a Arc<NodeContext>,
    pub(super) job: &'a Arc<Job>,
    pub(super) held: &'a LockToken,
    pub(super) lease: &'a Arc<Lease>,
    pub(super) registration: Registration,
    /// The slot of the type, if the type has its own limit. Held until the run ends.
    pub(super) _type_slot: Option<OwnedSemaphorePermit>,
}

impl Run<'_> {
    /// Returns the ending of a job that was asked to stop before its handler had an outcome.
    pub(super) fn interrupted(&self) -> Ending {
        if self.lease.lost.is_given() {
            Ending::Lost
        } else {
            tracing::debug!(node = %self.node.id, "releasing a job without an outcome");
            Ending::Release
        }
    }
}
