//! How a node is: what its parts report, for health endpoints.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use serde::Serialize;

use crate::job::{Lane, NodeId};
use crate::runtime::supervisor::TaskHealth;
use crate::store::StuckBatch;
use crate::transport::TransportHealth;
use crate::worker::context::NodeContext;

/// How a node is.
#[derive(Clone, Debug, Serialize)]
pub struct NodeHealth {
    /// The node.
    pub node: NodeId,
    /// Jobs are taken and nothing is broken.
    pub ready: bool,
    /// The node is shutting down.
    pub draining: bool,
    /// The node leads.
    pub leads: bool,
    /// Jobs that it holds.
    pub in_flight: usize,
    /// Lanes whose jobs are claimed from the database, for want of hints.
    pub claiming: Vec<Lane>,
    /// What is wrong, by part.
    pub problems: BTreeMap<String, String>,
    /// Operations of which a batch does not get through. The node is ready all the same: one row takes no fleet out of
    /// service, and a restart would not help.
    pub stuck: Vec<StuckBatch>,
}

/// Tells how a node is.
#[derive(Clone)]
pub struct HealthWatch {
    pub(crate) shared: Arc<NodeContext>,
    pub(crate) workers: TaskHealth,
    pub(crate) keepers: TaskHealth,
}

impl HealthWatch {
    /// The node's background tasks that have died and are not up again, with the reason.
    #[must_use]
    pub fn tasks_down(&self) -> BTreeMap<&'static str, String> {
        let mut down = self.workers.problems();
        down.extend(self.keepers.problems());
        down
    }

    /// The operations of which a batch does not get through.
    #[must_use]
    pub fn stuck(&self) -> Vec<StuckBatch> {
        self.shared.store.stuck()
    }

    /// How the node is now.
    #[must_use]
    pub fn health(&self) -> NodeHealth {
        let shared = &self.shared;
        let transport: TransportHealth = shared.transport.publisher().health();
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        for (part, problem) in self.tasks_down() {
            problems.insert(part.to_owned(), problem);
        }
        let reported = shared
            .problems
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (part, problem) in reported.iter() {
            problems.insert((*part).to_owned(), problem.clone());
        }
        drop(reported);
        if let Some(problem) = transport.trouble() {
            problems.insert("transport".to_owned(), problem);
        }
        if shared.hook.is_down() {
            problems.insert(
                "hook".to_owned(),
                "the task that publishes hints died; it is started again".to_owned(),
            );
        } else if let Some(still) = shared.hook.is_stuck() {
            problems.insert(
                "hook".to_owned(),
                format!(
                    "{} hints wait, and none was published or given up for {} s",
                    shared.hook.buffered(),
                    still.as_secs()
                ),
            );
        }
        if !shared.leases.healthy() {
            problems.insert(
                "renewal".to_owned(),
                "leases can't be renewed; no new work is taken".to_owned(),
            );
        }
        let claimed = shared.claimed.lock();
        let claiming = claimed.unwrap_or_else(PoisonError::into_inner);
        let claiming = claiming.iter().cloned().collect();
        let draining = shared.draining.is_cancelled();
        NodeHealth {
            claiming,
            node: shared.id,
            ready: problems.is_empty() && !draining,
            draining,
            leads: *shared.leads.borrow(),
            in_flight: shared.leases.len(),
            problems,
            stuck: self.stuck(),
        }
    }
}
