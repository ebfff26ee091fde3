//! The rows of the nodes.

use std::time::Duration;

use jobwire_core::NodeId;
use jobwire_core::store::{Membership, NodeView};

use super::Database;

impl Database {
    pub(crate) fn write_node(&mut self, node: Membership) {
        let now = self.now();
        let started_at = self.nodes.get(&node.id).map_or(now, |row| row.started_at);
        let row = NodeView {
            membership: node,
            started_at,
            seen_at: now,
            silent_for: Duration::ZERO,
        };
        self.nodes.insert(row.membership.id, row);
    }

    pub(crate) fn remove_node(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    pub(crate) fn remove_silent_nodes(&mut self, silent_for: Duration, heard: &[NodeId]) -> u64 {
        let since = self.now() - silent_for;
        let before = self.nodes.len();
        self.nodes
            .retain(|id, row| row.seen_at >= since || heard.contains(id));
        (before - self.nodes.len()) as u64
    }

    pub(crate) fn nodes(&mut self) -> Vec<NodeView> {
        let now = self.now();
        let mut nodes: Vec<NodeView> = self.nodes.values().cloned().collect();
        for node in &mut nodes {
            node.silent_for = (now - node.seen_at).to_std().unwrap_or_default();
        }
        nodes.sort_by_key(|row| std::cmp::Reverse(row.seen_at));
        nodes
    }
}
