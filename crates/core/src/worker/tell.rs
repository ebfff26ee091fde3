//! The events of the jobs that a node runs ([`crate::event`]). Nothing here is called without a
//! listener.
//!
//! The events of an outcome are told after its commit, and before the next jobs of the batch start.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::event::{JobEvent, JobEventKind, Listeners};
use crate::hint::Ready;
use crate::job::{Fence, Job, JobId, NodeId};
use crate::store::{
    BatchOutcome, CANCELLED, Completion, Destination, Failure, MovedTimers, Release,
};
use crate::worker::attempt::Attempt;
use crate::worker::context::NodeContext;

/// Tells the listeners of a node.
#[derive(Clone, Copy)]
pub(crate) struct Teller<'a> {
    listeners: &'a Listeners,
    node: NodeId,
}

impl NodeContext {
    /// Returns the teller, if anyone listens.
    pub(crate) fn teller(&self) -> Option<Teller<'_>> {
        let listeners = self.hook.listeners();
        let node = self.id;
        listeners.any().then_some(Teller { listeners, node })
    }
}

impl Teller<'_> {
    fn tell(self, event: JobEvent) {
        self.listeners.tell(event.by(self.node));
    }

    fn tell_of(self, job: &Job, kind: JobEventKind) {
        self.tell(JobEvent::of(job, kind));
    }

    pub(crate) fn locked(self, job: &Job, fence: Fence) {
        self.tell_of(job, JobEventKind::Locked { fence });
    }

    pub(crate) fn started(self, job: &Job) {
        self.tell_of(job, JobEventKind::Started);
    }

    /// Tells which timers the leader has moved.
    pub(crate) fn fired(self, moved: &MovedTimers) {
        for ready in &moved.ready {
            self.tell(JobEvent::of_ready(ready, JobEventKind::TimerFired));
        }
        for locked in &moved.locked {
            self.tell_of(&locked.job, JobEventKind::TimerFired);
        }
    }

    /// Tells which jobs of a schedule the leader has created.
    pub(crate) fn created(self, jobs: &[Ready]) {
        for ready in jobs {
            self.tell(JobEvent::of_ready(ready, JobEventKind::Created));
        }
    }

    /// Tells of a job that waits for a permit in the database, or was deleted there instead.
    pub(crate) fn parked(self, job: &Job, cancelled: bool) {
        let kind = match cancelled {
            true => JobEventKind::Cancelled,
            false => JobEventKind::Rejected,
        };
        self.tell_of(job, kind);
    }

    /// Tells of a job that was deleted, since an operator had cancelled it: its holder has died, or does not
    /// run it.
    pub(crate) fn cancelled(self, job: JobId) {
        self.tell(JobEvent::of_id(job, JobEventKind::Cancelled));
    }

    /// Tells of a job whose completion has committed, and of its next occurrence.
    pub(crate) fn completed(self, job: &Job, done: &Completion, settled: &BatchOutcome) {
        if settled.set_aside.contains(&job.id) {
            return self.refused(job);
        }
        self.tell_of(job, JobEventKind::Succeeded);
        self.followed(done, settled);
    }

    fn followed(self, done: &Completion, settled: &BatchOutcome) {
        let Some(next) = &done.next else { return };
        if !settled.created.contains(&next.id) {
            return;
        }
        self.tell(JobEvent::of_new(next, JobEventKind::Created));
        let is_ready = settled.ready.iter().any(|ready| ready.hint.id == next.id);
        if let Some(due_at) = next.due_at.filter(|_| !is_ready) {
            let kind = JobEventKind::TimerScheduled { due_at };
            self.tell(JobEvent::of_new(next, kind));
        }
    }

    /// Tells of a job that the database refused to settle, and that became a dead letter.
    fn refused(self, job: &Job) {
        let message = "the database refused the row of the job".to_owned();
        self.tell_of(job, JobEventKind::DeadLettered);
        self.tell_of(job, JobEventKind::IncidentOpened { message });
    }

    /// Tells of a job whose failure or snooze has committed.
    fn failed(self, job: &Job, failure: &Failure) {
        let error = failure.message.clone();
        let (retries, due_at) = match &failure.to {
            Destination::Retry {
                delay,
                since,
                retries,
                ..
            } => {
                let now = Utc::now();
                let from = since.map_or(now, |date| date.min(now));
                let wait = chrono::Duration::from_std(*delay).unwrap_or(chrono::Duration::MAX);
                let due_at = from.checked_add_signed(wait);
                (*retries, Some(due_at.unwrap_or(DateTime::<Utc>::MAX_UTC)))
            }
            Destination::RetryAt {
                due_at, retries, ..
            } => (*retries, Some(*due_at)),
            Destination::DeadLetter => (0, None),
        };
        if let (None, Some(_)) = (&error, due_at) {
            return self.tell_of(job, JobEventKind::Rescheduled { due_at });
        }
        let error = error.unwrap_or_default();
        let message = error.clone();
        self.tell_of(job, JobEventKind::Failed { error, retries });
        if retries < job.retries {
            self.tell_of(job, JobEventKind::RetriesDecremented { retries });
        }
        match due_at {
            Some(due_at) => self.tell_of(job, JobEventKind::TimerScheduled { due_at }),
            None => {
                self.tell_of(job, JobEventKind::DeadLettered);
                self.tell_of(job, JobEventKind::IncidentOpened { message });
            }
        }
    }
}

/// The jobs of a batch of outcomes, for the events of its commit. Empty without a listener.
pub(crate) struct Told<'a> {
    teller: Option<Teller<'a>>,
    /// Each job, and whether an operator's cancel has ended its attempt.
    jobs: HashMap<JobId, (Arc<Job>, bool)>,
}

impl<'a> Told<'a> {
    /// Notes the jobs of these attempts.
    pub(crate) fn of<'b>(
        node: &'a NodeContext,
        attempts: impl IntoIterator<Item = &'b Attempt>,
    ) -> Self {
        let teller = node.teller();
        let mut jobs = HashMap::new();
        if teller.is_some() {
            for attempt in attempts {
                let cancelled = attempt.outcome == CANCELLED;
                jobs.insert(attempt.job.id, (attempt.job.clone(), cancelled));
            }
        }
        Self { teller, jobs }
    }

    /// Calls `tell` for each of the outcomes that has committed.
    fn each<T>(
        &self,
        outcomes: &[T],
        id_of: impl Fn(&T) -> JobId,
        settled: &BatchOutcome,
        tell: impl Fn(Teller<'a>, &Job, &T),
    ) {
        let Some(teller) = self.teller else { return };
        let mut applied: HashSet<JobId> = settled.applied.iter().copied().collect();
        for outcome in outcomes {
            let id = id_of(outcome);
            // A job that was lost and locked again may occur twice, and is told once.
            if let Some((job, cancelled)) = self.jobs.get(&id)
                && applied.remove(&id)
            {
                if *cancelled || settled.cancelled.contains(&id) {
                    teller.tell_of(job, JobEventKind::Cancelled);
                } else if settled.set_aside.contains(&id) {
                    teller.refused(job);
                } else {
                    tell(teller, job, outcome);
                }
            }
        }
    }

    /// Tells of completions.
    pub(crate) fn completed(&self, done: &[Completion], settled: &BatchOutcome) {
        self.each(
            done,
            |done| done.held.id,
            settled,
            |teller, job, done| {
                teller.completed(job, done, settled);
            },
        );
    }

    /// Tells of failures.
    pub(crate) fn failed(&self, failed: &[Failure], settled: &BatchOutcome) {
        self.each(
            failed,
            |failure| failure.held.id,
            settled,
            |teller, job, failure| {
                teller.failed(job, failure);
            },
        );
    }

    /// Tells of releases.
    pub(crate) fn released(&self, released: &[Release], settled: &BatchOutcome) {
        self.each(
            released,
            |released| released.held.id,
            settled,
            |teller, job, _| {
                teller.tell_of(job, JobEventKind::Rejected);
            },
        );
    }
}
