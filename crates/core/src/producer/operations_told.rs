//! The events of the client's operations on existing jobs ([`crate::event`]).
//!
//! An operation does not tell what state a job had. So the open incidents of the jobs are found by a
//! query before it, which runs only if anyone listens.

use crate::job::JobId;
use crate::producer::client::Client;
use crate::store::transaction::operations::unknown_incidents;
use crate::store::{Action, Operated, SqlStore};

impl<S: SqlStore> Client<S> {
    /// Returns those of the jobs that have an open incident; none without a listener.
    pub(super) async fn open_incidents(&self, jobs: &[JobId]) -> Vec<JobId> {
        if jobs.is_empty() || !self.hook.listeners().any() {
            return Vec::new();
        }
        let open = self.store.open_incidents(jobs).await;
        open.unwrap_or_else(|error| unknown_incidents(&error, jobs.len()))
    }

    /// Tells of the jobs that an operation has changed, and of the incidents that it has closed.
    pub(super) fn tell(&self, action: &Action, operated: &[(JobId, Operated)], open: &[JobId]) {
        self.tell_of(action, operated, &[], open);
    }

    /// Like [`tell`](Self::tell). An unlock has deleted the jobs in `cancelled`.
    pub(super) fn tell_of(
        &self,
        action: &Action,
        operated: &[(JobId, Operated)],
        cancelled: &[JobId],
        open: &[JobId],
    ) {
        let listeners = self.hook.listeners();
        if !listeners.any() {
            return;
        }
        for event in action.events(operated, cancelled, open) {
            listeners.tell(event);
        }
    }
}
