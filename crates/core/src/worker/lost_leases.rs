//! Reconciliation: finds leases in the database that name this node and are not in its lease book.
//!
//! The answer to a statement may be lost after the statement committed. The database then holds
//! leases of this node that the node does not know: of a job that was locked, or of the next
//! sibling that a completion took over. Their jobs would not run until the leases end. So after
//! each unknown outcome, and with each renewal, the node asks once for the leases that name it and
//! are not in its book ([`Store::unknown`](crate::store::Store::unknown)). It adopts each such
//! lease into a free slot, or releases it (protocol rule 6). An idle node asks nothing.
//!
//! ```text
//!   statement ──► no answer ──► doubt ──► look for leases of this node that are not in its book
//!                                           │ wait for the statements that were under way
//!                                           ├─ an answer contained it: its job runs already
//!                                           ├─ slot free, no handler ran under it, not
//!                                           │  cancelled meanwhile: adopted
//!                                           └─ otherwise: released, the job is hinted
//! ```

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;

use crate::job::{JobId, LockToken, LockedJob};
use crate::store::StoreError;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::release;

const ADOPTED: &str = "adopted";
const RELEASED: &str = "released";

fn count(how: &'static str, jobs: usize) {
    counter!(m::LEASES_RECONCILED, "how" => how).increment(jobs as u64);
}

/// Registers the counters with the value zero.
pub(crate) fn begin() {
    count(ADOPTED, 0);
    count(RELEASED, 0);
}

/// Looks once for lost leases, unless another look is open. Waits for the statements that are under
/// way, and adopts or releases the leases that it finds.
pub(crate) async fn look(node: &Arc<NodeContext>) -> Result<(), StoreError> {
    let Some((look, unknown, seen)) = Look::begin(node).await? else {
        return Ok(());
    };
    if !unknown.is_empty() {
        node.leases.answers(seen).await;
    }
    let sent = look.sent;
    adopt(node, look.end(unknown), sent).await;
    Ok(())
}

/// Looks for lost leases of a node that stops. Releases each lease that names this node and whose
/// job does not run.
pub(crate) async fn last_look(node: &Arc<NodeContext>) {
    match Look::begin(node).await {
        Ok(Some((look, unknown, _))) => {
            let sent = look.sent;
            adopt(node, look.end(unknown), sent).await;
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(
                %error,
                "could not look for lost leases; if any remain, their jobs are taken over when \
                 they expire"
            );
        }
    }
}

/// A look that is open. Dropping it ends it, so that a panic does not keep the node from the next.
/// The leases that it found are still in doubt then.
struct Look {
    node: Arc<NodeContext>,
    sent: Instant,
    is_open: bool,
    has_found: bool,
}

impl Look {
    /// Asks for the leases that the lease book does not have. Returns them with the number of the
    /// last statement that may have written them, or `None` while another look is open.
    async fn begin(
        node: &Arc<NodeContext>,
    ) -> Result<Option<(Self, Vec<LockedJob>, u64)>, StoreError> {
        let Some(known) = node.leases.begin_look() else {
            return Ok(None);
        };
        let mut look = Self {
            node: node.clone(),
            sent: Instant::now(),
            is_open: true,
            has_found: false,
        };
        let lease = node.options.lease;
        let unknown = node.store.unknown(node.id, lease, &known).await?;
        look.has_found = !unknown.is_empty();
        let seen = node.leases.looked(look.sent);
        Ok(Some((look, unknown, seen)))
    }

    /// Ends the look. Returns the leases among `unknown` that no answer contained.
    fn end(mut self, unknown: Vec<LockedJob>) -> Vec<LockedJob> {
        self.is_open = false;
        self.node.leases.end_look(unknown)
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if self.is_open {
            self.node.leases.end_look(Vec::new());
            if self.has_found {
                self.node.leases.doubt(Duration::ZERO);
            }
        }
    }
}

/// Renews these leases, and returns those that this node still holds and whose jobs no operator has
/// cancelled.
async fn wanted(
    node: &Arc<NodeContext>,
    strange: &[LockedJob],
) -> Result<HashSet<JobId>, StoreError> {
    let held: Vec<LockToken> = strange.iter().map(LockedJob::held).collect();
    let renewed = node.store.renew(node.id, node.options.lease, &held).await?;
    let cancelled: HashSet<JobId> = renewed.cancelled.into_iter().collect();
    let held = renewed.renewed.into_iter().chain(renewed.busy);
    Ok(held.filter(|id| !cancelled.contains(id)).collect())
}

/// Starts the jobs for which a slot is free; releases the others. The release of a cancelled job deletes
/// it.
async fn adopt(node: &Arc<NodeContext>, strange: Vec<LockedJob>, sent: Instant) {
    if strange.is_empty() {
        return;
    }
    let (mut adopted, mut slots, mut released) = (Vec::new(), Vec::new(), Vec::new());
    let wanted = wanted(node, &strange).await.unwrap_or_else(|error| {
        tracing::debug!(%error, "could not ask whether these jobs are cancelled; releasing them");
        HashSet::new()
    });
    // Read after the question, which may have taken long: a node that has stopped since starts no job.
    let takes_work = !node.signals.draining.is_cancelled() && !node.suspects.any();
    for locked in strange {
        let served = node.served.handler(&locked.job.job_type).is_some();
        // Each run of a handler has its own fence: if one ran under this lock, the job is locked
        // again.
        let fresh = !node.leases.under_way().is_used(locked.fence);
        let is_wanted = wanted.contains(&locked.job.id);
        let slot = if takes_work && served && fresh && is_wanted {
            node.slots.of_node.try_take_spare()
        } else {
            None
        };
        match slot {
            Some(slot) => {
                slots.push(slot);
                adopted.push(locked);
            }
            None => released.push(locked.held()),
        }
    }
    for (jobs, what) in [(adopted.len(), ADOPTED), (released.len(), RELEASED)] {
        count(what, jobs);
        if jobs > 0 {
            tracing::info!(
                node = %node.id, jobs, how = what,
                "found leases of this node whose answers were lost"
            );
        }
    }
    executor::start_unhinted(node, adopted, "reconciliation", sent, slots.into_iter());
    release::release(node, released).await;
}
