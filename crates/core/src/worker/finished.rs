//! The outcome of a job, on its way from the executor to its commit.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::job::{Job, LockToken, LockedJob};
use crate::store::{BatchOutcome, CANCELLED, Completion, Failure};
use crate::worker::slot_pool::Slot;

/// The end of an attempt.
#[allow(
    clippy::large_enum_variant,
    reason = "the large one is the common one: a box would cost an allocation a job"
)]
pub(crate) enum Ending {
    /// The job is deleted.
    Done(Completion),
    /// The job is deleted, because an operator or its handler has cancelled it.
    Cancelled(Completion),
    /// The handler's transaction has completed the job already.
    Committed {
        settled: Box<BatchOutcome>,
        /// When the statement was sent that locked the next job. Its lease counts from then.
        sent: Instant,
    },
    /// The job moves to the timers or the dead letters.
    Failed {
        /// Boxed, because few attempts fail and every ending is passed on several times.
        failure: Box<Failure>,
        outcome: &'static str,
    },
    /// The job is released; no attempt is spent.
    Release,
    /// The same, and its handler has not started, so that its strikes stay.
    Unstarted,
    /// No slot of the job's type is free. The job is released like an unstarted one, and its hint
    /// waits on this node.
    Full,
    /// The job waits for a permit, and its lease has ended already; no attempt is spent. If an operator
    /// had cancelled it, it is deleted.
    Parked { cancelled: bool },
    /// The lock is lost; there is nothing to commit.
    Lost,
    /// The outcome is unknown: it is committed, or the lease still exists and reconciliation finds
    /// it.
    Left,
}

impl Ending {
    /// Returns this ending for a job whose handler has not started.
    pub(crate) fn without_attempt(self) -> Self {
        match self {
            Self::Release => Self::Unstarted,
            other => other,
        }
    }

    pub(crate) const fn outcome(&self) -> &'static str {
        match self {
            Self::Done(_) | Self::Committed { .. } => "done",
            Self::Cancelled(_) | Self::Parked { cancelled: true } => CANCELLED,
            Self::Failed { outcome, .. } => outcome,
            Self::Release | Self::Unstarted | Self::Full | Self::Parked { .. } => "interrupted",
            Self::Lost => "lost-lock",
            Self::Left => "unknown",
        }
    }
}

/// A job that ran.
pub(crate) struct Finished {
    pub(crate) held: LockToken,
    pub(crate) job: Arc<Job>,
    pub(crate) ending: Ending,
    pub(crate) finished_at: Instant,
    /// The slot of an exclusive job, kept for the next job of its instance, or the slots of a
    /// suspect. Held until the outcome is committed.
    pub(crate) slot: Option<Slot>,
    /// The slot of any other job, held until the completer accepts the outcome. So the node locks
    /// no more jobs while outcomes are committed more slowly than jobs end.
    pub(crate) kept: Option<Slot>,
}

impl Finished {
    /// Returns the tokens of all locks that depend on this outcome: that of the job, and that of
    /// the sibling that its transaction took over.
    pub(crate) fn holds(&self) -> impl Iterator<Item = LockToken> {
        let next = match &self.ending {
            Ending::Committed { settled, .. } => &settled.next[..],
            _ => &[],
        };
        let next = next.iter().map(LockedJob::held);
        std::iter::once(self.held.clone()).chain(next)
    }

    /// Returns whether the next job of the instance, or a node that stops, waits for this commit.
    pub(crate) fn is_awaited(&self) -> bool {
        self.slot.is_some() || !matches!(self.ending, Ending::Done(_))
    }
}

/// The destination of a job's outcome.
pub(crate) enum Outcomes {
    /// The completer, which commits it with others.
    OfNode,
    /// The batch that holds the job's row.
    OfBatch(mpsc::Sender<Finished>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_outcome_has_one_name_in_all_metrics() {
        assert_eq!(Ending::Left.outcome(), "unknown");
        assert_eq!(Ending::Lost.outcome(), "lost-lock");
    }
}
