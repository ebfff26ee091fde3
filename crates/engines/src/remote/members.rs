//! The nodes that serve the engine: short rows in the engine's table of properties.

use std::time::Duration;

use jobwire_core::job::scope::Scope;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{Membership, NodeView, silence};
use jobwire_core::{Lane, NodeId, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use super::wire::{self, Join, Member, Nodes, Nothing, OfNode};
use super::{EndpointStore, Result};
use crate::priorities;

/// Maximum length of a row.
const LONGEST: usize = 260;
const LONGEST_HOST: usize = 60;

/// The row of a node. A node takes all types of the engine's jobs, and its one lane.
#[derive(Serialize, Deserialize)]
struct About {
    #[serde(rename = "r")]
    revision: i64,
    #[serde(rename = "h")]
    host: String,
    #[serde(rename = "v")]
    version: String,
    #[serde(rename = "b")]
    transport: String,
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    tenants: Option<BTreeSet<String>>,
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    categories: Option<BTreeSet<String>>,
}

impl EndpointStore {
    /// Writes the row of a node.
    pub(super) async fn join(&self, node: &Membership) -> Result<()> {
        if node.scope.deployments.is_some() {
            return Err(StoreError::Config(
                "the jobs of an engine belong to no deployment of Jobwire; remove `deployments`"
                    .to_owned(),
            ));
        }
        priorities::check(node)?;
        let about = About {
            revision: node.revision,
            host: node.host.chars().take(LONGEST_HOST).collect(),
            version: node.version.chars().take(LONGEST_HOST).collect(),
            transport: node.transport.clone(),
            tenants: node.scope.tenants.clone(),
            categories: node.scope.categories.clone(),
        };
        let about = serde_json::to_string(&about).unwrap_or_default();
        if about.chars().count() > LONGEST {
            return Err(StoreError::Config(format!(
                "`tenants` and `categories` of the node are too long for the engine's table of properties, which \
                 keeps {LONGEST} characters for a node; name fewer, or none"
            )));
        }
        let join = Join {
            node: node.id.to_string(),
            about,
        };
        let _: wire::Done = self.0.client.ask("write_node", "join", &join).await?;
        Ok(())
    }

    /// Removes the row of a node.
    pub(super) async fn leave(&self, node: NodeId) -> Result<()> {
        let node = OfNode {
            node: node.to_string(),
        };
        let _: wire::Done = self.0.client.ask("remove_node", "leave", &node).await?;
        Ok(())
    }

    /// Returns the nodes, the most recent writers first.
    pub(super) async fn members(&self) -> Result<Vec<NodeView>> {
        let all: Nodes = self.0.client.ask("nodes", "nodes", &Nothing {}).await?;
        let mut views: Vec<NodeView> = all
            .nodes
            .iter()
            .filter_map(|member| self.view(member, all.now))
            .collect();
        views.sort_by_key(|view| std::cmp::Reverse(view.seen_at));
        Ok(views)
    }

    fn view(&self, member: &Member, now: chrono::DateTime<chrono::Utc>) -> Option<NodeView> {
        let about: About = serde_json::from_str(&member.about).ok()?;
        let mut scope = Scope::default();
        scope.tenants = about.tenants;
        scope.categories = about.categories;
        let types = self.types().iter().map(|name| (*name).to_owned());
        let lane: Lane = self.0.parts.options.lane.clone();
        Some(NodeView {
            membership: Membership {
                id: member.node.parse().ok()?,
                revision: about.revision,
                types: types.collect(),
                lanes: vec![lane],
                scope,
                host: about.host,
                version: about.version,
                transport: about.transport,
                attempts_kept: AttemptsKept::new(),
            },
            started_at: member.started,
            seen_at: member.seen,
            silent_for: silent_for(member, now),
        })
    }

    /// Removes the rows of nodes that have been silent for this time and are not in `heard`.
    pub(super) async fn forget(&self, limit: Duration, heard: &[NodeId]) -> Result<u64> {
        let all: Nodes = self.0.client.ask("nodes", "nodes", &Nothing {}).await?;
        let mut removed = 0;
        for member in &all.nodes {
            let is_silent = silent_for(member, all.now) > limit;
            let node: Option<NodeId> = member.node.parse().ok();
            let Some(node) = node.filter(|node| is_silent && !heard.contains(node)) else {
                continue;
            };
            self.leave(node).await?;
            removed += 1;
        }
        Ok(removed)
    }
}

fn silent_for(member: &Member, now: chrono::DateTime<chrono::Utc>) -> Duration {
    silence((now - member.seen).as_seconds_f64())
}
