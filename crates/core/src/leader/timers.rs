//! Timers: sleep until the next due date, move what is due, hint it. No polling.
//!
//! One mover, the leader. It learns the next due date from its turns and from its own moves; creators of
//! earlier timers tell it over the broker. A timer that nobody told of is at most one turn late
//! (protocol rule 30). Due dates are the database's time: the sleep is computed from what its clock said,
//! never from this machine's.
//!
//! A timer that is due alone runs here, where nothing else does: the statement that moves it locks it, and it needs no
//! hint (docs/internals/measurements.md, 0025).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::producer::commit_hook::Cause;
use crate::store::{MovedTimers, StoreError};
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::next_timer::Asker;

/// Timers moved in one statement.
const BATCH: i64 = 1_000;
/// So many at most are locked by the statement that moves them.
const FEW: usize = 4;
/// Somebody else has the rows of all that is due: not before this again.
const BUSY_PAUSE: Duration = Duration::from_millis(25);

/// Move due timers while this node leads.
pub(crate) async fn move_timers(node: Arc<NodeContext>) {
    let mut alarm = node.next_timer.subscribe();
    let mut leads = node.leads.subscribe();
    let mut pause = Duration::from_millis(100);
    // The next ones are moved by the page: more was due than the last statement moved, or it failed.
    let mut crowd = false;
    loop {
        let next = if *leads.borrow_and_update() {
            *alarm.borrow_and_update()
        } else {
            None
        };
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // What is due comes before news of what will be: a flood of these delays nothing.
            biased;
            () = node.draining.cancelled() => return,
            () = due => {}
            _ = leads.changed() => continue,
            _ = alarm.changed() => continue,
        }
        let slots = if crowd { Vec::new() } else { free_slots(&node) };
        node.next_timer.asks(Asker::Mover);
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
                // Where nothing was moved, what is due is locked elsewhere, or became due while the statement ran.
                crowd = more && !none;
                let next_due = if more && none {
                    Some(moved.now + BUSY_PAUSE)
                } else {
                    moved.next_due
                };
                let slots = slots.into_iter();
                executor::start_unhinted(&node, moved.locked, "timer", sent, slots);
                node.hook.publish(Cause::Timer, moved.ready);
                node.next_timer
                    .answered(Asker::Mover, Instant::now(), moved.now, next_due);
            }
            Err(error) => {
                drop(slots);
                crowd = true;
                tracing::warn!(%error, "due timers could not be moved; trying again");
                tokio::select! {
                    biased;
                    () = node.draining.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

/// A few slots of a node that runs nothing; else none, since another node may be less busy.
fn free_slots(node: &NodeContext) -> Vec<OwnedSemaphorePermit> {
    let slots = &node.slots;
    let idle = slots.available_permits() == node.options.concurrency;
    if !idle || !node.leases.healthy() || node.served.types().is_empty() {
        return Vec::new();
    }
    let free = || slots.clone().try_acquire_owned().ok();
    // One is left to what comes meanwhile, where there is more than one.
    let few = FEW.min(node.options.concurrency - 1).max(1);
    std::iter::from_fn(free).take(few).collect()
}

/// Move what is due; lock as much of it as there are slots, if there are any.
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
