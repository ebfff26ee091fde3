//! The fleet as this node hears it: which nodes live, and what they serve.

use std::collections::HashMap;
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
    heard: Instant,
}

const SILENCE: Duration = Duration::from_secs(120);

impl Fleet {
    /// True where the node was not known.
    pub(crate) fn note(&self, id: NodeId, types: Vec<String>, lanes: Vec<Lane>) -> bool {
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|_, m| m.heard.elapsed() < SILENCE);
        let member = Member {
            types,
            lanes,
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
