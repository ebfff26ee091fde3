//! Markers that travel several brokers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hint::Marker;

/// Maximum number of markers under way that are remembered.
const MOST: usize = 256;
/// The first number of markers to former brokers; a sweeper counts from one.
const FORMER: u64 = 1 << 48;

/// The markers under way.
pub(super) struct Markers {
    under_way: Mutex<Vec<Split>>,
    next: AtomicU64,
}

/// A marker of the sweeper and its parts: itself on the lane's broker, others on the former
/// brokers.
struct Split {
    marker: Marker,
    /// The numbers of the parts that are not back yet.
    left: Vec<u64>,
}

impl Default for Markers {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
            next: AtomicU64::new(FORMER),
        }
    }
}

impl Markers {
    fn under_way(&self) -> MutexGuard<'_, Vec<Split>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a marker and returns its parts for `former` former brokers. Called before the
    /// parts are published, because one may be back at once.
    pub(super) fn split(&self, marker: Marker, former: usize) -> Vec<Marker> {
        let another = || Marker {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            ..marker
        };
        let others: Vec<Marker> = std::iter::repeat_with(another).take(former).collect();
        let numbers = others.iter().map(|other| other.number);
        let left = std::iter::once(marker.number).chain(numbers).collect();
        let mut under_way = self.under_way();
        if under_way.len() >= MOST {
            under_way.remove(0);
        }
        under_way.push(Split { marker, left });
        others
    }

    /// Records that a part is back. Returns the sweeper's marker if all its parts are back now.
    pub(super) fn back(&self, marker: Marker) -> Option<Marker> {
        let is_of =
            |split: &Split| split.marker.node == marker.node && split.left.contains(&marker.number);
        let mut under_way = self.under_way();
        let Some(at) = under_way.iter().position(is_of) else {
            // The marker travelled alone, or belongs to another node.
            let known = under_way.iter().any(|split| split.marker == marker);
            return (!known && marker.number < FORMER).then_some(marker);
        };
        let split = &mut under_way[at];
        split.left.retain(|number| *number != marker.number);
        let complete = split.left.is_empty();
        complete.then(|| under_way.swap_remove(at).marker)
    }

    /// Forgets a part that was not published to its former broker.
    pub(super) fn forget(&self, other: Marker) {
        for split in self.under_way().iter_mut() {
            if split.marker.node == other.node {
                split.left.retain(|number| *number != other.number);
            }
        }
    }

    /// Forgets a marker whose part on the lane's own broker was not published.
    pub(super) fn remove(&self, marker: Marker) {
        self.under_way().retain(|split| split.marker != marker);
    }
}
