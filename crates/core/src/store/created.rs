//! The jobs that a transaction created. They are hinted after its commit.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use crate::hint::Ready;
use crate::job::JobId;
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
        self.witness = self.witness.or(other.witness);
        self.transaction = self.transaction.take().or(other.transaction);
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

impl From<&Ended> for Created {
    fn from(ended: &Ended) -> Self {
        Self {
            next: ended.ready.clone(),
            stop: ended.running.clone(),
            ..Self::default()
        }
    }
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
