//! A permit in the hand of a job, and a job that asks for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Permits, Terms};
use crate::store::permits::{Asking, PermitKey};

/// A job that asks for a permit.
pub(crate) struct Ask {
    pub(super) key: PermitKey,
    pub(in crate::worker) terms: Terms,
    pub(in crate::worker) job: Asking,
    pub(in crate::worker) reply: oneshot::Sender<Answered>,
}

/// The answer to a job.
pub(crate) enum Answered {
    /// The job may start.
    Granted(Permit),
    /// The job waits in the database, and its lease has ended. If an operator had cancelled it, it
    /// is deleted.
    Parked { cancelled: bool },
    /// The lock of the job is lost.
    Lost,
    /// The database refuses the requests of the key, perhaps because of this job.
    Refused,
    /// The answer of the database was lost.
    Unknown,
}

/// A permit, which goes back to the node when it is dropped. One of a rate under which a job has
/// started cools down first.
pub(crate) struct Permit {
    permits: Arc<Permits>,
    key: PermitKey,
    /// Zero if the limit is no rate.
    cool_down: Duration,
    cools: AtomicBool,
}

impl Permit {
    pub(in crate::worker) fn new(permits: Arc<Permits>, key: PermitKey, terms: Terms) -> Self {
        Self {
            permits,
            key,
            cool_down: terms.cool_down,
            cools: AtomicBool::new(false),
        }
    }

    /// Returns whether each start of the handler needs a permit of its own.
    pub(super) fn is_for_one_start(&self) -> bool {
        !self.cool_down.is_zero()
    }

    /// Returns whether another start of the handler needs another permit.
    pub(crate) fn is_used_up(&self) -> bool {
        self.is_for_one_start() && self.cools.load(Ordering::Relaxed)
    }

    /// Returns whether the handler may start now. The permits of a rate must be trusted at the start,
    /// since the lease of the job does not cover the cool-down.
    pub(crate) fn may_start(&self) -> bool {
        !self.is_for_one_start() || self.permits.trusts(&self.key)
    }

    /// Records that the handler has started, at the latest now.
    pub(crate) fn started(&self) {
        if self.is_for_one_start() && !self.cools.swap(true, Ordering::Relaxed) {
            self.permits.started(&self.key, self.cool_down);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !*self.cools.get_mut() {
            self.permits.give_back(&self.key);
        }
    }
}
