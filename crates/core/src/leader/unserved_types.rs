//! Finds types whose jobs wait because no living node takes them: a wrong name, a handler that no
//! node has yet, a tenant without a node. No job is lost, and none of them runs, so the leader's
//! health names the types ([`NodeHealth::unserved`](crate::node::NodeHealth::unserved)). The fault
//! is not in this node, which stays ready.
//!
//! The statement reads every executable job, so the pause after it is at least two hundred times
//! its duration, as for [lanes](super::unserved_lanes).

use std::time::Duration;

use tokio::time::Instant;

use crate::worker::context::NodeContext;

/// Maximum number of types that are reported.
const NAMED: i64 = 20;
/// The pause between two questions, as a multiple of the duration of one.
const DISTANCE: u32 = 200;

/// The time at which the leader next looks for such types.
#[derive(Default)]
pub(crate) struct UnservedTypes {
    not_before: Option<Instant>,
}

impl UnservedTypes {
    /// Begins a term. The first question waits one interval, in which all living nodes send a beat.
    pub(crate) fn begin(&mut self, node: &NodeContext) {
        self.not_before = Some(Instant::now() + node.options.sweep_interval);
    }

    /// Reports these types, if it is time.
    pub(crate) async fn look(&mut self, node: &NodeContext) {
        let started = Instant::now();
        if self.not_before.is_some_and(|moment| started < moment) {
            return;
        }
        match node
            .store
            .unserved_types(&node.fleet.services(), NAMED)
            .await
        {
            Ok(found) => node.reports.set_unserved(found),
            Err(error) => {
                tracing::warn!(%error, "could not look for jobs that no living node takes");
            }
        }
        let distance = (started.elapsed() * DISTANCE).max(node.options.sweep_interval);
        self.not_before = Some(Instant::now() + distance.min(Duration::from_secs(3600)));
    }

    /// Clears the report, because no job waits or another node leads.
    pub(crate) fn end(&self, node: &NodeContext) {
        node.reports.set_unserved(Vec::new());
    }
}
