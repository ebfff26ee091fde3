//! Arguments and results of completing, failing, releasing and renewing jobs.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::LockTerms;
use super::attempts::Attempt;
use crate::hint::Ready;
use crate::job::new_job::NewJob;
use crate::job::{JobId, LockToken, LockedJob};

/// The result of completing, failing or releasing a batch.
#[derive(Debug, Default)]
pub struct BatchOutcome {
    /// Jobs whose guard held: the change is committed. A job in neither `applied` nor `left` has
    /// lost its lock.
    pub applied: Vec<JobId>,
    /// Those of `applied` that an operator had cancelled, so that they were deleted instead of
    /// failed or released.
    pub cancelled: Vec<JobId>,
    /// Those of `applied` that the database refused, so that they were set aside as dead letters.
    pub set_aside: Vec<JobId>,
    /// The next occurrences that were created.
    pub created: Vec<JobId>,
    /// The next exclusive jobs of the released instances, locked for the same node.
    pub next: Vec<LockedJob>,
    /// Jobs that became ready and were not locked. The caller hints them.
    pub ready: Vec<Ready>,
    /// Jobs that the database refuses and that could not be set aside. They are held as before, and
    /// the caller must retry their outcome. The others of the batch are committed.
    pub left: Vec<JobId>,
    /// The earliest due date that was written, if any.
    pub timer: Option<DateTime<Utc>>,
    /// Instances released in a transaction that can't see which job is next. The caller looks for
    /// it after the commit.
    pub unseen: Vec<String>,
}

impl BatchOutcome {
    /// Takes the results that the node acts on: the jobs to start, the hints, and the timer.
    pub(crate) fn take_next(&mut self) -> BatchOutcome {
        BatchOutcome {
            next: std::mem::take(&mut self.next),
            ready: std::mem::take(&mut self.ready),
            timer: self.timer.take(),
            ..BatchOutcome::default()
        }
    }
}

/// The result of a renewal. A lease in neither list is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Jobs whose leases were renewed.
    pub renewed: Vec<JobId>,
    /// Jobs whose leases are held, but whose rows another transaction has locked. The caller
    /// renews them again soon.
    pub busy: Vec<JobId>,
    /// Jobs among both that an operator has cancelled. The caller stops them.
    pub cancelled: Vec<JobId>,
}

/// A job that is done.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The lock token.
    pub held: LockToken,
    /// The next occurrence of a repeating job, created in the same transaction. Boxed, because few
    /// jobs have one and every completion is passed on several times.
    pub next: Option<Box<NewJob>>,
    /// Whether the job may have rows beside its own, which have to be deleted, too: the stack of an
    /// earlier failure, progress or a checkpoint.
    pub has_traces: bool,
    /// Whether a cancel of an operator or of the handler has ended the job: it is deleted and was not
    /// done.
    pub cancelled: bool,
    /// The attempt to record, if its type records attempts.
    pub attempt: Option<Box<Attempt>>,
}

/// The table that a failed or interrupted job goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The timer table, to wait for the next attempt.
    Retry {
        /// Time to wait.
        delay: Duration,
        /// The date from which the time counts if it has passed; `None` counts from now.
        since: Option<DateTime<Utc>>,
        /// Attempts left.
        retries: i32,
        /// Failures so far, this one included if it counts.
        failures: i32,
    },
    /// The timer table, to wait for the next attempt until a date.
    RetryAt {
        /// The due date, or now if it is in the past: dates of a series only grow. The clock of the
        /// database tells when it has come.
        due_at: DateTime<Utc>,
        /// Attempts left.
        retries: i32,
        /// Failures so far, this one included if it counts.
        failures: i32,
    },
    /// The dead-letter table, until an operator decides.
    DeadLetter,
}

/// A job that did not finish.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The lock token.
    pub held: LockToken,
    /// The table that it goes to.
    pub to: Destination,
    /// The message for people; `None` keeps the last one (a snooze is no failure).
    pub message: Option<String>,
    /// The stack or the chain of causes.
    pub stack: Option<String>,
    /// The attempt to record, if its type records attempts.
    pub attempt: Option<Box<Attempt>>,
}

/// A job that is given back to the database.
#[derive(Clone, Debug)]
pub struct Release {
    /// The lock token.
    pub held: LockToken,
    /// Whether its handler has started. Otherwise there was no attempt, so the job keeps its
    /// strikes.
    pub started: bool,
}

impl Release {
    /// Returns the release of a job whose handler has started.
    #[must_use]
    pub fn of_attempt(held: LockToken) -> Self {
        Self {
            held,
            started: true,
        }
    }

    /// Returns the release of a job whose handler has not started.
    #[must_use]
    pub fn without_attempt(held: LockToken) -> Self {
        Self {
            held,
            started: false,
        }
    }
}

/// An attempt to record, with its lock and the texts of its failure.
#[derive(Clone, Copy)]
pub(super) struct Recorded<'a> {
    pub(super) held: &'a LockToken,
    pub(super) attempt: &'a Attempt,
    pub(super) outcome: &'a str,
    pub(super) message: Option<&'a str>,
    pub(super) stack: Option<&'a str>,
}

impl Completion {
    pub(super) fn recorded(&self) -> Option<Recorded<'_>> {
        let attempt = self.attempt.as_deref()?;
        Some(Recorded {
            held: &self.held,
            attempt,
            outcome: attempt.outcome,
            message: attempt.reason.as_deref(),
            stack: None,
        })
    }
}

impl Failure {
    /// Returns whether this is no failure: the job waits for another date, and its last message
    /// stays.
    pub(crate) fn is_snooze(&self) -> bool {
        self.message.is_none() && self.to != Destination::DeadLetter
    }

    pub(super) fn recorded(&self) -> Option<Recorded<'_>> {
        let attempt = self.attempt.as_deref()?;
        Some(Recorded {
            held: &self.held,
            attempt,
            outcome: attempt.outcome,
            message: self.message.as_deref(),
            stack: self.stack.as_deref(),
        })
    }
}

/// The outcome of an attempt that a cancel of an operator or of the handler ended.
pub(crate) const CANCELLED: &str = "cancelled";

/// Returns the attempts whose outcomes were applied.
pub(super) fn applied_attempts<'a>(
    attempts: impl Iterator<Item = Recorded<'a>>,
    settled: &BatchOutcome,
) -> Vec<Recorded<'a>> {
    let mut attempts: Vec<Recorded<'a>> = attempts.collect();
    // Most types record none.
    if !attempts.is_empty() {
        let applied: HashSet<&JobId> = settled.applied.iter().collect();
        attempts.retain(|attempt| applied.contains(&attempt.held.id));
        for attempt in &mut attempts {
            if settled.cancelled.contains(&attempt.held.id) {
                // The cancel ended the attempt, not what the handler answered to it.
                attempt.outcome = CANCELLED;
                (attempt.message, attempt.stack) = (None, None);
            }
        }
    }
    attempts
}

/// The way in which a released instance is handed off.
#[derive(Clone, Debug)]
pub enum Handoff {
    /// Lock the next sibling for this node, in the same transaction.
    Take(LockTerms),
    /// Only return the next sibling, to hint it. For a node that takes no more work.
    Hint,
}

/// Returns the instances that a batch holds, sorted, each once.
pub(super) fn instances<'a>(held: impl Iterator<Item = &'a LockToken>) -> Vec<String> {
    let mut names: Vec<String> = held.filter_map(|h| h.instance.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the instances whose holders are in `applied`. Only these may be handed over.
pub(super) fn released<'a>(
    held: impl Iterator<Item = &'a LockToken>,
    applied: &[JobId],
) -> Vec<String> {
    let applied: HashSet<&JobId> = applied.iter().collect();
    instances(held.filter(|h| applied.contains(&h.id)))
}
