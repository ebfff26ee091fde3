//! The fault of a request, which counts once for the circuit breaker of its address.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a request has failed and was counted. The jobs of a list share the fault of their
/// request: each of them hears of it, and the first one counts it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault {
    /// `None` for a request of one job.
    shared: Option<Arc<AtomicBool>>,
}

impl Fault {
    /// Returns the fault of a request that several jobs share.
    pub(crate) fn of_list() -> Self {
        Self {
            shared: Some(Arc::default()),
        }
    }

    /// Returns whether no other job has counted the fault. Counts it.
    pub(crate) fn is_new(&self) -> bool {
        let shared = self.shared.as_ref();
        shared.is_none_or(|counted| !counted.swap(true, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_of_a_list_count_one_fault_together() {
        let list = Fault::of_list();
        let jobs = [list.clone(), list.clone(), list];
        let counted = jobs.iter().filter(|fault| fault.is_new());
        assert_eq!(counted.count(), 1);
        assert!(Fault::of_list().is_new(), "another list");
        assert!(Fault::default().is_new() && Fault::default().is_new());
    }
}
