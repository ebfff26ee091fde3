//! The events of the client's operations on existing jobs ([`crate::event`]).
//!
//! An operation does not tell what state a job had. So the open incidents of the jobs are found by a
//! query before it, which runs only if anyone listens.

use std::collections::HashSet;

use crate::event::{JobEvent, JobEventKind};
use crate::job::JobId;
use crate::producer::client::Client;
use crate::store::{Change, Operated, SqlStore};

/// The jobs with an open incident before an operation.
pub(super) type Open = HashSet<JobId>;

impl<S: SqlStore> Client<S> {
    /// Returns those of the jobs that have an open incident; none without a listener.
    pub(super) async fn open_incidents(&self, jobs: &[JobId]) -> Open {
        if jobs.is_empty() || !self.hook.listeners().any() {
            return Open::new();
        }
        match self.store.open_incidents(jobs).await {
            Ok(open) => open.into_iter().collect(),
            // The operation itself may succeed.
            Err(error) => {
                tracing::warn!(
                    %error, jobs = jobs.len(),
                    "could not find the incidents of jobs; listeners are not told which of them \
                     the next operation closes"
                );
                Open::new()
            }
        }
    }

    /// Tells of the jobs that an operation has changed, and of the incidents that it has closed.
    pub(super) fn tell(&self, operated: &[(JobId, Operated)], open: &Open, kind: &JobEventKind) {
        let listeners = self.hook.listeners();
        if !listeners.any() {
            return;
        }
        for job in done(operated) {
            listeners.tell(JobEvent::of_id(job, kind.clone()));
            if open.contains(&job) {
                listeners.tell(JobEvent::of_id(job, JobEventKind::IncidentClosed));
            }
        }
    }

    /// Tells of the jobs that a change has applied to.
    pub(super) fn tell_change(&self, operated: &[(JobId, Operated)], change: &Change) {
        let listeners = self.hook.listeners();
        if !listeners.any() {
            return;
        }
        let kinds = match change {
            Change::MakeExecutable => vec![JobEventKind::Rescheduled { due_at: None }],
            Change::Reschedule(date) => vec![JobEventKind::Rescheduled {
                due_at: Some(*date),
            }],
            Change::MakeDeadLetter(reason) => vec![
                JobEventKind::DeadLettered,
                JobEventKind::IncidentOpened {
                    message: reason.clone(),
                },
            ],
            Change::Suspend | Change::Activate | Change::SetRetries(_) | Change::SetPriority(_) => {
                return;
            }
        };
        for job in done(operated) {
            for kind in &kinds {
                listeners.tell(JobEvent::of_id(job, kind.clone()));
            }
        }
    }
}

fn done(operated: &[(JobId, Operated)]) -> impl Iterator<Item = JobId> {
    let done = operated.iter().filter(|(_, how)| *how == Operated::Done);
    done.map(|(job, _)| *job)
}
