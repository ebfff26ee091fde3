//! The jobs that a transaction created. They are hinted after its commit.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};

use crate::event::{JobEvent, JobEventKind};
use crate::hint::Ready;
use crate::job::JobId;
use crate::job::new_job::NewJob;
use crate::store::Ended;

/// The jobs created in a transaction that has not committed yet.
#[derive(Debug, Default)]
pub struct Created {
    /// Jobs to hint after the commit.
    pub ready: Vec<Ready>,
    /// Unique jobs that were not created, each with the job that has its key.
    pub existing: Vec<(JobId, JobId)>,
    /// The earliest due date among the timers.
    pub timer: Option<DateTime<Utc>>,
    /// Other jobs to hint after the commit: the next ones of instances that jobs have left.
    pub(crate) next: Vec<Ready>,
    /// Jobs whose handlers are asked to stop after the commit.
    pub(crate) stop: Vec<JobId>,
    /// The events to tell after the commit; none without a listener.
    pub(crate) events: Vec<JobEvent>,
    /// One of the jobs, in any state. Its row exists only if the transaction has committed.
    pub(crate) witness: Option<JobId>,
    /// The name of the transaction, to ask for its fate after a lost answer to COMMIT; see
    /// [`Store::committed`](crate::Store::committed).
    pub transaction: Option<TransactionId>,
}

impl Created {
    /// Adds the jobs that another statement of the same transaction created.
    pub fn merge(&mut self, other: Self) {
        self.ready.extend(other.ready);
        self.existing.extend(other.existing);
        self.timer = earliest(self.timer, other.timer);
        self.next.extend(other.next);
        self.stop.extend(other.stop);
        self.events.extend(other.events);
        self.witness = self.witness.or(other.witness);
        self.transaction = self.transaction.take().or(other.transaction);
    }

    /// Takes out the jobs that the end of a scope deletes in the same transaction: they get no hint.
    pub(crate) fn end(&mut self, ended: &Ended) {
        let deleted: HashSet<&JobId> = ended.deleted.iter().collect();
        self.ready.retain(|job| !deleted.contains(&job.hint.id));
        self.next.retain(|job| !deleted.contains(&job.hint.id));
        let other = self.ready.first().map(|job| job.hint.id);
        self.witness = self.witness.filter(|job| !deleted.contains(job)).or(other);
        self.next.extend(ended.ready.iter().cloned());
        self.stop.extend(&ended.running);
    }
}

impl Created {
    /// Returns the jobs that these ids stand for: of a unique job that was not created, the one
    /// that has its key.
    pub(crate) fn stands_for(&self, mut ids: Vec<JobId>) -> Vec<JobId> {
        if !self.existing.is_empty() {
            let existing: HashMap<JobId, JobId> = self.existing.iter().copied().collect();
            for id in &mut ids {
                *id = existing.get(id).copied().unwrap_or(*id);
            }
        }
        ids
    }
}

/// The events of new jobs, as far as they are known before the insertion.
#[derive(Default)]
pub(crate) struct Noted(Vec<(JobEvent, Option<DateTime<Utc>>)>);

impl Noted {
    /// Notes the jobs, if anyone listens.
    pub(crate) fn of(listens: bool, jobs: &[NewJob]) -> Self {
        if !listens {
            return Self::default();
        }
        let note = |job: &NewJob| (JobEvent::of_new(job, JobEventKind::Created), job.due_at);
        Self(jobs.iter().map(note).collect())
    }

    /// Adds the events of the jobs that were created.
    pub(crate) fn note(self, created: &mut Created) {
        if self.0.is_empty() {
            return;
        }
        let ready: HashSet<JobId> = created.ready.iter().map(|ready| ready.hint.id).collect();
        let existing: HashSet<JobId> = created.existing.iter().map(|(id, _)| *id).collect();
        for (event, due_at) in self.0 {
            if existing.contains(&event.job) {
                continue;
            }
            // The first date of a repeating job is known with the insertion.
            let due_at = due_at.or(created.timer);
            let waits = due_at.filter(|_| !ready.contains(&event.job));
            let timer = waits.map(|due_at| JobEvent {
                kind: JobEventKind::TimerScheduled { due_at },
                ..event.clone()
            });
            created.events.push(event);
            created.events.extend(timer);
        }
    }
}

/// Returns the events of jobs that were deleted, in the scope of an end.
pub(crate) fn events_of_end(ended: &Ended) -> Vec<JobEvent> {
    let cancelled = ended.deleted.iter();
    let cancelled = cancelled.map(|id| JobEvent::of_id(*id, JobEventKind::Cancelled));
    let closed = ended.dead_letters.iter();
    let closed = closed.map(|id| JobEvent::of_id(*id, JobEventKind::IncidentClosed));
    cancelled.chain(closed).collect()
}

/// The name of a transaction in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionId(pub String);

/// Returns the earlier of two due dates, or the only one.
pub(crate) fn earliest(
    a: Option<DateTime<Utc>>,
    b: Option<DateTime<Utc>>,
) -> Option<DateTime<Utc>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Hint;
    use crate::job::Lane;

    #[test]
    fn a_job_that_its_own_transaction_deletes_gets_no_hint() {
        let ready = || Ready {
            lane: Lane::default(),
            hint: Hint::new(JobId::generate()),
        };
        let (gone, stays, next) = (ready(), ready(), ready());
        let mut created = Created {
            witness: Some(gone.hint.id),
            ready: vec![gone.clone(), stays.clone()],
            ..Created::default()
        };
        created.end(&Ended {
            deleted: vec![gone.hint.id],
            ready: vec![next.clone()],
            ..Ended::default()
        });
        let id = |ready: &Ready| ready.hint.id;
        assert_eq!(
            created.ready.iter().map(id).collect::<Vec<_>>(),
            [id(&stays)]
        );
        assert_eq!(created.next.iter().map(id).collect::<Vec<_>>(), [id(&next)]);
        // The row that shows the commit must be one that stays.
        assert_eq!(created.witness, Some(stays.hint.id));
    }
}
