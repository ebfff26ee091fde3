//! The events of the client's operations on existing jobs ([`crate::event`]).
//!
//! An operation does not tell what state a job had. So the open incidents of the jobs are found by a
//! query before it, which runs only if anyone listens.

use crate::job::JobId;
use crate::producer::client::Client;
use crate::store::{Action, Operated, SqlStore};

impl<S: SqlStore> Client<S> {
    /// Returns those of the jobs that have an open incident; none without a listener.
    pub(super) async fn open_incidents(&self, jobs: &[JobId]) -> Vec<JobId> {
        if jobs.is_empty() || !self.hook.listeners().any() {
            return Vec::new();
        }
        match self.store.open_incidents(jobs).await {
            Ok(open) => open,
            // The operation itself may succeed.
            Err(error) => {
                tracing::warn!(
                    %error, jobs = jobs.len(),
                    "could not find the incidents of jobs; listeners are not told which of them \
                     the next operation closes"
                );
                Vec::new()
            }
        }
    }

    /// Tells of the jobs that an operation has changed, and of the incidents that it has closed.
    pub(super) fn tell(&self, action: &Action, operated: &[(JobId, Operated)], open: &[JobId]) {
        let listeners = self.hook.listeners();
        if !listeners.any() {
            return;
        }
        for event in action.events(operated, open) {
            listeners.tell(event);
        }
    }
}
