//! A limit of a node's slots that may change while the node runs.
//!
//! A job of a bridge holds its slot from its lock until the commit of its outcome. It runs in the
//! engine only in between. The number of slots that keep the engine busy depends on the duration of
//! its executions, so the bridge changes this number while the node runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of slots that a node uses now, of its
/// [`concurrency`](crate::NodeOptions::concurrency). Clones share the number. After a decrease,
/// running jobs keep their slots.
///
/// ```
/// use jobwire_core::SlotLimit;
///
/// let limit = SlotLimit::new(8);
/// limit.clone().set(12);
/// assert_eq!(limit.slots(), 12);
/// ```
#[derive(Clone, Debug)]
pub struct SlotLimit(Arc<AtomicUsize>);

impl SlotLimit {
    /// Creates a limit of `slots` slots, at least one.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(slots.max(1))))
    }

    /// Sets the number of slots, at least one. An increase takes effect when a job ends or the next
    /// hint arrives.
    pub fn set(&self, slots: usize) {
        self.0.store(slots.max(1), Ordering::Relaxed);
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
