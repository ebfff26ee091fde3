//! The events of the client's operations on existing jobs ([`crate::event`]).
//!
//! An operation does not know what state a job had. So the incidents that it has closed are found by
//! a query after it, which runs only if anyone listens.

use tokio::time::Instant;

use crate::event::{JobEvent, JobEventKind};
use crate::job::JobId;
use crate::producer::client::Client;
use crate::store::{Change, Operated, SqlStore};

impl<S: SqlStore> Client<S> {
    /// Tells of an operation on one job, and of the incident that it has closed.
    pub(super) async fn tell_one(
        &self,
        job: JobId,
        operated: Operated,
        since: Instant,
        kind: impl Fn() -> JobEventKind,
    ) {
        self.tell(&[(job, operated)], since, kind).await;
    }

    /// Tells of the jobs that an operation has changed since this moment, and of the incidents that
    /// it has closed.
    pub(super) async fn tell(
        &self,
        operated: &[(JobId, Operated)],
        since: Instant,
        kind: impl Fn() -> JobEventKind,
    ) {
        let listeners = self.hook.listeners();
        if !listeners.any() {
            return;
        }
        let done: Vec<JobId> = done(operated).collect();
        if done.is_empty() {
            return;
        }
        for job in &done {
            listeners.tell(JobEvent::of_id(*job, kind()));
        }
        match self.store.closed_incidents(&done, since.elapsed()).await {
            Ok(closed) => {
                for job in closed {
                    listeners.tell(JobEvent::of_id(job, JobEventKind::IncidentClosed));
                }
            }
            // The operation itself has succeeded.
            Err(error) => tracing::warn!(
                %error, jobs = done.len(),
                "could not find the incidents that an operation has closed; listeners are not told \
                 of them"
            ),
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
