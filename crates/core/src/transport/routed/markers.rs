//! Markers that travel several brokers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hint::Marker;

/// Markers under way that are remembered.
const MOST: usize = 256;
/// Numbers of markers to former brokers begin here; a sweeper counts from one.
const FORMER: u64 = 1 << 48;

/// Those that are under way.
pub(super) struct Markers {
    under_way: Mutex<Vec<Split>>,
    next: AtomicU64,
}

/// One marker of the sweeper, as it travels: itself on the lane's broker, others on the former ones.
struct Split {
    marker: Marker,
    /// Numbers that are not back yet.
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

    /// Before they leave, since one may be back at once: the markers that travel so many former brokers for this one.
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

    /// A marker is back. Which one of the sweeper's is back with it, if any.
    pub(super) fn back(&self, marker: Marker) -> Option<Marker> {
        let is_of =
            |split: &Split| split.marker.node == marker.node && split.left.contains(&marker.number);
        let mut under_way = self.under_way();
        let Some(at) = under_way.iter().position(is_of) else {
            // It travelled alone, or is another node's.
            let known = under_way.iter().any(|split| split.marker == marker);
            return (!known && marker.number < FORMER).then_some(marker);
        };
        let split = &mut under_way[at];
        split.left.retain(|number| *number != marker.number);
        let complete = split.left.is_empty();
        complete.then(|| under_way.swap_remove(at).marker)
    }

    /// This one was not sent to its former broker, and is not waited for.
    pub(super) fn forget(&self, other: Marker) {
        for split in self.under_way().iter_mut() {
            if split.marker.node == other.node {
                split.left.retain(|number| *number != other.number);
            }
        }
    }

    /// The lane's own was not sent: none of them is waited for.
    pub(super) fn remove(&self, marker: Marker) {
        self.under_way().retain(|split| split.marker != marker);
    }
}
