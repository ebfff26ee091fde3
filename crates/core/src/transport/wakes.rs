//! Wakes: what a transport without a broker tells a node instead of hints.
//!
//! A wake says that jobs of a lane became ready, and not which. The node then claims
//! ([`Transport::wakes`](super::Transport::wakes)). Wakes that arrive while the node is busy are joined,
//! lane by lane, so they need no buffer, and none is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::job::Lane;

/// The wakes of one lane, joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// Jobs became ready in this process, or wakes may have been lost. The node claims at once.
    pub at_once: bool,
    /// The number of jobs that became ready in other processes.
    pub jobs: u64,
    /// The leader saw waiting jobs, or wakes may have been lost. The number of jobs is not known.
    pub waiting: bool,
    /// A number that is the same for all nodes that get this wake, and another for each wake. The
    /// nodes use it to take turns.
    pub draw: u64,
}

#[derive(Debug, Default)]
struct State {
    received: BTreeSet<Lane>,
    woken: BTreeMap<Lane, Wake>,
}

/// The wakes of the lanes that this process receives. One task of one node takes them.
#[derive(Debug, Default)]
pub struct Wakes {
    state: Mutex<State>,
    arrived: Notify,
}

impl Wakes {
    /// Sets the received lanes. Wakes of other lanes are ignored.
    pub fn receive(&self, lanes: impl IntoIterator<Item = Lane>) {
        let mut state = self.state();
        state.received = lanes.into_iter().collect();
        let State { received, woken } = &mut *state;
        woken.retain(|lane, _| received.contains(lane));
    }

    /// Wakes the node for a lane: jobs became ready in this process.
    pub fn ready_here(&self, lane: &Lane) {
        self.join(lane, |wake| wake.at_once = true);
    }

    /// Wakes the node for a lane: jobs became ready in another process.
    pub fn ready_elsewhere(&self, lane: &Lane, jobs: u64, draw: u64) {
        self.join(lane, |wake| {
            wake.jobs = wake.jobs.saturating_add(jobs);
            wake.draw = draw;
        });
    }

    /// Wakes the node for a lane in which the leader saw waiting jobs.
    pub fn waiting(&self, lane: &Lane, draw: u64) {
        self.join(lane, |wake| {
            wake.waiting = true;
            wake.draw = draw;
        });
    }

    /// Wakes the node for all its lanes, because wakes may have been lost.
    pub fn all(&self) {
        let mut state = self.state();
        let State { received, woken } = &mut *state;
        for lane in received.iter() {
            let wake = woken.entry(lane.clone()).or_default();
            (wake.at_once, wake.waiting) = (true, true);
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits for wakes and takes them. Cancel-safe: a cancelled call takes none.
    pub async fn next(&self) -> BTreeMap<Lane, Wake> {
        loop {
            let woken = std::mem::take(&mut self.state().woken);
            if !woken.is_empty() {
                return woken;
            }
            self.arrived.notified().await;
        }
    }

    fn join(&self, lane: &Lane, wake: impl FnOnce(&mut Wake)) {
        let mut state = self.state();
        if !state.received.contains(lane) {
            return;
        }
        match state.woken.get_mut(lane) {
            Some(before) => wake(before),
            None => wake(state.woken.entry(lane.clone()).or_default()),
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Locks the state. A poisoned lock only means that a thread panicked elsewhere; the state is
    /// still valid.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wakes_of_a_lane_are_joined_and_those_of_other_lanes_ignored() {
        let (mail, bulk) = (Lane("mail".to_owned()), Lane("bulk".to_owned()));
        let wakes = Wakes::default();
        wakes.receive([mail.clone()]);
        wakes.ready_elsewhere(&mail, 2, 7);
        wakes.ready_elsewhere(&mail, 3, 9);
        wakes.waiting(&bulk, 9);
        let woken = wakes.next().await;
        let wake = Wake {
            jobs: 5,
            draw: 9,
            ..Wake::default()
        };
        assert_eq!(woken, BTreeMap::from([(mail.clone(), wake)]));
        // Nothing is left, and the next wake is not missed.
        let next = wakes.next();
        tokio::pin!(next);
        assert!(futures_util::poll!(&mut next).is_pending());
        wakes.all();
        assert!(next.await.get(&mail).is_some_and(|wake| wake.at_once));
    }
}
