//! Runs a job again after a fault of the database, which is no fault of the job (protocol rule 29).
//!
//! If the transaction of a handler could not be opened, lost its connection or could not be
//! completed, nothing of it was committed. The job runs again under the same lock: its instance
//! stays held, so that no sibling passes it, and no attempt is spent. This ends when the lease is
//! no longer trusted, at the type's timeout, and when the node stops its jobs. The job is then
//! released, unless its lock was lost.
//!
//! A job may cause the fault, for example with a statement that crashes the server's process. So if
//! the database answers on another connection at once, the fault counts, and the third such fault
//! is a failure of the job.

use std::time::Duration;

use tokio::time::Instant;

use super::interrupted;
use crate::job::LockToken;
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;
use crate::worker::handler::Registration;
use crate::worker::lease_book::Lease;

/// The number of counted faults that make a failure of the job.
const MOST: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Whether the handler had run before a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    TheHandler,
    NotAtAll,
}

/// What follows a fault.
pub(super) enum Next {
    /// The job runs again.
    Again,
    /// The faults count as a failure of the job.
    Spent,
    /// No time is left.
    End(Ending),
}

/// The faults of the database during one job.
pub(super) struct Faults {
    since: Instant,
    counted: u32,
    pause: Duration,
}

impl Faults {
    /// Starts to count at the job's first attempt.
    pub(super) fn none() -> Self {
        Self {
            since: Instant::now(),
            counted: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// Records a fault. Returns when the database answers again, or when no time is left.
    pub(super) async fn one_more(
        &mut self,
        node: &NodeContext,
        held: &LockToken,
        lease: &Lease,
        registration: &Registration,
        error: &str,
        ran: Ran,
    ) -> Next {
        let waits = async {
            let mut answers = node.store.answers().await;
            if answers.is_ok() && ran == Ran::TheHandler {
                self.counted += 1;
                if self.counted >= MOST {
                    return Next::Spent;
                }
            }
            tracing::warn!(
                job = %held.id, error, counted = self.counted,
                "the database failed a job's transaction; the job runs again under the same lock"
            );
            loop {
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                let limit = registration.options.timeout;
                if limit.is_some_and(|limit| self.since.elapsed() >= limit) {
                    return Next::End(Ending::Release);
                }
                if answers.is_ok() {
                    return Next::Again;
                }
                answers = node.store.answers().await;
            }
        };
        let next = tokio::select! {
            biased;
            () = lease.stop.token().cancelled() => Next::End(interrupted(node, lease)),
            () = node.stop_jobs.cancelled() => Next::End(Ending::Release),
            next = waits => next,
        };
        match next {
            Next::Again if !node.leases.trusts(held) => Next::End(Ending::Lost),
            next => next,
        }
    }
}
