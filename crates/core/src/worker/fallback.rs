//! Fallback: claims jobs from the database while hints do not reach the node (protocol rule 28).
//!
//! Without a broker no hint shows that a job is ready. If receiving or publishing is impossible for
//! [`claim_after`](crate::NodeOptions::claim_after), a node asks the database for ready jobs, lane
//! by lane. A claimed job is treated like a hinted one: it passes the same checks, and is run,
//! renewed and completed in the same way.
//!
//! ```text
//!       receiving or publishing impossible for `claim_after`,
//!       or for a second while the node joins its group
//!  hints ───────────────────────────────────────────────► claims ◄─────────────┐
//!    ▲                                                      │ both possible    │ impossible
//!    │                                                      ▼ again            │ again
//!    └─────────── the marker is back ───────────── claims, a marker under way ─┘
//! ```
//! * **A node that joins** is not in the group of its lane yet. On Kafka that may take seconds.
//!   This is no fault, so the node waits one second instead of `claim_after`.
//! * **A blocked publisher** is enough: the broker keeps consumers connected, but no hint arrives.
//! * **The marker** is published after recovery, behind the hints that still wait in the lane. When
//!   it is back, hints pass through again, and the hints from the time of the outage have been
//!   decided. Their jobs that were claimed meanwhile are gone, so these hints start nothing. Until
//!   then the node claims jobs and receives hints; the store decides.
//! * **Pages**: A node claims at most as many jobs as it has free slots, in pages by key, in
//!   smaller pages if jobs are large. After a pass through its lanes it pauses: up to a second
//!   while it finds nothing, and a few times as long as the pass kept the database busy ([`pace`]).
//!   A job that becomes ready in this process shortens the pause. While hints work, the node asks
//!   nothing.
//! * **Types with a limit** of their own are claimed apart, as many jobs as slots of the type are free
//!   ([`limited`]).
//! * **Several nodes** skip each other's locked rows, so they claim different jobs.
//! * **Rescued jobs** come first in their lane and take at most a quarter of the slots.
//!   **Suspects** come last, one at a time, after the lane was searched to its end.
//! * **A row that the database refuses to lock** does not stop other rows: a refused page is locked
//!   in halves, and the row that is refused alone is skipped until the next pass.
//!
//! A transport without a broker carries wakes instead of hints. Then claiming is the regular way,
//! and the node claims when it is woken ([`woken`]).
//!
//! Other tasks handle the rest: the leader, which needs no broker, handles expired leases and
//! timers; the sweeper handles jobs whose hints were dropped and that no node claimed before the
//! marker was back.

mod claimer;
mod cursor;
mod lane;
mod limited;
mod markers;
mod pace;
mod page;
mod turn;
mod watch;
mod woken;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::runtime::alarm;
use crate::transport::Control;
use crate::worker::context::NodeContext;
use crate::worker::slot_pool::{Share, Slot};
use claimer::Claimer;

/// The interval between checks of the transport's health.
const LOOK: Duration = Duration::from_millis(250);

/// Claims jobs while hints do not come, until the node drains.
pub(crate) async fn claim(node: Arc<NodeContext>) {
    if let Some(wakes) = node.transport.wakes() {
        return woken::claim(node, wakes).await;
    }
    let Some(patience) = node.options.claim_after else {
        return node.signals.draining.cancelled().await;
    };
    if node.transport.is_single_node() {
        // Hints within a process are always available.
        return node.signals.draining.cancelled().await;
    }
    let mut control = node.transport.listen();
    let draining = node.signals.draining.clone();
    let mut claimer = Claimer::new(node, patience);
    let mut offered = claimer.node.hook.offered();
    let mut freed = claimer.node.slots.freed();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let node = claimer.node.clone();
    let mut request = SlotRequest::new(&node.slots.of_node);
    loop {
        // Before the slots are counted, so that no later one is missed.
        freed.mark_unchanged();
        let (claims, at) = claimer.next();
        let slot = tokio::select! {
            biased;
            () = draining.cancelled() => break,
            heard = control.recv() => {
                match heard {
                    Ok(Control::MarkerBack { lane, marker }) => claimer.marker_back(&lane, marker),
                    // A missed marker is sent again.
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                }
                continue;
            }
            Some((at, left)) = claimer.leaving.next() => {
                claimer.marker_left(at, left);
                continue;
            }
            _ = look.tick() => {
                claimer.look();
                continue;
            }
            () = changed(&mut offered), if claims => {
                claimer.pace.hurry(Instant::now());
                continue;
            }
            Ok(()) = freed.changed(), if claimer.misses_slots() => continue,
            slot = request.at(claims.then_some(at)) => Some(slot),
        };
        // Must not be cancelled: a job that is locked has to be started.
        claimer.take_some(slot).await;
    }
    claimer.end();
}

/// Waits until a job becomes ready in this process.
async fn changed(offered: &mut Option<tokio::sync::watch::Receiver<u64>>) {
    let changed = match offered {
        Some(offered) => offered.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        // The hook is gone, or there is none.
        std::future::pending().await
    }
}

/// The claimer's request for a slot. It waits on while the claimer does something else, so it keeps
/// its place among the requests of the node.
struct SlotRequest<'a> {
    of_node: &'a Share,
    waiting: Option<Pin<Box<dyn Future<Output = Slot> + Send + 'a>>>,
}

impl<'a> SlotRequest<'a> {
    fn new(of_node: &'a Share) -> Self {
        let waiting = None;
        Self { of_node, waiting }
    }

    /// Waits until `at`, for ever without a time, then returns a free slot. Until then it requests
    /// none. Cancel-safe.
    async fn at(&mut self, at: Option<Instant>) -> Slot {
        if at.is_none_or(|at| Instant::now() < at) {
            self.waiting = None;
            alarm::at(at).await;
        }
        let of_node = self.of_node;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(of_node.take()));
        let slot = waiting.await;
        self.waiting = None;
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Transport;
    use crate::transport::in_process::InProcessTransport;
    use crate::worker::slot_pool::SlotPool;

    #[tokio::test]
    async fn a_request_for_a_slot_keeps_its_place_until_it_is_put_off() {
        let transport: Arc<dyn Transport> = Arc::new(InProcessTransport::new());
        let share = SlotPool::new(1).join(1, None, &transport).unwrap();
        let mut request = SlotRequest::new(&share);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(3_600));
        let mut slot = share.try_take();
        for is_put_off in [false, true] {
            assert!(futures_util::poll!(Box::pin(request.at(Some(now)))).is_pending());
            if is_put_off {
                assert!(futures_util::poll!(Box::pin(request.at(Some(later)))).is_pending());
            }
            let mut other = Box::pin(share.take());
            assert!(futures_util::poll!(&mut other).is_pending());
            assert!(futures_util::poll!(Box::pin(request.at(Some(now)))).is_pending());
            drop(slot.take());
            slot = if is_put_off {
                Some(other.await)
            } else {
                Some(request.at(Some(now)).await)
            };
        }
    }
}
