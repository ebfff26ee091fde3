//! The answer to the commit of a batch, and its effect on the locks of the node.

use std::collections::HashSet;

use metrics::counter;

use crate::job::{JobId, LockToken};
use crate::store::BatchOutcome;
use crate::telemetry::metrics as m;
use crate::worker::attempt::AttemptFate;
use crate::worker::context::NodeContext;
use crate::worker::held_instances::End;

/// The result for one kind of outcome.
#[derive(Default)]
pub(super) struct Committed {
    pub(super) outcome: BatchOutcome,
    /// The ids of outcomes for which an answer was lost: they were committed, or their locks were
    /// lost.
    pub(super) unknown: Vec<JobId>,
}

impl Committed {
    /// Returns the fate of the outcome of a job.
    pub(super) fn fate(&self, id: JobId) -> AttemptFate {
        if self.outcome.cancelled.contains(&id) {
            AttemptFate::Cancelled
        } else if self.outcome.applied.contains(&id) {
            AttemptFate::Committed
        } else if self.unknown.contains(&id) {
            AttemptFate::Unknown
        } else {
            AttemptFate::Lost
        }
    }
}

/// Ends the node's hold on all jobs of an answered batch, except those that the database
/// [left](BatchOutcome::left).
pub(super) fn batch_outcome(
    node: &NodeContext,
    operation: &'static str,
    held: &[&LockToken],
    outcome: BatchOutcome,
    in_doubt: bool,
) -> Committed {
    let applied: HashSet<JobId> = outcome.applied.iter().copied().collect();
    let next = next_instances(&outcome);
    let mut unknown = Vec::new();
    for held in held {
        if outcome.left.contains(&held.id) {
            continue;
        }
        if applied.contains(&held.id) {
            node.ended(held, end_of(held, &next));
            continue;
        }
        node.ended(held, End::Unsure);
        if in_doubt {
            tracing::info!(
                job = %held.id, fence = %held.fence, operation,
                "an answer of the database was lost; either the outcome is committed, or the lock \
                 was lost before"
            );
            unknown.push(held.id);
        } else {
            counter!(m::FENCED, "operation" => operation).increment(1);
            tracing::warn!(
                job = %held.id,
                fence = %held.fence,
                operation,
                "the lock was lost; the outcome of the job was discarded"
            );
        }
        node.may_have_lost((*held).clone());
    }
    Committed { outcome, unknown }
}

/// Returns the instances whose next job was locked.
pub(super) fn next_instances(outcome: &BatchOutcome) -> HashSet<&str> {
    let next = outcome.next.iter();
    next.filter_map(|next| next.job.exclusive_instance())
        .collect()
}

/// Returns the end of the hold on a job with a committed outcome.
pub(super) fn end_of(held: &LockToken, next: &HashSet<&str>) -> End {
    match &held.instance {
        Some(instance) if next.contains(&**instance) => End::PassedOn,
        _ => End::Over,
    }
}
