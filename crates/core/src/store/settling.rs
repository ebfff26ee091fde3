//! What becomes of jobs that were taken.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::LockTerms;
use crate::hint::Ready;
use crate::job::new_job::NewJob;
use crate::job::{JobId, LockToken, LockedJob};

/// What a finished or given-back batch led to.
#[derive(Debug, Default)]
pub struct Settled {
    /// The jobs whose guard held: the change is committed. The lock of a job that is missing here is lost.
    pub applied: Vec<JobId>,
    /// The next exclusive jobs of the instances that were released, locked for the same node.
    pub next: Vec<LockedJob>,
    /// Jobs that became ready and were not taken: to be hinted.
    pub ready: Vec<Ready>,
    /// Jobs that the database refuses, and that could not be set aside either: they are held as before, and their
    /// outcome is to be tried again. The others of the batch are committed.
    pub left: Vec<JobId>,
    /// The earliest due date that was written, if any.
    pub timer: Option<DateTime<Utc>>,
    /// Instances that were released in a transaction that can't see who is next: to be looked at when it has committed.
    pub unseen: Vec<String>,
}

impl Settled {
    /// What the change led to: the jobs to start, the hints, and the timer.
    pub(crate) fn take_next(&mut self) -> Settled {
        Settled {
            next: std::mem::take(&mut self.next),
            ready: std::mem::take(&mut self.ready),
            timer: self.timer.take(),
            ..Settled::default()
        }
    }
}

/// What became of leases that were to be renewed. One that is in neither list is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// They last for another lease.
    pub renewed: Vec<JobId>,
    /// They are held, and another transaction has their rows locked: to be renewed again soon.
    pub busy: Vec<JobId>,
}

/// A job that is done.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The proof.
    pub held: LockToken,
    /// The next occurrence of a repeating job, created in the same transaction. Boxed: few have one, and every
    /// completion is passed on several times.
    pub next: Option<Box<NewJob>>,
    /// An earlier attempt failed: its stack has to go too.
    pub failed_before: bool,
}

/// Where a failed or interrupted job goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Waits this long in the timer table, with so many attempts left.
    Retry {
        /// Time to wait.
        delay: Duration,
        /// Attempts left.
        retries: i32,
        /// Failures so far, this one included if it counts.
        failures: i32,
    },
    /// An operator decides.
    DeadLetter,
}

/// A job that did not finish.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The proof.
    pub held: LockToken,
    /// Where it goes.
    pub to: Destination,
    /// For people; `None` keeps the last message (a snooze is no failure).
    pub message: Option<String>,
    /// The stack or the chain of causes.
    pub stack: Option<String>,
}

/// What happens with an instance that is released.
#[derive(Clone, Debug)]
pub enum Handoff {
    /// Lock the next sibling for this node, in the same transaction.
    Take(LockTerms),
    /// Only say who is next: the node takes no more work.
    Hint,
}

/// The instances that a batch holds, sorted, each once.
pub(super) fn instances<'a>(held: impl Iterator<Item = &'a LockToken>) -> Vec<String> {
    let mut names: Vec<String> = held.filter_map(|h| h.instance.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The instances whose holders were among `applied`: only those may be passed on.
pub(super) fn released<'a>(
    held: impl Iterator<Item = &'a LockToken>,
    applied: &[JobId],
) -> Vec<String> {
    let applied: HashSet<&JobId> = applied.iter().collect();
    instances(held.filter(|h| applied.contains(&h.id)))
}
