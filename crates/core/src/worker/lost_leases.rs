//! Reconciliation: the leases that name this node, and the book that it keeps of them, are made to agree.
//!
//! The answer to a statement may be lost after the statement committed. Then the database holds leases for this node of
//! which the node knows nothing: a job that was locked, or the next sibling that a completion took over. Nothing would
//! run them until the leases end. So after any unknown outcome, and with each renewal, the node asks once which leases
//! name it that are not in its book ([`Store::unknown`](crate::store::Store::unknown)). Each of them is adopted into a
//! free slot, or released (protocol rule 6). An idle node asks nothing.
//!
//! ```text
//!   statement ──► no answer ──► doubt ──► look: leases that name this node and are not in its book
//!                                           │ wait for the statements that were under way meanwhile
//!                                           ├─ an answer told of it: it runs already
//!                                           ├─ a free slot, and no handler ran under it: adopted, the job starts
//!                                           └─ else: released, the job is hinted
//! ```

use std::sync::Arc;

use metrics::counter;
use tokio::time::Instant;

use crate::job::{LockToken, LockedJob};
use crate::producer::commit_hook::Cause;
use crate::store::StoreError;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::executor;

const ADOPTED: &str = "adopted";
const RELEASED: &str = "released";

fn count(how: &'static str, jobs: usize) {
    counter!(m::LEASES_RECONCILED, "how" => how).increment(jobs as u64);
}

/// The counters are seen before they count anything.
pub(crate) fn begin() {
    count(ADOPTED, 0);
    count(RELEASED, 0);
}

/// Look once, if no other look is open; adopt or release the leases that it finds. It waits for statements under way.
pub(crate) async fn look(node: &Arc<NodeContext>) -> Result<(), StoreError> {
    let Some((unknown, sent, seen)) = unknown(node).await? else {
        return Ok(());
    };
    if !unknown.is_empty() {
        node.leases.answers(seen).await;
    }
    let strange = node.leases.end_look(unknown);
    adopt(node, strange, sent).await;
    Ok(())
}

/// The last look of a node that stops: everything that names it and does not run is released.
pub(crate) async fn last_look(node: &Arc<NodeContext>) {
    match unknown(node).await {
        Ok(Some((unknown, sent, _))) => {
            let strange = node.leases.end_look(unknown);
            adopt(node, strange, sent).await;
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%error, "leases may be left that name this node; other nodes take their jobs over when they end");
        }
    }
}

type Found = (Vec<LockedJob>, Instant, u64);

async fn unknown(node: &Arc<NodeContext>) -> Result<Option<Found>, StoreError> {
    let Some(known) = node.leases.begin_look() else {
        return Ok(None);
    };
    let sent = Instant::now();
    let lease = node.options.lease;
    match node.store.unknown(node.id, lease, &known).await {
        Ok(unknown) => Ok(Some((unknown, sent, node.leases.looked(sent)))),
        Err(error) => {
            node.leases.end_look(Vec::new());
            Err(error)
        }
    }
}

/// Start what there is a slot for; release the rest.
async fn adopt(node: &Arc<NodeContext>, strange: Vec<LockedJob>, sent: Instant) {
    if strange.is_empty() {
        return;
    }
    let (mut adopted, mut slots, mut released) = (Vec::new(), Vec::new(), Vec::new());
    let takes_work = !node.draining.is_cancelled() && !node.suspects.any();
    for locked in strange {
        let served = node.served.handler(&locked.job.job_type).is_some();
        // A handler that runs has a fence of its own: after an earlier run under this lock the job is locked anew.
        let fresh = !node.leases.under_way().is_used(locked.fence);
        let slot = if takes_work && served && fresh {
            node.slots.clone().try_acquire_owned().ok()
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
                "leases named this node, and no answer had told it of them"
            );
        }
    }
    executor::start_unhinted(node, adopted, "reconciliation", sent, slots.into_iter());
    release(node, released).await;
}

/// Give up locks of jobs that do not run here. Where that fails, the next look finds them.
pub(crate) async fn release(node: &Arc<NodeContext>, held: Vec<LockToken>) {
    if held.is_empty() {
        return;
    }
    match node.store.release(node.id, &held).await {
        Ok(released) => node.hook.publish(Cause::Requeue, released.ready),
        Err(error) => {
            tracing::warn!(jobs = held.len(), %error, "locks could not be given back yet");
            node.leases.doubt(node.store.outcome_within());
        }
    }
    node.leases.do_not_expect(&held);
}
