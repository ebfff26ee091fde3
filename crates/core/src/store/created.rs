//! What a transaction created and changed. Its jobs are hinted after its commit.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};

use crate::event::{JobEvent, JobEventKind};
use crate::hint::Ready;
use crate::job::JobId;
use crate::job::new_job::NewJob;
use crate::store::transaction::gates::GatesChanged;
use crate::store::{Action, Ended, Operated, OperatedJobs};

/// What a transaction that has not committed yet created and changed.
#[derive(Debug, Default)]
pub struct Created {
    /// Jobs to hint after the commit. A job that the transaction deletes or moves later stays among
    /// them, because a savepoint of the caller may undo that. A hint too many costs one refused lock.
    pub ready: Vec<Ready>,
    /// Unique jobs that were not created, each with the job that has its key.
    pub existing: Vec<(JobId, JobId)>,
    /// The earliest due date among the timers.
    pub timer: Option<DateTime<Utc>>,
    /// Other jobs to hint after the commit: those that operations made ready, and the next ones of
    /// instances.
    pub(crate) next: Vec<Ready>,
    /// The instances that exclusive jobs have left.
    pub(crate) left: Vec<String>,
    /// The jobs that operations made ready.
    pub(crate) operated: Vec<JobId>,
    /// The suspensions that began and ended.
    pub(crate) gates: GatesChanged,
    /// Jobs whose handlers are asked to stop after the commit.
    pub(crate) stop: Vec<JobId>,
    /// The events to tell after the commit; none without a listener.
    pub(crate) events: Vec<JobEvent>,
    /// Whether an operator's action was interrupted. Then a part of it may be done.
    pub(crate) unfinished: bool,
    /// Jobs that the transaction deleted. None of them is the witness.
    pub(crate) deleted: HashSet<JobId>,
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
        self.left.extend(other.left);
        self.operated.extend(other.operated);
        self.gates.merge(other.gates);
        self.stop.extend(other.stop);
        self.events.extend(other.events);
        self.unfinished |= other.unfinished;
        self.deleted.extend(other.deleted);
        self.witness = self.witness.or(other.witness);
        self.transaction = self.transaction.take().or(other.transaction);
    }

    /// Adds the end of a scope in the same transaction, which completes the job `own`.
    pub(crate) fn end(&mut self, ended: &Ended, own: Option<JobId>) {
        self.delete(ended.deleted.iter().copied());
        self.left.extend_from_slice(&ended.left);
        let cancelled = ended.running.iter().filter(|id| own != Some(**id));
        self.stop.extend(cancelled);
    }

    /// Adds an operator's action in the same transaction.
    pub(crate) fn act(&mut self, action: &Action, acted: &OperatedJobs) {
        let with = |how| {
            let jobs = acted
                .operated
                .iter()
                .filter(move |(_, other)| *other == how);
            jobs.map(|(job, _)| *job)
        };
        match action {
            Action::Delete => self.delete(with(Operated::Done)),
            Action::Cancel => {
                self.delete(with(Operated::Done));
                self.stop.extend(with(Operated::Running));
            }
            Action::Change(_) | Action::Retry(_) | Action::Unlock => {}
        }
        self.left.extend_from_slice(&acted.left);
        self.operated
            .extend(acted.ready.iter().map(|job| job.hint.id));
        self.hint(&acted.ready);
        self.timer = earliest(self.timer, acted.timer);
    }

    /// Notes jobs that are deleted in the same transaction. If the witness is one of them, another
    /// job takes its place.
    fn delete(&mut self, jobs: impl Iterator<Item = JobId>) {
        self.deleted.extend(jobs);
        let stays = |job: &JobId| !self.deleted.contains(job);
        let mut others = self.ready.iter().map(|job| job.hint.id);
        self.witness = self.witness.filter(stays).or_else(|| others.find(stays));
    }

    /// Adds jobs to hint, each once.
    fn hint(&mut self, jobs: &[Ready]) {
        let noted = self.ready.iter_mut().chain(&mut self.next);
        let mut noted: HashMap<JobId, &mut Ready> = noted.map(|job| (job.hint.id, job)).collect();
        let mut others = Vec::new();
        for job in jobs {
            match noted.get_mut(&job.hint.id) {
                Some(noted) => **noted = job.clone(),
                None => others.push(job.clone()),
            }
        }
        self.next.extend(others);
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
    use crate::store::Change;

    fn ready() -> Ready {
        Ready {
            lane: Lane::default(),
            hint: Hint::new(JobId::generate()),
        }
    }

    fn ids(ready: &[Ready]) -> Vec<JobId> {
        ready.iter().map(|ready| ready.hint.id).collect()
    }

    /// Adds an action on one job, which makes others ready.
    fn act(created: &mut Created, action: &Action, job: &Ready, how: Operated, ready: &[Ready]) {
        let acted = OperatedJobs {
            operated: vec![(job.hint.id, how)],
            ready: ready.to_vec(),
            ..OperatedJobs::default()
        };
        created.act(action, &acted);
    }

    #[test]
    fn a_job_that_its_own_transaction_moves_is_hinted_once() {
        let (first, second, waits) = (ready(), ready(), ready());
        let mut created = Created {
            witness: Some(first.hint.id),
            ready: vec![first.clone(), second.clone()],
            ..Created::default()
        };
        let retry = Action::Retry(3);
        let suspend = Action::Change(Change::Suspend);
        let prefer = Action::Change(Change::SetPriority(7));
        // A sibling that becomes the next one is hinted once.
        let next = [second.clone()];
        act(&mut created, &suspend, &first, Operated::Done, &next);
        assert_eq!(ids(&created.ready), [first.hint.id, second.hint.id]);
        assert!(created.next.is_empty());
        // The row of a suspended job shows the commit all the same.
        assert_eq!(created.witness, Some(first.hint.id));
        let moved = Ready {
            lane: Lane("fast".to_owned()),
            ..second.clone()
        };
        let again = [moved.clone()];
        act(&mut created, &prefer, &second, Operated::Done, &again);
        assert_eq!(created.ready[1].lane, moved.lane);
        for _ in 0..2 {
            let revived = [waits.clone()];
            act(&mut created, &retry, &waits, Operated::Done, &revived);
            assert_eq!(ids(&created.next), ids(&revived));
        }
        // A savepoint may undo the deletion.
        act(&mut created, &Action::Delete, &waits, Operated::Done, &[]);
        assert_eq!(ids(&created.next), [waits.hint.id]);
    }

    #[test]
    fn a_cancel_asks_only_what_runs_to_stop() {
        let (waits, runs) = (ready(), ready());
        let mut created = Created {
            witness: Some(waits.hint.id),
            ready: vec![waits.clone()],
            ..Created::default()
        };
        act(&mut created, &Action::Cancel, &waits, Operated::Done, &[]);
        act(&mut created, &Action::Cancel, &runs, Operated::Running, &[]);
        assert_eq!(created.witness, None);
        assert_eq!(created.stop, [runs.hint.id]);
    }

    #[test]
    fn a_job_that_its_own_transaction_deletes_is_no_witness() {
        let (gone, stays) = (ready(), ready());
        let mut created = Created {
            witness: Some(gone.hint.id),
            ready: vec![gone.clone(), stays.clone()],
            ..Created::default()
        };
        let (own, other) = (ready().hint.id, ready().hint.id);
        let ended = Ended {
            deleted: vec![gone.hint.id],
            running: vec![own, other],
            left: vec!["i".to_owned()],
            ..Ended::default()
        };
        created.end(&ended, Some(own));
        assert_eq!(created.stop, [other], "its own handler goes on");
        assert_eq!(ids(&created.ready), [gone.hint.id, stays.hint.id]);
        assert_eq!(created.left, ["i"]);
        // The row that shows the commit must be one that stays.
        assert_eq!(created.witness, Some(stays.hint.id));
        act(&mut created, &Action::Delete, &stays, Operated::Done, &[]);
        assert_eq!(created.witness, None);
    }
}
