//! The slots of a node: its share of the process's slots, and the slots of types with their own
//! limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::worker::slot_pool::Share;

/// The slots of a node.
pub(crate) struct Slots {
    /// The slots of all types together.
    pub(crate) of_node: Share,
    /// The slots of the types that have their own limit and were run.
    of_types: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Slots {
    /// Returns the slots of a node with this share.
    pub(crate) fn new(of_node: Share) -> Self {
        Self {
            of_node,
            of_types: Mutex::default(),
        }
    }

    /// Returns the slots of a type, of which at most `limit` jobs run at once.
    pub(crate) fn of_type(&self, job_type: &str, limit: usize) -> Arc<Semaphore> {
        let mut slots = self.of_types.lock().unwrap_or_else(PoisonError::into_inner);
        slots
            .entry(job_type.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(limit)))
            .clone()
    }

    /// Forgets the slots of a type, whose new handler may have another limit. Running jobs
    /// continue.
    pub(crate) fn forget_type(&self, job_type: &str) {
        let mut slots = self.of_types.lock().unwrap_or_else(PoisonError::into_inner);
        slots.remove(job_type);
    }
}
