//! Runs a job again after a fault of the database that the job did not cause (protocol rule 29).
//!
//! If the transaction of a handler could not be opened, lost its connection or could not be
//! completed, none of its writes was committed. The job runs again under the same lock: its
//! instance stays held, so no sibling overtakes it, and no attempt is spent. The repetition ends
//! when the lease is no longer trusted, at the type's timeout, or when the node stops its jobs.
//! Then the job is released, unless its lock was lost.
//!
//! A job may cause the fault. So a fault counts if the database answers on another connection within two
//! seconds.
//! The third counted fault is a failure of the job. If it is a conflict with another transaction, no
//! attempt is spent. But one of a transaction that is stricter than READ COMMITTED may be with the
//! renewals of the job's own lease. Every repetition meets them again, so this one spends an attempt.
//!
//! A statement that crashes its process of the server ends all connections, so no other one is answered
//! so soon. An outage that the job did not cause looks the same, but rarely strikes one job often. So the
//! tenth fault of any kind is a failure of the job. So is the third end of its time or of its lease after
//! such faults, on one node.
//!
//! Each crash also ends the transactions of other jobs. Jobs pause for different times, so that a short one
//! can end between two crashes. From the fifth fault on, such jobs run one at a time in the whole database,
//! under a lock that ends with the transaction. So a long job is done before the one that crashes the server
//! runs again, and spends no attempt.

use std::time::Duration;

use tokio::time::Instant;

use super::failure::failure;
use super::fault::Fault;
use super::run::Run;
use super::stopped::interrupted;
use crate::job::JobId;
use crate::worker::finished::Ending;
use crate::worker::handler::HandlerError;

/// The number of counted faults that count as a failure of the job.
const MOST: u32 = 3;
/// The number of all faults that count as one.
const MOST_OF_ALL: u32 = 10;
/// The number of all faults from which on the job runs under the lock of such jobs.
const ALONE_FROM: u32 = 5;
/// The time within which another statement is answered if the database is not away.
const AT_ONCE: Duration = Duration::from_secs(2);
/// The first pause, and the longest one. A job waits for a part of it, which differs from job to job.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// The faults of the database during one job.
pub(super) struct Faults {
    since: Instant,
    /// The faults after the handler had run.
    all: u32,
    /// Those of them during which the database answered on another connection.
    counted: u32,
    pause: Duration,
}

impl Faults {
    /// Creates an empty count, at the job's first attempt.
    pub(super) fn none() -> Self {
        Self {
            since: Instant::now(),
            all: 0,
            counted: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// Returns whether the job is to run under the lock of jobs that met crashes of the server.
    pub(super) fn run_alone(&self) -> bool {
        self.all >= ALONE_FROM
    }

    /// Records a fault. Returns `None` when the database answers again and the job is to run again.
    /// Returns an ending when no time is left, or when the faults count as a failure.
    pub(super) async fn one_more(&mut self, run: &Run<'_>, fault: Fault) -> Option<Ending> {
        let node = run.node;
        let ending = tokio::select! {
            biased;
            () = run.lease.stop.token().cancelled() => Some(match interrupted(run) {
                Ending::Release => self.out_of_time(run, &fault),
                ending => ending,
            }),
            () = node.signals.stop_jobs.cancelled() => Some(Ending::Release),
            ending = self.wait(run, &fault) => ending,
        };
        if ending.is_none() && !node.leases.trusts(run.held) {
            return Some(Ending::Lost);
        }
        ending
    }

    /// Waits until the database answers.
    async fn wait(&mut self, run: &Run<'_>, fault: &Fault) -> Option<Ending> {
        let store = &run.node.store;
        // The pool tries again for some seconds while the server starts.
        let at_once = tokio::time::timeout(AT_ONCE, store.answers()).await;
        let mut answers = matches!(at_once, Ok(Ok(())));
        if fault.handler_ran {
            self.all += 1;
            self.counted += u32::from(answers);
            if self.counted >= MOST || self.all >= MOST_OF_ALL {
                return Some(self.spent(run, fault));
            }
        }
        tracing::warn!(
            job = %run.held.id, error = %fault.error, counted = self.counted, faults = self.all,
            "a job's transaction failed with the database or has to wait; the job runs again under \
             the same lock"
        );
        loop {
            tokio::time::sleep(self.part_of_pause(run.held.id)).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            let limit = run.registration.options.timeout;
            if limit.is_some_and(|limit| self.since.elapsed() >= limit) {
                return Some(self.out_of_time(run, fault));
            }
            if answers {
                return None;
            }
            answers = store.answers().await.is_ok();
        }
    }

    /// Returns up to the whole pause, by random bits of the job's id.
    fn part_of_pause(&self, job: JobId) -> Duration {
        let (_, bits) = job.0.as_u64_pair();
        let thousandths = bits.rotate_right(self.all * 5) % 1_000 + 1;
        self.pause.mul_f64(thousandths as f64 / 1e3)
    }

    /// Returns the ending of a job whose time or lease ended before the database answered.
    fn out_of_time(&self, run: &Run<'_>, fault: &Fault) -> Ending {
        if fault.handler_ran && !run.node.stops.releases(run.job.id) {
            return self.spent(run, fault);
        }
        Ending::Release
    }

    /// Returns the failure of a job whose faults count.
    fn spent(&self, run: &Run<'_>, fault: &Fault) -> Ending {
        let error = &fault.error;
        let renewed = run.node.leases.renewed_since(run.held, self.since);
        let message = match (fault.is_conflict, renewed) {
            (true, false) => {
                return failure(run, HandlerError::conflict(error.clone()), "conflict");
            }
            // Each repetition would meet the next renewal.
            (true, true) => format!(
                "the job's transaction conflicts with the renewals of its lease; make the handler \
                 shorter than a third of the lease, or its transaction READ COMMITTED: {error}"
            ),
            (false, _) if self.counted >= MOST => format!(
                "the database repeatedly failed the job's transaction while it answered other \
                 statements: {error}"
            ),
            (false, _) => format!(
                "the database repeatedly failed while the job's transaction was open; look into the \
                 server's log for a statement that ends its process: {error}"
            ),
        };
        failure(run, HandlerError::retry(message), "retry")
    }
}
