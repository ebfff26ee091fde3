//! The fleet as this node hears it: which nodes live, and what they serve.
//!
//! Whoever may publish to the broker can invent nodes, so what is remembered is bounded: nodes, and different
//! types and lanes over all of them. What comes first stays until it falls silent; this node is always known. A
//! name that is left out is unknown to this node: jobs of such a type or lane wait for hints like any others,
//! and are not swept while it leads.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::job::{Lane, NodeId};
use crate::rarely::Rarely;

/// Nodes that are remembered.
const MOST_MEMBERS: usize = 1_024;
/// Different types over all nodes.
const MOST_TYPES: usize = 4_096;
/// Different lanes over all nodes. Each of them costs the leader a marker.
const MOST_LANES: usize = 256;
const SILENCE: Duration = Duration::from_secs(120);

/// Which nodes live, and what they serve: heard over the broker, forgotten after a silence.
#[derive(Default)]
pub(crate) struct Fleet(Mutex<Members>);

#[derive(Default)]
struct Members {
    by_id: HashMap<NodeId, Member>,
    types: Names,
    lanes: Names,
    full: Rarely,
}

struct Member {
    types: Vec<Arc<str>>,
    lanes: Vec<Arc<str>>,
    /// Free slots; `None` where the node takes no jobs that are addressed to it.
    free: Option<u32>,
    /// Which control messages it understands.
    speaks: u32,
    heard: Instant,
}

/// A node that may be given jobs.
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    pub(crate) types: Vec<Arc<str>>,
    pub(crate) lanes: Vec<Arc<str>>,
    pub(crate) free: u32,
    /// Jobs that it was given so far.
    pub(crate) given: u32,
}

impl Candidate {
    pub(crate) fn serves(&self, job_type: &str, lane: &Lane) -> bool {
        let has = |names: &[Arc<str>], wanted: &str| names.iter().any(|name| **name == *wanted);
        has(&self.types, job_type) && has(&self.lanes, &lane.0)
    }
}

/// Each name once, however many nodes say it.
#[derive(Default)]
struct Names(HashSet<Arc<str>>);

impl Names {
    /// Those of these names that there is room for.
    fn admit<'a>(&mut self, names: impl Iterator<Item = &'a str>, most: usize) -> Vec<Arc<str>> {
        let mut admitted = Vec::new();
        let mut collected = false;
        for name in names {
            if let Some(known) = self.0.get(name) {
                admitted.push(known.clone());
                continue;
            }
            if self.0.len() >= most && !collected {
                // Names of nodes that have gone make room.
                self.0.retain(|known| Arc::strong_count(known) > 1);
                collected = true;
            }
            if self.0.len() < most {
                let name: Arc<str> = name.into();
                self.0.insert(name.clone());
                admitted.push(name);
            }
        }
        admitted
    }
}

impl Fleet {
    /// True where the node was not known, and is now.
    pub(crate) fn note(
        &self,
        id: NodeId,
        types: &[String],
        lanes: &[Lane],
        free: Option<u32>,
        speaks: u32,
    ) -> bool {
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Members {
            by_id,
            types: known_types,
            lanes: known_lanes,
            full,
        } = &mut *members;
        by_id.retain(|_, m| m.heard.elapsed() < SILENCE);
        if by_id.len() >= MOST_MEMBERS && !by_id.contains_key(&id) {
            if let Some(more) = full.now() {
                tracing::warn!(
                    node = %id, known = MOST_MEMBERS, more,
                    "more nodes say that they live than this node remembers; the others are ignored"
                );
            }
            return false;
        }
        let member = Member {
            types: known_types.admit(types.iter().map(String::as_str), MOST_TYPES),
            lanes: known_lanes.admit(lanes.iter().map(|lane| lane.0.as_str()), MOST_LANES),
            free,
            speaks,
            heard: Instant::now(),
        };
        let ignores = member.types.len() < types.len() || member.lanes.len() < lanes.len();
        if ignores && let Some(more) = full.now() {
            tracing::warn!(
                node = %id, types = MOST_TYPES, lanes = MOST_LANES, more,
                "living nodes name more types or lanes than this node remembers; the others are ignored"
            );
        }
        by_id.insert(id, member).is_none()
    }

    pub(crate) fn forget(&self, id: NodeId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .by_id
            .remove(&id);
    }

    /// Nodes that take jobs which are addressed to them, were heard within this time, and are not among `dead`.
    pub(crate) fn candidates(&self, within: Duration, dead: &HashSet<NodeId>) -> Vec<Candidate> {
        self.members(within, 0, |id| !dead.contains(id))
    }

    /// Other nodes than this one that take forwarded jobs, and were heard within this time.
    pub(crate) fn takers(&self, within: Duration, than: NodeId) -> Vec<Candidate> {
        self.members(within, 1, |id| *id != than)
    }

    fn members(
        &self,
        within: Duration,
        speaks: u32,
        is_meant: impl Fn(&NodeId) -> bool,
    ) -> Vec<Candidate> {
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let candidate = |(id, member): (&NodeId, &Member)| {
            let lives = member.heard.elapsed() <= within && is_meant(id) && member.speaks >= speaks;
            Some(Candidate {
                node: *id,
                types: member.types.clone(),
                lanes: member.lanes.clone(),
                free: member.free.filter(|_| lives)?,
                given: 0,
            })
        };
        let mut candidates: Vec<Candidate> = members.by_id.iter().filter_map(candidate).collect();
        candidates.sort_unstable_by_key(|candidate| candidate.node);
        candidates
    }

    /// Nodes that receive this lane, say which hints they hold, and were heard within this time.
    pub(crate) fn answering(&self, lane: &Lane, within: Duration) -> HashSet<NodeId> {
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answers = |(_, member): &(&NodeId, &Member)| {
            let receives = member.lanes.iter().any(|name| **name == *lane.0);
            member.speaks >= 1 && receives && member.heard.elapsed() <= within
        };
        members
            .by_id
            .iter()
            .filter(answers)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Another node than this one was heard within this time.
    pub(crate) fn hears_others(&self, than: NodeId, within: Duration) -> bool {
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = members.by_id.iter().filter(|(id, _)| **id != than);
        others
            .into_iter()
            .any(|(_, member)| member.heard.elapsed() <= within)
    }

    fn collect(&self, of: impl Fn(&Member) -> &[Arc<str>]) -> Vec<String> {
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashSet<&Arc<str>> = members.by_id.values().flat_map(of).collect();
        let mut all: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn types(&self) -> Vec<String> {
        self.collect(|m| &m.types)
    }

    pub(crate) fn lanes(&self) -> Vec<Lane> {
        self.collect(|m| &m.lanes).into_iter().map(Lane).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(names: impl Iterator<Item = String>) -> Vec<Lane> {
        names.map(Lane).collect()
    }

    #[test]
    fn invented_nodes_are_remembered_within_bounds_and_push_no_other_out() {
        let fleet = Fleet::default();
        let honest = NodeId::generate();
        fleet.note(honest, &["mail".to_owned()], &[Lane::default()], None, 0);
        for n in 0..5_000 {
            let types: Vec<String> = (0..10).map(|t| format!("type-{n}-{t}")).collect();
            let lanes = lanes((0..10).map(|l| format!("lane-{n}-{l}")));
            fleet.note(NodeId::generate(), &types, &lanes, None, 0);
        }
        let members = fleet.0.lock().expect("unpoisoned");
        assert_eq!(members.by_id.len(), MOST_MEMBERS);
        assert!(members.types.0.len() <= MOST_TYPES && members.lanes.0.len() <= MOST_LANES);
        drop(members);
        assert!(fleet.types().contains(&"mail".to_owned()));
        assert!(fleet.lanes().contains(&Lane::default()));
        // One that is known goes on being heard.
        assert!(!fleet.note(honest, &["mail".to_owned()], &[Lane::default()], None, 0));
    }

    #[test]
    fn names_of_nodes_that_left_make_room() {
        let fleet = Fleet::default();
        for n in 0..10 {
            let id = NodeId::generate();
            let lanes = lanes((0..MOST_LANES).map(|l| format!("lane-{n}-{l}")));
            assert!(fleet.note(id, &[], &lanes, None, 0));
            assert_eq!(fleet.lanes().len(), MOST_LANES, "node {n}");
            fleet.forget(id);
        }
    }
}
