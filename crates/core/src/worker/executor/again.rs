//! Runs a job again after a fault of the database that the job did not cause (protocol rule 29).
//!
//! If the transaction of a handler could not be opened, lost its connection or could not be
//! completed, none of its writes was committed. The job runs again under the same lock: its
//! instance stays held, so no sibling overtakes it, and no attempt is spent. The repetition ends
//! when the lease is no longer trusted, at the type's timeout, or when the node stops its jobs.
//! Then the job is released, unless its lock was lost.
//!
//! A job may cause the fault. The [`FaultScore`] decides when the faults count as a failure of the job. If the
//! last one is a conflict with another transaction, no attempt is spent. But one of a transaction that is
//! stricter than READ COMMITTED may be with the renewals of the job's own lease. Every repetition meets them
//! again, so this one spends an attempt. The third end of the job's time or of its lease after such faults, on
//! one node, is a failure, too, if the database answers. Otherwise the job keeps its score until it starts again
//! on this node.

use std::time::Duration;

use tokio::time::Instant;

use super::failure::failure;
use super::fault::Fault;
use super::run::Run;
use super::stopped::interrupted;
use crate::job::JobId;
use crate::worker::fault_score::FaultScore;
use crate::worker::finished::Ending;
use crate::worker::handler::HandlerError;

/// The time within which another statement is answered if the database is not away.
const AT_ONCE: Duration = Duration::from_secs(2);
/// The longest pause between two questions to a database that is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// The faults of the database during one job.
pub(super) struct Faults {
    since: Instant,
    score: FaultScore,
    /// The number of changes of the server that were known before the attempt.
    server: u64,
    /// The pause before the next question to a database that is away.
    pause: Duration,
    /// Whether the database has answered since the last fault.
    answers: bool,
}

impl Faults {
    /// Returns the faults that the job had on this node before. Called at its first attempt.
    pub(super) fn of(run: &Run<'_>) -> Self {
        let score = match run.registration.options.in_transaction {
            true => run.node.stops.take_score(run.job.id),
            false => FaultScore::default(),
        };
        Self {
            since: Instant::now(),
            score,
            server: run.node.store.server_changes(),
            pause: FaultScore::FIRST_PAUSE,
            answers: true,
        }
    }

    /// Returns the failure of a job whose faults count already: its last commit was never answered.
    pub(super) fn failed_before(&self, run: &Run<'_>) -> Option<Ending> {
        let error = "the results of its commits are unknown".to_owned();
        (self.score.is_failure()).then(|| self.spent(run, &Fault::of_connection(error)))
    }

    /// Keeps the faults of a job that ends without an outcome. A commit without an answer is one: it may
    /// crash the server.
    pub(super) fn keep(mut self, run: &Run<'_>, ending: &Ending) {
        match ending {
            Ending::Left => self.score.has_fault(),
            Ending::Release
            | Ending::Unstarted
            | Ending::Full
            | Ending::Parked { .. }
            | Ending::Lost => {}
            Ending::Done(_)
            | Ending::Cancelled(_)
            | Ending::Committed { .. }
            | Ending::Failed { .. } => {
                return;
            }
        }
        if run.registration.options.in_transaction && !self.score.is_clean() {
            run.node.stops.keep_score(run.job.id, self.score);
        }
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
        if fault.handler_ran {
            self.score.has_fault();
        }
        self.answers = false;
        // A server whose process has crashed ends the other connections some milliseconds later.
        tokio::time::sleep(FaultScore::FIRST_PAUSE).await;
        let asked = Instant::now();
        // The question is not given up after two seconds: its connection would return to the pool unsuspected.
        self.answers = store.answers().await.is_ok();
        if fault.handler_ran {
            let is_same = store.server_changes() == self.server;
            if self.answers && is_same && asked.elapsed() <= AT_ONCE {
                self.score.was_own();
            }
            if self.score.is_failure() {
                return Some(self.spent(run, fault));
            }
        }
        tracing::warn!(
            job = %run.held.id, error = %fault.error, counted = self.score.own(),
            faults = self.score.all(),
            "the database failed a job's transaction; the job runs again under the same lock"
        );
        let longest = self.score.pause().max(self.pause);
        let mut pause = part_of(longest, run.held.id, self.score.all());
        loop {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            let limit = run.registration.options.timeout;
            let left = limit.map(|limit| limit.saturating_sub(self.since.elapsed()));
            tokio::time::sleep(left.map_or(pause, |left| pause.min(left))).await;
            if limit.is_some_and(|limit| self.since.elapsed() >= limit) {
                return Some(self.out_of_time(run, fault));
            }
            self.answers = store.answers().await.is_ok();
            if self.answers {
                break;
            }
            pause = self.pause;
        }
        let server = store.server_changes();
        // The first change is that of the fault itself.
        let own = u64::from(fault.handler_ran);
        self.score
            .waited_through_crashes((server - self.server).saturating_sub(own));
        self.server = server;
        None
    }

    /// Returns the ending of a job whose time or lease ended before it could run again. The job may be the
    /// reason only if the database answers, and its server is the same.
    fn out_of_time(&self, run: &Run<'_>, fault: &Fault) -> Ending {
        let is_same = self.answers && run.node.store.server_changes() == self.server;
        if !self.score.is_clean() && is_same && !run.node.stops.releases(run.job.id, self.since) {
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
            (false, _) if self.score.is_the_jobs_alone() => format!(
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

/// Returns up to the whole pause, by random bits of the job's id, other ones for each fault.
fn part_of(pause: Duration, job: JobId, faults: u32) -> Duration {
    let (_, bits) = job.0.as_u64_pair();
    let thousandths = bits.rotate_right(faults * 5) % 1_000 + 1;
    pause.mul_f64(thousandths as f64 / 1e3)
}
