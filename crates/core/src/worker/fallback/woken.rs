//! Claiming as the regular way: the transport carries wakes instead of hints.
//!
//! The node claims when it starts, when it is woken ([`turn`](super::turn)), when it serves more
//! jobs than before, and when it has heard no leader for
//! [`claim_interval`](crate::NodeOptions::claim_interval). Then its connection may be lost, and with
//! it wakes. Beats come over the same connection as wakes, and the leader wakes the lanes in which
//! it sees waiting jobs. So an idle node whose connection works asks the database nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::time::Instant;

use super::cursor::Cursor;
use super::turn::Place;
use super::{Claimer, SlotRequest};
use crate::job::Lane;
use crate::runtime::alarm;
use crate::transport::{Control, Wake, Wakes};
use crate::worker::context::NodeContext;

/// Claims when the node is woken, until it drains.
pub(super) async fn claim(node: Arc<NodeContext>, wakes: Arc<Wakes>) {
    let mut control = node.transport.listen();
    let draining = node.signals.draining.clone();
    let interval = node.options.claim_interval;
    let mut claimer = Claimer::woken(node);
    let node = claimer.node.clone();
    let mut served = node.served.revision();
    served.mark_unchanged();
    let mut freed = node.slots.freed();
    // The leader's last beat, or the time at which the node claimed because it heard none.
    let mut heard = Instant::now();
    let mut request = SlotRequest::new(&node.slots.of_node);
    loop {
        let begins = claimer.begin_passes(Instant::now());
        // Before the slots are counted, so that no later one is missed.
        freed.mark_unchanged();
        let (claims, at) = claimer.next();
        let slot = tokio::select! {
            biased;
            () = draining.cancelled() => break,
            message = control.recv() => {
                match message {
                    Ok(Control::LeaderAlive { .. }) => heard = Instant::now(),
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                }
                continue;
            }
            woken = wakes.next() => {
                claimer.wake(&woken);
                continue;
            }
            Ok(()) = served.changed() => {
                claimer.want_all();
                continue;
            }
            () = tokio::time::sleep_until(heard + interval) => {
                heard = Instant::now();
                claimer.want_all();
                continue;
            }
            () = alarm::at(begins) => continue,
            Ok(()) = freed.changed(), if claimer.misses_slots() => continue,
            slot = request.at(claims.then_some(at)) => Some(slot),
        };
        // Must not be cancelled: a job that is locked has to be started.
        claimer.take_some(slot).await;
    }
}

impl Claimer {
    /// Begins the passes that are due. Returns the time of the next one.
    fn begin_passes(&mut self, now: Instant) -> Option<Instant> {
        let limited = self.node.served.limited();
        for lane in &mut self.lanes {
            if lane.turn.as_mut().is_some_and(|turn| turn.begin(now)) {
                (lane.cursor, lane.done, lane.rescued_at) = (Cursor::default(), false, None);
                lane.look_for_limited(&limited);
            }
        }
        let turns = self.lanes.iter().filter_map(|lane| lane.turn.as_ref());
        turns.filter_map(super::turn::Turn::begins_at).min()
    }

    fn wake(&mut self, woken: &BTreeMap<Lane, Wake>) {
        let now = Instant::now();
        let node = self.node.clone();
        for lane in &mut self.lanes {
            if let (Some(wake), Some(turn)) = (woken.get(&lane.lane), lane.turn.as_mut()) {
                let within = node.options.heard_within();
                let (is_first, spread) = node.fleet.turn(&lane.lane, wake, node.id, within);
                turn.woken(now, wake, Place { is_first, spread });
            }
        }
    }

    fn want_all(&mut self) {
        let now = Instant::now();
        let turns = self.lanes.iter_mut().filter_map(|lane| lane.turn.as_mut());
        turns.for_each(|turn| turn.want(now));
    }
}
