//! Which queues and topics a process makes on the broker where they are missing.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use crate::job::Lane;

/// The lanes that a process may make: those that it receives, and `default`. A row may name any lane, and
/// whoever writes rows chooses the name: a publisher that made each of them would fill the broker with queues
/// that no node receives. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct OwnLanes(Arc<RwLock<BTreeSet<Lane>>>);

impl OwnLanes {
    /// This process receives these.
    pub fn add(&self, lanes: &[Lane]) {
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        own.extend(lanes.iter().cloned());
    }

    /// May this process make the lane?
    #[must_use]
    pub fn contains(&self, lane: &Lane) -> bool {
        let own = self.0.read().unwrap_or_else(PoisonError::into_inner);
        lane.0 == Lane::DEFAULT || own.contains(lane)
    }
}
