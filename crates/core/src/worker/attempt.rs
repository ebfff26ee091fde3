//! An attempt that ended and is not yet counted.

use std::sync::Arc;

use tokio::time::Instant;

use crate::job::Job;
use crate::store::CANCELLED;
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;

/// The fate of an attempt's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptFate {
    /// The outcome is committed.
    Committed,
    /// The job was deleted, because an operator had cancelled it. The outcome was another one.
    Cancelled,
    /// The lock was lost before the commit.
    Lost,
    /// An answer was lost: either the outcome was committed, or the lock was lost.
    Unknown,
}

/// An attempt that ended and is to be counted.
pub(crate) struct Attempt {
    pub(crate) job: Arc<Job>,
    pub(crate) outcome: &'static str,
    finished_at: Instant,
}

impl Attempt {
    /// Creates an attempt with this ending.
    pub(crate) fn of(job: Arc<Job>, ending: &Ending, finished_at: Instant) -> Self {
        Self {
            job,
            outcome: ending.outcome(),
            finished_at,
        }
    }

    /// Counts the attempt, and the time from its end until `now`. Notes the departure of a member of
    /// a batch.
    pub(crate) fn count(self, node: &NodeContext, fate: AttemptFate, now: Instant) {
        let metrics = &node.cached_metrics;
        let outcome = match fate {
            AttemptFate::Committed => self.outcome,
            AttemptFate::Cancelled => CANCELLED,
            AttemptFate::Lost => "lost-lock",
            AttemptFate::Unknown => "unknown",
        };
        if may_have_ended(fate, self.outcome) {
            node.departures.note(&self.job);
        }
        metrics.job_type(&self.job.job_type).finished(outcome);
        let took = now.duration_since(self.finished_at).as_secs_f64();
        metrics.finish_to_complete.record(took);
    }
}

/// Returns whether the job has left the tables, or has become a dead letter.
fn may_have_ended(fate: AttemptFate, outcome: &str) -> bool {
    match fate {
        AttemptFate::Cancelled | AttemptFate::Unknown => true,
        AttemptFate::Committed => !matches!(
            outcome,
            "retry" | "timeout" | "panic" | "snooze" | "conflict" | "interrupted"
        ),
        AttemptFate::Lost => false,
    }
}
