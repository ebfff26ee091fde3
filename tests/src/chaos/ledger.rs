//! The outcomes of the producers' transactions, and the times at which hints were published. A
//! producer got an answer to its COMMIT, or rolled back, or the answer was lost.

use crate::ServerClock;
use crate::history::{Micros, Outcome};
use async_trait::async_trait;
use jobwire_core::hint::{Hint, Marker};
use jobwire_core::transport::{Control, Publisher, TransportError, TransportHealth};
use jobwire_core::{JobId, Lane, StoreError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The producer's record of one job.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The outcome of its transaction; `None` while that is open.
    pub outcome: Option<Outcome>,
    /// The time at which its first hint was published.
    pub published: Option<Micros>,
}

/// All jobs of all producers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    jobs: Arc<Mutex<HashMap<JobId, Known>>>,
    clock: ServerClock,
}

impl Ledger {
    /// Creates a ledger that uses the clock of the database.
    #[must_use]
    pub fn by(clock: ServerClock) -> Ledger {
        Ledger {
            clock,
            ..Ledger::default()
        }
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, Known>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the jobs' transaction is open. Jobs that are not [settled](Self::settle) later
    /// belong to a producer that was killed.
    pub fn open(&self, ids: &[JobId]) {
        let mut jobs = self.jobs();
        for id in ids {
            jobs.entry(*id).or_insert(Known {
                outcome: None,
                published: None,
            });
        }
    }

    /// Records the outcome of the jobs' transaction.
    pub fn settle(&self, ids: &[JobId], outcome: Outcome) {
        let mut jobs = self.jobs();
        for id in ids {
            let known = jobs.entry(*id).or_insert(Known {
                outcome: None,
                published: None,
            });
            known.outcome = Some(outcome);
        }
    }

    /// Records the end of the jobs' transaction with this answer, to its COMMIT or to a statement
    /// before.
    pub fn ended<T>(&self, ids: &[JobId], answer: &Result<T, StoreError>) {
        let outcome = match answer {
            Ok(_) => Outcome::Committed,
            Err(StoreError::CommitUnknown(_)) => Outcome::Unknown,
            Err(_) => Outcome::RolledBack,
        };
        self.settle(ids, outcome);
    }

    fn published(&self, hints: &[Hint]) {
        let now = self.clock.now().timestamp_micros();
        let mut jobs = self.jobs();
        for hint in hints {
            if let Some(known) = jobs.get_mut(&hint.id) {
                known.published.get_or_insert(now);
            }
        }
    }

    /// Returns the number of recorded jobs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs().len()
    }

    /// Returns whether no job is recorded yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns up to `count` jobs, in any order.
    #[must_use]
    pub fn some(&self, count: usize) -> Vec<JobId> {
        self.jobs().keys().take(count).copied().collect()
    }

    /// Takes all records, at the end of a run.
    #[must_use]
    pub fn take(&self) -> HashMap<JobId, Known> {
        std::mem::take(&mut *self.jobs())
    }
}

/// A publisher that records in the ledger when hints are published.
pub struct NotingPublisher {
    inner: Arc<dyn Publisher>,
    ledger: Ledger,
}

impl NotingPublisher {
    /// Wraps another publisher.
    #[must_use]
    pub fn new(inner: Arc<dyn Publisher>, ledger: Ledger) -> NotingPublisher {
        NotingPublisher { inner, ledger }
    }
}

#[async_trait]
impl Publisher for NotingPublisher {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        self.ledger.published(&hints);
        self.inner.publish(lane, hints).await
    }

    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        self.inner.publish_marker(lane, marker).await
    }

    fn confirm_timeout(&self) -> Duration {
        self.inner.confirm_timeout()
    }

    fn tell(&self, control: Control) -> bool {
        self.inner.tell(control)
    }

    fn health(&self) -> TransportHealth {
        self.inner.health()
    }

    fn health_of(&self, lane: &Lane) -> TransportHealth {
        self.inner.health_of(lane)
    }
}
