//! The task that asks for the ends of batches whose members have ended on this node.
//!
//! It runs after the commit of an outcome, so it delays no outcome and fails none. While a batch is
//! asked for, the departures of its other members gather. A batch that gives no answer pauses for
//! itself, and the others go on. A node without batches sends nothing. The leader finds the departures
//! that are lost with the node (`leader/batches.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use metrics::counter;

use crate::job::{BatchId, JobId};
use crate::producer::commit_hook::Cause;
use crate::store::StoreError;
use crate::store::batches::EndedBatch;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::departures::{FIRST_PAUSE, Left, pause};

/// Maximum number of departures in one transaction.
const SLICE: usize = 5_000;
/// Maximum number of batches that are asked for at once.
const AT_ONCE: usize = 4;
/// The number of attempts for one batch. After that the leader asks.
const ATTEMPTS: u32 = 10;
/// The time for which a node that ends asks for the batches that are left.
const FAREWELL: Duration = Duration::from_secs(5);

/// Asks for the ends of batches until the node has ended.
pub(crate) async fn end_batches(node: Arc<NodeContext>) {
    let ended = &node.signals.ended;
    loop {
        let due = node.departures.next();
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            () = node.departures.news.notified() => {}
            () = due => {}
        }
        round(&node, node.departures.take(Some(Instant::now()))).await;
    }
}

/// Asks for the batches that are left when all outcomes of the node are committed.
pub(crate) async fn say_farewell(node: &Arc<NodeContext>) {
    let left = async {
        while !node.departures.is_empty() {
            round(node, node.departures.take(None)).await;
            if !node.departures.is_empty() {
                tokio::time::sleep(FIRST_PAUSE).await;
            }
        }
    };
    let _ = tokio::time::timeout(FAREWELL, left).await;
}

/// Asks for these batches. Those without an answer wait again.
async fn round(node: &Arc<NodeContext>, due: Vec<(BatchId, Left)>) {
    futures_util::stream::iter(due)
        .for_each_concurrent(AT_ONCE, |(batch, left)| ask(node, batch, left))
        .await;
}

async fn ask(node: &Arc<NodeContext>, batch: BatchId, left: Left) {
    let jobs: Vec<JobId> = left.jobs.into_iter().collect();
    for (n, slice) in jobs.chunks(SLICE).enumerate() {
        if let Err(error) = end_batch(node, batch, slice).await {
            // A creator of members may keep the batch open for long.
            let is_busy = error.is_conflict();
            let attempts = left.attempts + u32::from(!is_busy);
            let again = attempts < ATTEMPTS;
            if is_busy {
                tracing::debug!(%batch, %error, "a batch is busy; looking again whether it has ended");
            } else {
                tracing::warn!(
                    %batch, %error, again,
                    "could not look whether a batch has ended; the leader looks, too"
                );
            }
            if again {
                let rest = Left {
                    jobs: jobs.iter().skip(n * SLICE).copied().collect(),
                    attempts,
                    tries: left.tries.saturating_add(1),
                    from: Some(Instant::now() + pause(left.tries)),
                };
                node.departures.add(batch, rest);
            }
            return;
        }
    }
}

/// Ends a batch if it is over, and hints the job at its end.
pub(crate) async fn end_batch(
    node: &NodeContext,
    batch: BatchId,
    left: &[JobId],
) -> Result<bool, StoreError> {
    let Some(EndedBatch { end, ready, job }) = node.store.end_batch(batch, left).await? else {
        return Ok(false);
    };
    tracing::debug!(
        %batch, name = crate::telemetry::plain::one_line(&end.name, 256), members = end.members,
        dead_letters = end.dead_letters, ?job, "a batch has ended"
    );
    let outcome = match end.dead_letters {
        0 => "done",
        _ => "dead-letters",
    };
    counter!(m::BATCHES_ENDED, "outcome" => outcome).increment(1);
    node.hint_created(Cause::Handoff, ready);
    Ok(true)
}
