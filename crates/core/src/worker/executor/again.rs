//! The database's faults are not the job's (protocol rule 29).
//!
//! Where the transaction of a handler could not be opened, lost its connection or could not be completed, nothing of it
//! was committed. The job runs again under the same lock: its instance stays held, so that no sibling passes it, and no
//! attempt is spent. That ends with the trust in the lease, with the type's timeout, and when the node stops its jobs;
//! then the job is given back.
//!
//! A job that has run may be the cause, as one whose statement takes the server's process down. So where the database
//! answers another connection at once, the fault counts, and the third fault is a failure of the job.

use std::time::Duration;

use tokio::time::Instant;

use super::interrupted;
use crate::job::LockToken;
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;
use crate::worker::handler::Registration;
use crate::worker::lease_book::Lease;

/// So many faults beside statements that succeed are the job's own.
const MOST: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What of the job ran before a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    TheHandler,
    NotAtAll,
}

/// What follows a fault.
pub(super) enum Next {
    /// The job runs again.
    Again,
    /// It is the job's own.
    Spent,
    /// There is no time left.
    End(Ending),
}

/// The faults of the database while one job ran.
pub(super) struct Faults {
    since: Instant,
    counted: u32,
    pause: Duration,
}

impl Faults {
    /// The job's first attempt begins.
    pub(super) fn none() -> Self {
        Self {
            since: Instant::now(),
            counted: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// One more. Returns when the database answers again, or when there is no time left.
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
