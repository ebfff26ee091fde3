//! The timer task: sleeps until the next due date, moves due timers and hints them. It does not
//! poll.
//!
//! Only the leader moves timers. It learns the next due date from its cycles and from its own
//! moves, and creators send earlier due dates over the broker. A timer that no creator reported is
//! at most one leader cycle late (protocol rule 30). Due dates are times of the database's clock,
//! so the sleep is computed from the time that this clock showed, never from this machine's time.
//!
//! A few due timers run on this node while it runs nothing else: the statement that moves them also
//! locks them, and they need no hint (docs/internals/measurements.md, 0025).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::producer::commit_hook::Cause;
use crate::store::{MovedTimers, StoreError};
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::next_timer::Asker;
use crate::worker::slot_pool::Slot;

/// Maximum number of timers moved in one statement.
const BATCH: i64 = 1_000;
/// Maximum number of timers that the statement that moves them also locks.
const FEW: usize = 4;
/// The pause before the next attempt if other transactions have locked the rows of all due timers.
const BUSY_PAUSE: Duration = Duration::from_millis(25);

/// Moves due timers while this node leads.
pub(crate) async fn move_timers(node: Arc<NodeContext>) {
    let mut pause = Duration::from_millis(100);
    // Whether the next statement moves a full page and locks nothing. True if more timers were due
    // than the last statement moved, or if it failed.
    let mut crowd = false;
    let (leadership, draining) = (&node.leadership, &node.signals.draining);
    while leadership.until_due(&leadership.next_timer, draining).await {
        let slots = if crowd { Vec::new() } else { free_slots(&node) };
        node.leadership.next_timer.asks(Asker::Mover);
        let sent = Instant::now();
        match move_due(&node, slots.len()).await {
            Ok(moved) => {
                crash_point!("timers-moved");
                pause = Duration::from_millis(100);
                tracing::debug!(
                    timers = moved.ready.len(),
                    here = moved.locked.len(),
                    "due timers became executable"
                );
                let more = moved.next_due.is_some_and(|due| due <= moved.now);
                let none = moved.ready.is_empty() && moved.locked.is_empty();
                // If nothing was moved, the due timers are locked elsewhere or became due while the
                // statement ran.
                crowd = more && !none;
                let next_due = if more && none {
                    Some(moved.now + BUSY_PAUSE)
                } else {
                    moved.next_due
                };
                if let Some(teller) = node.teller() {
                    teller.fired(&moved);
                }
                let slots = slots.into_iter();
                executor::start_unhinted(&node, moved.locked, "timer", sent, slots);
                node.hook.publish(Cause::Timer, moved.ready);
                node.leadership.next_timer.answered(
                    Asker::Mover,
                    Instant::now(),
                    moved.now,
                    next_due,
                );
            }
            Err(error) => {
                drop(slots);
                crowd = true;
                tracing::warn!(%error, "could not move due timers; trying again");
                tokio::select! {
                    biased;
                    () = node.signals.draining.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

/// Returns a few slots of a process that runs nothing. Returns none if it runs jobs, because
/// another node may be less busy.
fn free_slots(node: &NodeContext) -> Vec<Slot> {
    let slots = &node.slots.of_node;
    let idle = slots.is_idle();
    if !idle || !node.leases.healthy() || node.served.types().is_empty() {
        return Vec::new();
    }
    let free = || slots.try_take_spare();
    // One slot is left for jobs that arrive meanwhile, if there is more than one.
    let few = FEW.min(node.options.concurrency - 1).max(1);
    std::iter::from_fn(free).take(few).collect()
}

/// Moves due timers. Locks as many of them as there are slots, if there are any.
async fn move_due(node: &NodeContext, slots: usize) -> Result<MovedTimers, StoreError> {
    match i64::try_from(slots) {
        Ok(few @ 1..) => {
            let lanes = node.options.lane_names();
            let terms = node.terms();
            let takes = node.store.take_due_timers(&terms, &lanes, few);
            node.asks(takes).await
        }
        _ => node.store.move_due_timers(BATCH).await,
    }
}
