//! A job that ran, on its way from the executor to its committed outcome.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::job::{Job, LockToken, LockedJob};
use crate::store::{Completion, Failure, Settled};

/// What became of an attempt.
#[allow(
    clippy::large_enum_variant,
    reason = "the large one is the common one: a box would cost an allocation a job"
)]
pub(crate) enum Ending {
    /// Delete it.
    Done(Completion),
    /// Its handler's transaction has completed it already.
    Committed(Box<Settled>),
    /// Move it.
    Failed {
        failure: Failure,
        outcome: &'static str,
    },
    /// Unlock it; no attempt spent.
    Release,
    /// Its lock is gone; there is nothing to commit.
    Lost,
    /// Its outcome is unknown: it is committed, or the lease is still there and reconciliation finds it.
    Left,
}

impl Ending {
    pub(crate) const fn outcome(&self) -> &'static str {
        match self {
            Self::Done(_) | Self::Committed(_) => "done",
            Self::Failed { outcome, .. } => outcome,
            Self::Release => "interrupted",
            Self::Lost | Self::Left => "lost-lock",
        }
    }
}

/// A job that ran.
pub(crate) struct Finished {
    pub(crate) held: LockToken,
    pub(crate) job: Arc<Job>,
    pub(crate) ending: Ending,
    pub(crate) finished_at: Instant,
    /// The slot of an exclusive job, for the next one of its instance; those of a suspect. Until its outcome is
    /// committed.
    pub(crate) slot: Option<OwnedSemaphorePermit>,
    /// The slot of any other, until its outcome is accepted: nothing more is locked while outcomes can't be committed
    /// as fast as jobs end.
    pub(crate) kept: Option<OwnedSemaphorePermit>,
}

impl Finished {
    /// Everything that depends on this being seen to: the job, and the sibling that its transaction took over.
    pub(crate) fn holds(&self) -> impl Iterator<Item = LockToken> {
        let next = match &self.ending {
            Ending::Committed(settled) => &settled.next[..],
            _ => &[],
        };
        let next = next.iter().map(LockedJob::held);
        std::iter::once(self.held.clone()).chain(next)
    }

    /// Somebody waits for this to be committed: the next one of its instance, or a node that wants to stop.
    pub(crate) fn is_awaited(&self) -> bool {
        self.slot.is_some() || !matches!(self.ending, Ending::Done(_))
    }
}
