//! Suspects: jobs that run alone, because their holders died.
//!
//! [`quarantine`](crate::worker::quarantine) describes the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of strikes that makes a job a suspect. The statements of the stores contain the same
/// number.
const SUSPECT: i32 = 2;

/// Returns whether a job with this many strikes runs alone.
pub(crate) const fn is_suspect(strikes: i32) -> bool {
    strikes >= SUSPECT
}

/// The number of suspects that wait or run on a node.
#[derive(Debug, Default)]
pub(crate) struct Suspects(Arc<AtomicUsize>);

impl Suspects {
    /// Returns whether there is a suspect. As long as there is one, the node takes no other job.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Counts one suspect until the returned guard is dropped.
    pub(crate) fn enter(&self) -> Suspect {
        self.0.fetch_add(1, Ordering::Relaxed);
        Suspect(self.0.clone())
    }
}

/// Counts one suspect until it is dropped.
pub(crate) struct Suspect(Arc<AtomicUsize>);

impl Drop for Suspect {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
