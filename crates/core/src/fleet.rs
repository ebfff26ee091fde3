//! The fleet as this node hears it: which nodes live, and what they serve.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::job::{Lane, NodeId};

/// Which nodes live, and what they serve: heard over the broker, forgotten after a silence.
#[derive(Default)]
pub(crate) struct Fleet(Mutex<HashMap<NodeId, Member>>);

struct Member {
    types: Vec<String>,
    lanes: Vec<Lane>,
    /// Free slots; `None` where the node takes no jobs that are addressed to it.
    free: Option<u32>,
    heard: Instant,
}

/// A node that may be given jobs.
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    pub(crate) types: Vec<String>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) free: u32,
    /// Jobs that it was given so far.
    pub(crate) given: u32,
}

impl Candidate {
    pub(crate) fn serves(&self, job_type: &str, lane: &Lane) -> bool {
        self.types.iter().any(|served| served == job_type) && self.lanes.contains(lane)
    }
}

const SILENCE: Duration = Duration::from_secs(120);

impl Fleet {
    /// True where the node was not known.
    pub(crate) fn note(
        &self,
        id: NodeId,
        types: Vec<String>,
        lanes: Vec<Lane>,
        free: Option<u32>,
    ) -> bool {
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|_, m| m.heard.elapsed() < SILENCE);
        let member = Member {
            types,
            lanes,
            free,
            heard: Instant::now(),
        };
        members.insert(id, member).is_none()
    }

    pub(crate) fn forget(&self, id: NodeId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
    }

    /// Nodes that take jobs which are addressed to them, were heard within this time, and are not among `dead`.
    pub(crate) fn candidates(&self, within: Duration, dead: &HashSet<NodeId>) -> Vec<Candidate> {
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let candidate = |(id, member): (&NodeId, &Member)| {
            let lives = member.heard.elapsed() <= within && !dead.contains(id);
            Some(Candidate {
                node: *id,
                types: member.types.clone(),
                lanes: member.lanes.clone(),
                free: member.free.filter(|_| lives)?,
                given: 0,
            })
        };
        let mut candidates: Vec<Candidate> = members.iter().filter_map(candidate).collect();
        candidates.sort_unstable_by_key(|candidate| candidate.node);
        candidates
    }

    /// Another node than this one was heard within this time.
    pub(crate) fn hears_others(&self, than: NodeId, within: Duration) -> bool {
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = members.iter().filter(|(id, _)| **id != than);
        others
            .into_iter()
            .any(|(_, member)| member.heard.elapsed() <= within)
    }

    fn collect<T: Ord>(&self, of: impl Fn(&Member) -> Vec<T>) -> Vec<T> {
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<T> = members.values().flat_map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    pub(crate) fn types(&self) -> Vec<String> {
        self.collect(|m| m.types.clone())
    }

    pub(crate) fn lanes(&self) -> Vec<Lane> {
        self.collect(|m| m.lanes.clone())
    }
}
