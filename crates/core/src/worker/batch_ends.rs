//! The task that asks for the ends of batches whose members have ended on this node.
//!
//! It runs after the commit of an outcome, so it delays no outcome and fails none. While a batch is
//! asked for, the departures of its other members gather. Up to four batches are asked for at once. One
//! that gives no answer, or a late one, pauses for itself, and new batches go before those that pause. A
//! node without batches sends nothing. The leader finds the departures that are lost with the node, the
//! batches that do not get their turn, and those that can't be ended now (`leader/batches.rs`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use metrics::counter;

use crate::job::{BatchId, JobId};
use crate::producer::commit_hook::Cause;
use crate::runtime::alarm;
use crate::store::StoreError;
use crate::store::batches::EndedBatch;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::departures::{FIRST_PAUSE, LONGEST_PAUSE, Left, pause};

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
    let mut under_way = HashSet::new();
    let mut asks = FuturesUnordered::new();
    loop {
        let room = AT_ONCE.saturating_sub(asks.len());
        let taken = node.departures.take(room, Some(Instant::now()), &under_way);
        for (batch, left) in taken {
            under_way.insert(batch);
            let node = &node;
            asks.push(async move {
                ask(node, batch, left).await;
                batch
            });
        }
        let has_room = asks.len() < AT_ONCE;
        let due = alarm::at(node.departures.next().map(Into::into));
        tokio::select! {
            biased;
            () = ended.cancelled() => break,
            Some(batch) = asks.next() => {
                under_way.remove(&batch);
            }
            () = node.departures.news.notified(), if has_room => {}
            () = due, if has_room => {}
        }
    }
    // What gets no answer is left to the farewell.
    while asks.next().await.is_some() {}
}

/// Asks for the batches that are left when all outcomes of the node are committed.
pub(crate) async fn say_farewell(node: &Arc<NodeContext>) {
    let left = async {
        while !node.departures.is_empty() {
            let left = node.departures.take(usize::MAX, None, &HashSet::new());
            round(node, left).await;
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
            let again = error.is_transient() && attempts < ATTEMPTS;
            // Another question costs the database as much.
            let pause = if error.is_slow() {
                LONGEST_PAUSE
            } else {
                pause(left.tries)
            };
            if is_busy {
                tracing::debug!(%batch, %error, "a batch is busy; looking again whether it has ended");
            } else if let Some(more) = node.reports.throttled_lines.now("batch: not ended") {
                tracing::warn!(
                    %batch, %error, again, more,
                    "could not look whether a batch has ended; the leader looks, too"
                );
            }
            if again {
                let rest = Left {
                    jobs: jobs.iter().skip(n * SLICE).copied().collect(),
                    attempts,
                    tries: left.tries.saturating_add(1),
                    from: Some(Instant::now() + pause),
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
    let Some(ended) = node.store.end_batch(batch, left).await? else {
        return Ok(false);
    };
    let EndedBatch {
        end,
        ready,
        job,
        refused,
    } = ended;
    if let Some(why) = &refused
        && let Some(more) = node.reports.throttled_lines.now("batch: refused")
    {
        tracing::warn!(
            %batch, name = crate::telemetry::plain::one_line(&end.name, 256),
            why = crate::telemetry::plain::one_line(why, 1_000), more,
            "a batch has ended without the job at its end, since its id is taken; create the job by hand if \
             it is needed: the row of the batch keeps its fields"
        );
    }
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
