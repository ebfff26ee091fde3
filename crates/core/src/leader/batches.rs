//! The leader ends batches whose members have left unnoticed: members that were deleted, members
//! whose node died after the commit of their outcome, and members that a program without batches
//! completed.
//!
//! It looks with the leader's cycles, and only if a batch is open. A look reads the latest members of
//! each open batch. If none of them is present, it forgets the members that are gone, in transactions
//! of a bounded size, until it finds one that keeps the batch open. If there is none, it asks for the
//! end. Of a batch with more dead letters than the transaction of the end reads, it forgets the dead
//! letters before, in further transactions.

use std::sync::Arc;
use std::time::Duration;

use crate::job::{BatchId, JobId};
use crate::store::StoreError;
use crate::store::batches::AT_END;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;
use crate::worker::batch_ends::end_batch;
use crate::worker::context::NodeContext;

/// Maximum number of batches in one query. It answers only with those without a present member.
const PAGE: i64 = 1_000;
/// The pause between two queries.
const BETWEEN: Duration = Duration::from_millis(20);

/// Looks whenever a cycle has found an open batch, until the node drains.
pub(crate) async fn look_after(node: Arc<NodeContext>) {
    let (mut failed, mut stuck) = (LogThrottle::default(), LogThrottle::default());
    loop {
        tokio::select! {
            biased;
            () = node.signals.draining.cancelled() => return,
            () = node.leadership.open_batches.notified() => {}
        }
        if let Err(error) = look(&node, &mut stuck).await
            && let Some(more) = failed.now()
        {
            tracing::warn!(%error, more, "could not look for batches that have ended");
        }
    }
}

async fn look(node: &Arc<NodeContext>, stuck: &mut LogThrottle) -> Result<(), StoreError> {
    let (mut after, mut open) = (None, 0);
    loop {
        let page = node.store.open_batches(after, PAGE).await?;
        open += page.number;
        for batch in page.over {
            if node.signals.draining.is_cancelled() {
                return Ok(());
            }
            match end(node, batch).await {
                Ok(has_ended) => open -= usize::from(has_ended),
                // The database is away, or too slow for any batch.
                Err(error) if error.is_transient() && !error.is_answer() => return Err(error),
                // A transaction adds members, or a node has just asked.
                Err(error) if error.is_conflict() => {
                    tracing::debug!(%batch, %error, "a batch is busy; looking again with the next cycle");
                }
                // The other batches go on.
                Err(error) => {
                    if let Some(more) = stuck.now() {
                        tracing::warn!(
                            %batch, %error, more,
                            "a batch can't be ended; correct the cause, or cancel the batch \
                             (`jobwire batches cancel`)"
                        );
                    }
                }
            }
        }
        after = page.next;
        if !*node.leadership.leads.borrow() {
            return Ok(());
        }
        if after.is_none() {
            #[allow(clippy::cast_precision_loss, reason = "a gauge needs no 53 bits")]
            node.gauges.of_node(m::OPEN_BATCHES).set(open as f64);
            return Ok(());
        }
        tokio::select! {
            () = node.signals.draining.cancelled() => return Ok(()),
            () = tokio::time::sleep(BETWEEN) => {}
        }
    }
}

/// Forgets the members that are gone, and ends the batch if none is left. Stops when the node drains.
/// Returns whether the batch has ended.
async fn end(node: &Arc<NodeContext>, batch: BatchId) -> Result<bool, StoreError> {
    let (mut after, mut left) = (None, 0);
    while let Some(members) = next_page(node, batch, &mut after).await? {
        if node.store.forget_batch_members(batch, &members).await? {
            return Ok(false);
        }
        left += members.len();
    }
    if node.signals.draining.is_cancelled() {
        return Ok(false);
    }
    if end_batch(node, batch, &[]).await? {
        return Ok(true);
    }
    if i64::try_from(left).is_ok_and(|left| left <= AT_END) {
        return Ok(false);
    }
    // No member keeps the batch open, and there are more dead letters than its end reads.
    let mut after = None;
    while let Some(members) = next_page(node, batch, &mut after).await? {
        if !node.store.forget_dead_letters(batch, &members).await? {
            return Ok(false);
        }
    }
    if node.signals.draining.is_cancelled() {
        return Ok(false);
    }
    end_batch(node, batch, &[]).await
}

/// Returns the next members. `None` at the end, and when the node drains.
async fn next_page(
    node: &NodeContext,
    batch: BatchId,
    after: &mut Option<JobId>,
) -> Result<Option<Vec<JobId>>, StoreError> {
    if node.signals.draining.is_cancelled() {
        return Ok(None);
    }
    let members = node.store.batch_members(batch, *after, AT_END).await?.jobs;
    *after = members.last().copied();
    Ok(after.is_some().then_some(members))
}
