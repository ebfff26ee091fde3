//! The signals of a lease to its running job.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use crate::worker::life_signs::LifeSigns;

/// The signals of a lease to its running job.
#[derive(Default)]
pub(crate) struct Lease {
    /// Asks the job to stop.
    pub(crate) stop: Signal,
    /// An operator has cancelled the job, as the database says.
    pub(crate) cancelled: Signal,
    /// The lease is lost: the outcome of the job no longer counts.
    pub(crate) lost: Signal,
    pub(super) signs: OnceLock<Box<LifeSigns>>,
    /// The job is held by its row and has no lease yet.
    pub(super) by_row: AtomicBool,
    /// A statement of this node may end the lease: the outcome of the job is being committed, or the job asks
    /// for a permit.
    ends: AtomicBool,
    /// A message has asked the job to stop. Any client that may publish can send one.
    pub(super) told: AtomicBool,
}

impl Lease {
    /// Returns the signs of life of the handler.
    pub(crate) fn signs(&self) -> &LifeSigns {
        self.signs.get_or_init(|| Box::new(LifeSigns::new()))
    }

    /// Returns whether the database may have a row with the progress or the checkpoint of the job.
    pub(crate) fn has_row(&self) -> bool {
        self.signs.get().is_some_and(|signs| signs.has_row())
    }

    /// Returns whether a message has asked the job to stop, which the database may not confirm.
    pub(crate) fn is_told_to_stop(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// Returns whether the job is held by its row and has no lease yet.
    pub(crate) fn is_by_row(&self) -> bool {
        self.by_row.load(Ordering::Relaxed)
    }

    /// Notes whether a statement of this node may end the lease. Then it may be gone because the job is
    /// complete, or waits for a permit.
    pub(crate) fn ends(&self, ends: bool) {
        self.ends.store(ends, Ordering::Relaxed);
    }

    pub(super) fn may_be_complete(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    pub(super) fn lose(&self) {
        self.stop.give();
        self.lost.give();
    }
}

/// A cancellation token that is created when the signal is given or first awaited. Most jobs end
/// before that. Two tokens for each job, with the locked counters of their clones, took a twentieth
/// of a node's time for a job.
#[derive(Default)]
pub(crate) struct Signal(OnceLock<CancellationToken>);

impl Signal {
    /// Returns the token, which is cancelled when the signal is given.
    pub(crate) fn token(&self) -> &CancellationToken {
        self.0.get_or_init(CancellationToken::new)
    }

    pub(crate) fn give(&self) {
        self.token().cancel();
    }

    pub(crate) fn is_given(&self) -> bool {
        self.0.get().is_some_and(CancellationToken::is_cancelled)
    }
}
