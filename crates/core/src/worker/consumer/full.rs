//! Hints of types that have their own limit and no free slot on this node.
//!
//! Such a hint is not locked, since its job could not start. It is **set aside** until a slot of its
//! type is free: its message is settled, so that hints that can't start do not fill the prefetch, and
//! the hints behind it pass it. From then on it is an own hint of this node. If the node dies, the
//! sweeper finds its job.
//!
//! Another node may have a free slot of the type. So hints that have waited for [`RETURN_AFTER`] are
//! published again, at the end of their lane, if another node serves the type. As many as the type
//! has slots stay, so that the next job of the type starts at once. The pause between two such rounds
//! doubles up to [`LONGEST_PAUSE`]: this is what the hints of a type that is full everywhere cost.
//!
//! At most [`MOST_ASIDE`] hints of a lane are set aside. Then the lane is **blocked**: its next hint
//! stays at its front, and its messages fill their share of the prefetch. Other lanes, and rescued
//! and woken jobs, go on. The next round publishes hints of a blocked lane again even if no other node
//! serves their types, so that the hints behind them pass.
//!
//! A job whose type was not known before it was locked, such as an exclusive job or the next one of
//! its instance, is released at once if it finds no slot. Its hint is set aside, too.

use std::time::Duration;

use chrono::Utc;
use tokio::time::Instant;

use super::waiting::Waiting;
use super::{Consumer, RETURN_AFTER};
use crate::fleet::SILENCE;
use crate::producer::commit_hook::Cause;
use crate::worker::context::NodeContext;

/// The maximum number of hints of a lane that are set aside. More could not be named in an answer to
/// the leader's question.
const MOST_ASIDE: usize = 8_192;
/// The longest pause between two rounds of returned hints.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Returns whether another node serves a type.
pub(super) fn others_serve(node: &NodeContext) -> impl Fn(&str) -> bool + use<> {
    let others = node.fleet.takers(SILENCE, node.id);
    move |job_type| {
        let mut types = others.iter().flat_map(|other| other.types.iter());
        types.any(|of| of == job_type)
    }
}

impl Consumer {
    /// Sets hints aside that found no free slot of their type.
    pub(super) async fn set_aside(&mut self, full: Vec<Waiting>) {
        let mut settled = Vec::new();
        let mut blocked = Vec::new();
        // Those that were tried again go before the others, the first one last.
        let was_before = |waiting: &Waiting| waiting.of.is_full();
        let (again, new): (Vec<Waiting>, Vec<Waiting>) = full.into_iter().partition(was_before);
        for mut waiting in again.into_iter().rev().chain(new) {
            // A block does not stop rescued and woken jobs, which are few.
            let passes = waiting.of.rescued || waiting.of.woken;
            if !passes && self.pending.full_of(waiting.of.lane) >= MOST_ASIDE {
                blocked.push(waiting);
                continue;
            }
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
        let soon = Instant::now() + RETURN_AFTER;
        let at = self.return_full_at.get_or_insert(soon);
        if !blocked.is_empty() {
            *at = soon.min(*at);
        }
        for waiting in blocked.into_iter().rev() {
            self.pending.block(waiting.of.lane);
            self.pending.put_back(waiting);
        }
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
        for place in 0..self.node.options.lanes.len() {
            self.pending.unblock(place);
        }
    }

    /// Publishes hints again that were set aside and have waited for [`RETURN_AFTER`].
    pub(super) fn return_full(&mut self) {
        let now = Instant::now();
        if self.return_full_at.is_none_or(|at| now < at) {
            return;
        }
        let before = now.checked_sub(RETURN_AFTER).unwrap_or(now);
        let node = self.node.clone();
        let others_serve = others_serve(&node);
        let mut was_blocked = false;
        for place in 0..node.options.lanes.len() {
            let blocked = self.pending.unblock(place);
            was_blocked |= blocked;
            let full = self.pending.take_full(place, before, |job_type| {
                if blocked || others_serve(job_type) {
                    node.type_slots(job_type).map_or(0, |slots| slots.limit())
                } else {
                    usize::MAX
                }
            });
            self.publish_again(Cause::Requeue, place, full);
        }
        self.return_full_pause = if was_blocked {
            RETURN_AFTER
        } else {
            (self.return_full_pause * 2).min(LONGEST_PAUSE)
        };
        if self.pending.full() > 0 {
            self.return_full_at = Some(now + self.return_full_pause);
        } else {
            (self.return_full_at, self.return_full_pause) = (None, RETURN_AFTER);
        }
    }
}
