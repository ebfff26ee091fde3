//! The slots of a node: room for its running jobs, in total and by type.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots of a node.
pub(crate) struct Slots {
    /// The slots of all types together.
    pub(crate) of_node: Arc<Semaphore>,
    /// The slots of the types that have a limit of their own and were run.
    of_types: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Slots {
    /// Returns the slots of a node that runs at most `concurrency` jobs at once.
    pub(crate) fn new(concurrency: usize) -> Self {
        Self {
            of_node: Arc::new(Semaphore::new(concurrency)),
            of_types: Mutex::default(),
        }
    }

    /// Returns the number of free slots.
    pub(crate) fn free(&self) -> usize {
        self.of_node.available_permits()
    }

    /// Takes a slot if one is free.
    pub(crate) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        self.of_node.clone().try_acquire_owned().ok()
    }

    /// Returns the slots of a type, of which at most `limit` jobs run at once.
    pub(crate) fn of_type(&self, job_type: &str, limit: usize) -> Arc<Semaphore> {
        let mut slots = self.of_types.lock().unwrap_or_else(PoisonError::into_inner);
        slots
            .entry(job_type.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(limit)))
            .clone()
    }

    /// Forgets the slots of a type, whose new handler may have another limit. Jobs that run go on.
    pub(crate) fn forget_type(&self, job_type: &str) {
        let mut slots = self.of_types.lock().unwrap_or_else(PoisonError::into_inner);
        slots.remove(job_type);
    }
}
