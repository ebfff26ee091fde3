//! The slots of a node: its share of the process's slots, and the slots of types with their own
//! limit.
//!
//! A job of such a type needs a slot of the node and one of its type. The slot of the type is taken
//! before the job is locked, as far as its type is known by then, and goes to the job with the slot
//! of the node. A job that was locked without one and finds none free is released at once. So no job
//! holds a lease or a slot of the node while it waits for a slot of its type.
//!
//! The next job of an instance takes the slot of the one that ended. A long chain of such jobs would
//! keep its slot for ever. So while jobs wait for a slot, one batch of ended jobs in each [`SHARED`] hints
//! the next jobs of their instances, and its slots go to those that wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::worker::slot_pool::Share;

/// See the [module](self). A job that is hinted costs more than one that takes the slot of its
/// predecessor: sharing by one of 16 batches cost 512 short chains a quarter of their rate.
const SHARED: Duration = Duration::from_millis(250);

/// The slots of a node.
pub(crate) struct Slots {
    /// The slots of all types together.
    pub(crate) of_node: Share,
    /// The slots of the types that have their own limit and were looked for.
    of_types: Mutex<HashMap<String, Arc<TypeSlots>>>,
    /// Changes when a slot of a type is free again.
    freed: Arc<watch::Sender<()>>,
    /// The time from which the slots of a batch may be shared.
    shares_from: Mutex<Instant>,
}

impl Slots {
    /// Returns the slots of a node with this share.
    pub(crate) fn new(of_node: Share) -> Self {
        Self {
            of_node,
            of_types: Mutex::default(),
            freed: Arc::new(watch::Sender::new(())),
            shares_from: Mutex::new(Instant::now() + SHARED),
        }
    }

    /// Returns whether the slots of a batch of ended jobs go to jobs that wait for one, instead of the
    /// next jobs of their instances.
    pub(crate) fn share_out(&self) -> bool {
        let now = Instant::now();
        let mut from = (self.shares_from.lock()).unwrap_or_else(PoisonError::into_inner);
        let shares = *from <= now && self.of_node.is_wanted();
        if shares {
            *from = now + SHARED;
        }
        shares
    }

    /// Returns the slots of a type, of which at most `limit` jobs run at once.
    pub(crate) fn of_type(&self, job_type: &str, limit: usize) -> Arc<TypeSlots> {
        let mut slots = self.of_types.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slots) = slots.get(job_type) {
            return slots.clone();
        }
        let new = Arc::new(TypeSlots {
            job_type: job_type.to_owned(),
            limit,
            taken: AtomicUsize::new(0),
            freed: self.freed.clone(),
        });
        slots.insert(job_type.to_owned(), new.clone());
        new
    }

    /// Forgets the slots of a type, whose new handler may have another limit. Running jobs
    /// continue.
    pub(crate) fn forget_type(&self, job_type: &str) {
        let mut slots = self.of_types.lock().unwrap_or_else(PoisonError::into_inner);
        slots.remove(job_type);
        drop(slots);
        self.freed.send_replace(());
    }

    /// Returns a receiver that changes when a slot of a type is free again.
    pub(crate) fn freed(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }
}

/// The slots of a type with its own limit.
#[derive(Debug)]
pub(crate) struct TypeSlots {
    job_type: String,
    limit: usize,
    taken: AtomicUsize,
    freed: Arc<watch::Sender<()>>,
}

impl TypeSlots {
    /// Returns the number of free slots.
    pub(crate) fn free(&self) -> usize {
        self.limit.saturating_sub(self.taken.load(Ordering::SeqCst))
    }

    /// Returns the number of slots.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes a slot, if one is free.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<TypeSlot> {
        let one_more = |taken| (taken < self.limit).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more)
            .ok()
            .map(|_| TypeSlot(self.clone()))
    }
}

/// A slot of a type. Dropping it frees it.
#[derive(Debug)]
pub(crate) struct TypeSlot(Arc<TypeSlots>);

impl TypeSlot {
    /// Returns whether it is one of these slots.
    pub(crate) fn is_of(&self, slots: &Arc<TypeSlots>) -> bool {
        Arc::ptr_eq(&self.0, slots)
    }

    /// Removes and returns a slot of this type.
    pub(crate) fn take_from(slots: &mut Vec<Self>, job_type: &str) -> Option<Self> {
        let at = slots.iter().position(|slot| slot.0.job_type == job_type)?;
        Some(slots.swap_remove(at))
    }
}

impl Drop for TypeSlot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
        self.0.freed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_of_a_type_is_free_again_when_it_is_dropped() {
        let freed = Arc::new(watch::Sender::new(()));
        let mut seen = freed.subscribe();
        let slots = |job_type: &str| {
            Arc::new(TypeSlots {
                job_type: job_type.to_owned(),
                limit: 2,
                taken: AtomicUsize::new(0),
                freed: freed.clone(),
            })
        };
        let (mail, fax) = (slots("mail"), slots("fax"));
        let mut taken: Vec<TypeSlot> = std::iter::from_fn(|| mail.try_take()).collect();
        assert_eq!((taken.len(), mail.free(), fax.free()), (2, 0, 2));
        assert!(!seen.has_changed().unwrap());
        assert!(TypeSlot::take_from(&mut taken, "fax").is_none());
        let one = TypeSlot::take_from(&mut taken, "mail").unwrap();
        assert!(one.is_of(&mail) && !one.is_of(&fax) && mail.free() == 0);
        drop(one);
        assert!(mail.free() == 1 && seen.has_changed().unwrap());
        seen.mark_unchanged();
        assert!(mail.try_take().is_some(), "and dropped at once");
        assert!(seen.has_changed().unwrap());
    }
}
