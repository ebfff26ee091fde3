//! The state that the leading tasks of a node share.

use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::job::Lane;
use crate::runtime::alarm;
use crate::store::Horizon;
use crate::worker::next_timer::NextTimer;

/// What the leader's searches need to know of a leader cycle.
#[derive(Clone, Copy)]
pub(crate) struct LastCycle {
    pub(crate) term: i64,
    /// The database's clock.
    pub(crate) now: DateTime<Utc>,
    pub(crate) horizon: Option<Horizon>,
    /// Whether the cycle saw more executable jobs than leased ones.
    pub(crate) jobs_wait: bool,
}

/// The lead of a node, and the next wakes of its timer task and of the task of periodic jobs.
pub(crate) struct Leadership {
    pub(crate) leads: watch::Sender<bool>,
    /// The end of the leader's lease, by this machine's clock. `None` if the node does not lead.
    pub(crate) leads_until: watch::Sender<Option<Instant>>,
    /// The last cycle of this node as a leader. `None` if the node does not lead.
    pub(crate) last_cycle: watch::Sender<Option<LastCycle>>,
    /// A lane that living nodes receive and to which this node, the leader, can't publish.
    pub(crate) unreachable: watch::Sender<Option<Lane>>,
    pub(crate) next_timer: NextTimer,
    pub(crate) next_periodic: NextTimer,
    /// The last number of a marker, or of a question about held hints. It outlives a search task
    /// that dies: a marker that is still on its way must not be taken for a later one.
    numbers: AtomicU64,
    /// Given when a cycle has found an open batch.
    pub(crate) open_batches: Notify,
}

impl Leadership {
    /// Returns the state of a node that does not lead.
    pub(crate) fn none() -> Self {
        Self {
            leads: watch::Sender::new(false),
            leads_until: watch::Sender::new(None),
            last_cycle: watch::Sender::new(None),
            unreachable: watch::Sender::new(None),
            numbers: AtomicU64::new(0),
            next_timer: NextTimer::new(),
            next_periodic: NextTimer::new(),
            open_batches: Notify::new(),
        }
    }

    /// Returns the number of the next marker or question.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a question: does the node lead without a break since this call, and has its lease not
    /// ended? The lease of a node that was frozen has ended when it goes on.
    pub(crate) fn watch_lease(&self) -> impl Fn() -> bool + use<> {
        let (leads, until) = (self.leads.subscribe(), self.leads_until.subscribe());
        move || {
            // A new term is a change, also if this node has it.
            let goes_on = leads.has_changed().is_ok_and(|changed| !changed) && *leads.borrow();
            goes_on && until.borrow().is_some_and(|until| Instant::now() < until)
        }
    }

    /// Records that the node does not lead.
    pub(crate) fn end(&self) {
        self.leads.send_replace(false);
        self.leads_until.send_replace(None);
        self.last_cycle.send_replace(None);
    }

    /// Waits until `next` is due while the node leads. Returns false if the node drains.
    ///
    /// A due date comes before news of later dates, so a flood of news delays nothing.
    pub(crate) async fn until_due(&self, next: &NextTimer, draining: &CancellationToken) -> bool {
        let mut alarm = next.subscribe();
        let mut leads = self.leads.subscribe();
        loop {
            let is_leader = *leads.borrow_and_update();
            let next = *alarm.borrow_and_update();
            let due = alarm::at(next.filter(|_| is_leader));
            tokio::select! {
                biased;
                () = draining.cancelled() => return false,
                () = due => return true,
                _ = leads.changed() => {}
                _ = alarm.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A node that was frozen goes on after the end of its lease, or as the leader of another term.
    #[tokio::test(start_paused = true)]
    async fn a_node_that_was_frozen_leads_no_more() {
        let leadership = Leadership::none();
        assert!(!leadership.watch_lease()());
        let renew = || {
            let until = Instant::now() + Duration::from_secs(30);
            leadership.leads_until.send_replace(Some(until));
        };
        renew();
        leadership.leads.send_replace(true);
        let leads = leadership.watch_lease();
        for _ in 0..10 {
            assert!(leads());
            tokio::time::advance(Duration::from_secs(20)).await;
            renew();
        }
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(!leads());
        // It leads again, after another node.
        renew();
        assert!(leads());
        leadership.leads.send_replace(true);
        assert!(!leads() && leadership.watch_lease()());
        leadership.end();
        assert!(!leadership.watch_lease()());
    }
}
