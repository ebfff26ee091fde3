//! Jobs that are held by locks of their rows, in a transaction that stays open while they run (protocol rule 35).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::job::{JobId, LockToken, LockedJob};

/// Which jobs may be held by row locks, and when that is worth it.
#[derive(Clone, Debug)]
pub struct RowTerms {
    /// Types whose handlers declared themselves short. Empty: none.
    pub types: Arc<[String]>,
    /// With fewer hints at once there are leases: a transaction of its own takes more statements than they do.
    pub from: usize,
}

impl Default for RowTerms {
    fn default() -> Self {
        Self {
            types: Arc::default(),
            from: 32,
        }
    }
}

impl RowTerms {
    /// Whether it is worth trying with so many hints.
    pub(crate) fn admit(&self, hints: usize) -> bool {
        !self.types.is_empty() && hints >= self.from
    }
}

/// Jobs held by a transaction.
pub struct HeldRows {
    /// Ours to run now.
    pub jobs: Vec<LockedJob>,
    /// How long they are held at most, from before they were asked for.
    pub at_most: Duration,
    /// The transaction. Dropped, it is rolled back and everything is free again.
    pub hold: Box<dyn RowHold>,
}

impl fmt::Debug for HeldRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldRows")
            .field("jobs", &self.jobs)
            .field("at_most", &self.at_most)
            .finish_non_exhaustive()
    }
}

/// The transaction that holds them.
#[async_trait]
pub trait RowHold: Send {
    /// Commit: `done` are finished and gone, and `leased` are held by leases of the lock's terms from now on.
    ///
    /// # Errors
    /// The transaction is lost, and with it every lock; after
    /// [`StoreError::CommitUnknown`](crate::StoreError::CommitUnknown) perhaps not its commit. Nothing else has changed.
    async fn commit(self: Box<Self>, done: &[JobId], leased: &[LockToken]) -> Result<()>;
}
