//! What the producers of a chaos run know of their jobs: they were told that a COMMIT went through, they
//! undid it, or the answer was lost; and when a hint left.

use crate::ServerClock;
use crate::history::{Micros, Outcome};
use async_trait::async_trait;
use jobwire_core::hint::{Hint, Marker};
use jobwire_core::transport::{Control, Publisher, TransportError, TransportHealth};
use jobwire_core::{JobId, Lane, StoreError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is known of one job.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// What became of its transaction; `None` while that is open.
    pub outcome: Option<Outcome>,
    /// When its first hint left.
    pub published: Option<Micros>,
}

/// All jobs of all producers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    jobs: Arc<Mutex<HashMap<JobId, Known>>>,
    clock: ServerClock,
}

impl Ledger {
    /// By the clock of the database.
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

    /// Their transaction is open. What is not [settled](Self::settle) later came to no end: a producer
    /// that was killed.
    pub fn open(&self, ids: &[JobId]) {
        let mut jobs = self.jobs();
        for id in ids {
            jobs.entry(*id).or_insert(Known {
                outcome: None,
                published: None,
            });
        }
    }

    /// Their transaction has ended.
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

    /// Their transaction has ended with this answer, to its COMMIT or to a statement before.
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

    /// How many jobs are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs().len()
    }

    /// None yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// So many jobs, any of them.
    #[must_use]
    pub fn some(&self, count: usize) -> Vec<JobId> {
        self.jobs().keys().take(count).copied().collect()
    }

    /// Everything, at the end.
    #[must_use]
    pub fn take(&self) -> HashMap<JobId, Known> {
        std::mem::take(&mut *self.jobs())
    }
}

/// A publisher that notes in the ledger when hints leave.
pub struct NotingPublisher {
    inner: Arc<dyn Publisher>,
    ledger: Ledger,
}

impl NotingPublisher {
    /// In front of another one.
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
