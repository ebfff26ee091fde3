//! What a transaction created: hinted when it has committed, and not before.

use chrono::{DateTime, Utc};

use crate::hint::Ready;
use crate::job::JobId;

/// What was created in a transaction that has not committed yet.
#[derive(Debug, Default)]
pub struct Created {
    /// To be hinted after the commit.
    pub ready: Vec<Ready>,
    /// The earliest due date among the timers.
    pub timer: Option<DateTime<Utc>>,
    /// One of the jobs, whatever its state: where it is there, the transaction has committed.
    pub(crate) witness: Option<JobId>,
    /// Names the transaction, so that a lost COMMIT answer can be asked after; see
    /// [`Store::committed`](crate::Store::committed).
    pub transaction: Option<TransactionId>,
}

impl Created {
    /// Add what another statement of the same transaction created.
    pub fn merge(&mut self, other: Self) {
        self.ready.extend(other.ready);
        self.timer = earliest(self.timer, other.timer);
        self.witness = self.witness.or(other.witness);
        self.transaction = self.transaction.take().or(other.transaction);
    }
}

/// A transaction's name in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionId(pub String);

/// The earlier of two due dates, where there are two.
pub(crate) fn earliest(
    a: Option<DateTime<Utc>>,
    b: Option<DateTime<Utc>>,
) -> Option<DateTime<Utc>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
