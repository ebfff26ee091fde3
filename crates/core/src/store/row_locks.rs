//! Jobs that are held by row locks, in a transaction that stays open while they run (protocol rule
//! 35).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Result, StoreError};
use crate::job::{LockToken, LockedJob};

/// The jobs that may be held by row locks, and the number of hints from which row locks are faster.
#[derive(Clone, Debug)]
pub struct RowTerms {
    /// Types whose handlers are declared short. Empty: none.
    pub types: Arc<[String]>,
    /// Minimum number of hints. The jobs of fewer hints get leases, which take fewer statements
    /// than a separate transaction.
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
    /// Returns whether row locks are worth trying for this number of hints.
    pub(crate) fn admit(&self, hints: usize) -> bool {
        !self.types.is_empty() && hints >= self.from
    }
}

/// Jobs held by a transaction.
pub struct HeldRows {
    /// The held jobs, which this node runs now.
    pub jobs: Vec<LockedJob>,
    /// Maximum time for which they are held, counted from before the lock statement was sent.
    pub at_most: Duration,
    /// The transaction. If it is dropped, it is rolled back, and all rows are free again.
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

/// The transaction that holds jobs by row locks.
#[async_trait]
pub trait RowHold: Send {
    /// Deletes the `done` jobs, writes leases for the `leased` jobs under the terms of the lock,
    /// and commits. If the database refuses to delete a row, and has refused one lately, writes leases for the
    /// `done` jobs, too. The first refusal in a while is an error.
    ///
    /// # Errors
    /// The transaction is lost, and every lock with it. After
    /// [`StoreError::CommitUnknown`](crate::StoreError::CommitUnknown) it may have committed.
    /// Nothing else has changed.
    async fn commit(
        self: Box<Self>,
        done: &[LockToken],
        leased: &[LockToken],
    ) -> Result<RowsCommitted>;
}

/// How [`RowHold::commit`] has ended.
#[derive(Debug)]
pub struct RowsCommitted {
    /// Why the database does not delete the `done` jobs. They are held by leases then.
    pub refusal: Option<StoreError>,
}
