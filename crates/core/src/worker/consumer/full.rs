//! Hints of types that have their own limit and no free slot on this node.
//!
//! Such a hint is not locked, since its job could not start. It is **set aside** until a slot of its
//! type is free: its message is settled, so that hints that can't start do not fill the prefetch, and
//! the hints behind it pass it. From then on it is an own hint of this node. If the node dies, the
//! sweeper finds its job.
//!
//! Another node may have a free slot of the type. So what has waited for [`RETURN_AFTER`] is
//! published again, at the end of its lane, a bounded number at a time: this is what the hints of a
//! type that is full everywhere cost.
//!
//! A job whose type was not known before it was locked, such as an exclusive job or the next one of
//! its instance, is released at once if it finds no slot. Its hint is set aside, too.

use chrono::Utc;
use tokio::time::Instant;

use super::pending::Waiting;
use super::{Consumer, RETURN_AFTER};
use crate::producer::commit_hook::Cause;

/// The maximum number of hints of a lane that are published again at once.
const MOST_RETURNED: usize = 4_096;

impl Consumer {
    /// Sets hints aside that found no free slot of their type.
    pub(super) async fn set_aside(&mut self, full: Vec<Waiting>) {
        let mut settled = Vec::new();
        // Those that were tried again go before the others, the first one last.
        let was_before = |waiting: &Waiting| waiting.of.is_full();
        let (again, new): (Vec<Waiting>, Vec<Waiting>) = full.into_iter().partition(was_before);
        for mut waiting in again.into_iter().rev().chain(new) {
            if let Some(ticket) = waiting.of.ticket.take() {
                // As an own hint it has arrived now.
                waiting.of.received_at = Utc::now();
                if let Some(metrics) = self.metrics.get(waiting.of.lane) {
                    metrics.decided.increment(1);
                }
                settled.extend(self.one_less(ticket));
            }
            self.pending.set_aside(waiting);
        }
        self.return_full_at
            .get_or_insert_with(|| Instant::now() + RETURN_AFTER);
        if !settled.is_empty() {
            self.receiver.settle(&settled).await;
            crash_point!("hints-settled");
        }
    }

    /// Tries hints that were set aside again, as many as slots of their types are free.
    pub(super) fn try_full_again(&mut self) {
        if self.pending.full() == 0 || !self.freed.has_changed().unwrap_or(false) {
            return;
        }
        // Marked before the slots are counted, so that no later one is missed.
        self.freed.mark_unchanged();
        let node = &self.node;
        self.pending.try_again(|job_type| {
            // The handler may have been replaced by one without a limit.
            let slots = node.type_slots(job_type);
            slots.map_or(usize::MAX, |slots| slots.free())
        });
    }

    /// Publishes hints again that were set aside and have waited for [`RETURN_AFTER`].
    pub(super) fn return_full(&mut self) {
        let now = Instant::now();
        if self.return_full_at.is_none_or(|at| now < at) {
            return;
        }
        let before = now.checked_sub(RETURN_AFTER).unwrap_or(now);
        for place in 0..self.node.options.lanes.len() {
            let full = self.pending.take_full(place, before, MOST_RETURNED);
            self.publish_again(Cause::Requeue, place, full);
        }
        let some_wait = self.pending.full() > 0;
        self.return_full_at = some_wait.then(|| now + RETURN_AFTER);
    }
}
