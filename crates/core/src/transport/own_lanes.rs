//! The lanes whose queues or topics a process may create on the broker.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use crate::job::Lane;

/// The lanes that a process may create: those that it receives, and `default`. A row may name any
/// lane, so a publisher that created every lane would fill the broker with queues that no node
/// receives. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct OwnLanes(Arc<RwLock<BTreeSet<Lane>>>);

impl OwnLanes {
    /// Adds lanes that this process receives.
    pub fn add(&self, lanes: &[Lane]) {
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        own.extend(lanes.iter().cloned());
    }

    /// Returns whether this process may create the lane.
    #[must_use]
    pub fn contains(&self, lane: &Lane) -> bool {
        let own = self.0.read().unwrap_or_else(PoisonError::into_inner);
        lane.0 == Lane::DEFAULT || own.contains(lane)
    }
}
