//! The health of a node, as its parts report it, for health endpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::job::query::UnservedType;
use crate::job::{Lane, NodeId};
use crate::runtime::supervisor::TaskHealth;
use crate::store::StuckBatch;
use crate::transport::TransportHealth;
use crate::worker::context::NodeContext;

/// The health of a node.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The node's id.
    pub node: NodeId,
    /// Whether the node takes jobs and reports no problem.
    pub ready: bool,
    /// Whether the node is shutting down.
    pub draining: bool,
    /// Whether the node leads.
    pub leads: bool,
    /// The number of jobs that the node holds.
    pub in_flight: usize,
    /// The lanes in fallback: their jobs are claimed from the database because no hints come.
    pub claiming: Vec<Lane>,
    /// The problems, by part.
    pub problems: BTreeMap<String, String>,
    /// Operations with a batch that the database refuses repeatedly. The node is still ready: one
    /// row must not take a fleet out of service, and a restart would not help.
    pub stuck: Vec<StuckBatch>,
    /// Types whose jobs wait because no living node takes them, with the number of jobs. The leader
    /// looks for them while jobs wait, first one `sweep_interval` after its term begins; on other
    /// nodes the list is empty. The node is still ready.
    pub unserved: Vec<UnservedType>,
    /// Periodic jobs that this node, as the leader, could not create in the last hour, with the reason;
    /// at most 20. The node is still ready. [`PeriodicView::fault`](crate::store::PeriodicView::fault)
    /// tells them all.
    pub periodic: BTreeMap<String, String>,
}

/// A handle that reports the health of a node.
#[derive(Clone)]
pub struct HealthWatch {
    pub(crate) context: Arc<NodeContext>,
    pub(crate) workers: TaskHealth,
    pub(crate) keepers: TaskHealth,
}

impl HealthWatch {
    /// Returns the node's background tasks that have died and are not running again, with the
    /// reason.
    #[must_use]
    pub fn tasks_down(&self) -> BTreeMap<&'static str, String> {
        let mut down = self.workers.problems();
        down.extend(self.keepers.problems());
        down
    }

    /// Returns the operations with a batch that the database refuses repeatedly.
    #[must_use]
    pub fn stuck(&self) -> Vec<StuckBatch> {
        self.context.store.stuck()
    }

    /// Returns the types whose jobs wait because no living node takes them; see
    /// [`NodeHealth::unserved`].
    #[must_use]
    pub fn unserved(&self) -> Vec<UnservedType> {
        self.context.reports.unserved()
    }

    /// Returns the periodic jobs that this node could not create, with the reason; see
    /// [`NodeHealth::periodic`].
    #[must_use]
    pub fn periodic(&self) -> BTreeMap<String, String> {
        self.context.reports.periodic()
    }

    /// Returns the current health of the node, after a check that the database answers. Takes at
    /// most two seconds.
    pub async fn checked(&self) -> NodeHealth {
        let absence = self.context.store.absence().await;
        let mut health = self.health();
        if let Some(absence) = absence {
            health.ready = false;
            health.problems.insert("database".to_owned(), absence);
        }
        health
    }

    /// Returns the health of the node by the last reports of its parts.
    #[must_use]
    pub fn health(&self) -> NodeHealth {
        let context = &self.context;
        let transport: TransportHealth = context.transport.publisher().health();
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        for (part, problem) in self.tasks_down() {
            problems.insert(part.to_owned(), problem);
        }
        let reported = context.reports.problems();
        for (part, problem) in reported.iter() {
            problems.insert((*part).to_owned(), problem.clone());
        }
        drop(reported);
        if let Some(problem) = transport.trouble() {
            problems.insert("transport".to_owned(), problem);
        }
        if let Some((part, problem)) = context.store.failing_part() {
            problems.insert(part.to_owned(), problem);
        }
        if context.hook.is_down() {
            problems.insert(
                "hook".to_owned(),
                "the task that publishes hints died; it is started again".to_owned(),
            );
        } else if let Some(still) = context.hook.is_stuck() {
            problems.insert(
                "hook".to_owned(),
                format!(
                    "{} hints wait, and none was published or given up for {} s",
                    context.hook.buffered(),
                    still.as_secs()
                ),
            );
        }
        if !context.leases.healthy() {
            problems.insert(
                "renewal".to_owned(),
                "leases could not be renewed; the node takes no new jobs until they can".to_owned(),
            );
        }
        let claiming = context.reports.claimed().iter().cloned().collect();
        let draining = context.signals.draining.is_cancelled();
        NodeHealth {
            claiming,
            node: context.id,
            ready: problems.is_empty() && !draining,
            draining,
            leads: *context.leadership.leads.borrow(),
            in_flight: context.leases.len(),
            problems,
            stuck: self.stuck(),
            unserved: self.unserved(),
            periodic: self.periodic(),
        }
    }
}
