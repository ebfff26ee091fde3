//! Membership: which nodes there are, and which jobs each of them takes.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::job::scope::{Group, Names, Scope, Services};
use crate::job::{Lane, NodeId};
use crate::store::error::StoreError;

/// The most nodes that are read.
pub const MAX_NODES: usize = 1_024;
/// The most names of one kind that a node may take.
pub const MAX_NAMES: usize = 4_096;
/// The most bytes of all names of a node.
const MAX_NAME_BYTES: usize = 1024 * 1024;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The node.
    pub id: NodeId,
    /// Grows with every change.
    pub revision: i64,
    /// Types that it serves.
    pub types: Vec<String>,
    /// Lanes that it receives.
    pub lanes: Vec<Lane>,
    /// Which jobs of these types it takes.
    pub scope: Scope,
    /// Where it runs.
    pub host: String,
    /// The program's version.
    pub version: String,
    /// Its transport.
    pub transport: String,
}

/// A node as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// What it says of itself.
    pub membership: Membership,
    /// When it started, by the database's clock.
    pub started_at: DateTime<Utc>,
    /// When it last wrote its row.
    pub seen_at: DateTime<Utc>,
    /// So long before it was read, by the database's clock.
    pub silent_for: Duration,
}

/// A node writes its row once a minute. One that missed two of them counts as dead where no beats are heard.
const LIVES: Duration = Duration::from_secs(150);

impl NodeView {
    /// The node has written its row lately.
    #[must_use]
    pub fn lives(&self) -> bool {
        self.silent_for <= LIVES
    }
}

/// The rows that can be read. One that no node could have written makes its node unknown, and no other one.
pub(super) fn readable(rows: impl Iterator<Item = Result<NodeView, StoreError>>) -> Vec<NodeView> {
    let told = rows.map(|row| {
        row.inspect_err(|error| {
            tracing::warn!(%error, "a row of the table `node` can't be read; its node is not known");
        })
    });
    told.flatten().collect()
}

/// What the living ones of these nodes serve.
#[must_use]
pub fn services_of(nodes: &[NodeView]) -> Services {
    let living = nodes.iter().filter(|node| node.lives());
    let groups = living.map(|node| Group {
        types: node.membership.types.clone(),
        scope: node.membership.scope.clone(),
    });
    Services::of(groups.collect())
}

impl Membership {
    /// Refuse what the tables refuse, with a message that names the field.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let named = |names: &Names| names.iter().flatten().map(String::len).collect::<Vec<_>>();
        let kinds = [
            ("types", self.types.iter().map(String::len).collect()),
            (
                "lanes",
                self.lanes.iter().map(|lane| lane.0.len()).collect(),
            ),
            ("deployments", named(&self.scope.deployments)),
            ("categories", named(&self.scope.categories)),
            ("tenants", named(&self.scope.tenants)),
        ];
        let mut bytes = 0;
        for (kind, lengths) in kinds {
            if lengths.len() > MAX_NAMES {
                return Err(StoreError::Config(format!(
                    "`{kind}` of a node has {} names, more than {MAX_NAMES}; spread them over several nodes",
                    lengths.len()
                )));
            }
            bytes += lengths.iter().sum::<usize>();
        }
        if bytes > MAX_NAME_BYTES {
            return Err(StoreError::Config(format!(
                "the names that a node takes have {bytes} bytes, more than {MAX_NAME_BYTES}; spread them over several nodes"
            )));
        }
        Ok(())
    }
}
