//! Applies the database's answer to a batch: starts jobs, settles messages, and keeps hints or
//! publishes them again.

use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;

use super::locking::Batch;
use super::waiting::{Arrival, Tried};
use super::{Consumer, RETURN_AFTER, idle};
use crate::hint::Ready;
use crate::job::{JobId, LockedJob};
use crate::producer::commit_hook::Cause;
use crate::runtime::fast_map::FastMap;
use crate::store::{HeldRows, Locked, Refusal};
use crate::telemetry::metrics as m;
use crate::transport::Ticket;
use crate::worker::executor;
use crate::worker::row_batch;
use crate::worker::slots::TypeSlot;
use crate::worker::stages::Stages;

/// The time after which the hint of a busy row goes to the end of its lane.
const BUSY_FOR: Duration = RETURN_AFTER;
const BUSY_PAUSE: Duration = Duration::from_millis(15);

/// The maximum number of jobs that start at once on this thread. More jobs start faster as tasks on
/// several threads.
const AT_ONCE: usize = 1;

impl Consumer {
    pub(super) async fn decide(&mut self, mut batch: Batch, locked: Locked, sent: Instant) {
        let answered = Stages::locked_now();
        let ids = batch.hints.iter().enumerate();
        let by_id: FastMap<JobId, usize> = ids.map(|(at, hint)| (hint.id, at)).collect();
        let by_row = locked.rows.as_ref().map_or(0, |rows| rows.jobs.len());
        let jobs = locked.jobs.len() + by_row;
        self.lock_size.saw(&locked);
        if locked.is_cut {
            self.lock_size.was_refused(batch.hints.len());
        }
        self.node
            .cached_metrics
            .locked_by_hint
            .increment(jobs as u64);
        let mut slots = std::mem::take(&mut batch.slots);
        let mut type_slots = std::mem::take(&mut batch.type_slots);
        let stages = |job: &LockedJob| {
            let hinted = by_id.get(&job.job.id).copied();
            if let Some(of) = hinted.and_then(|at| batch.of.get(at))
                && let Some(metrics) = self.metrics.get(of.lane)
            {
                m::latency(
                    &metrics.receive_to_lock,
                    "receive_to_lock",
                    of.received_at,
                    answered.locked_at,
                );
            }
            Stages {
                committed_at: hinted
                    .and_then(|at| batch.hints.get(at))
                    .and_then(|hint| hint.committed_at),
                ..answered
            }
        };
        // The answer holds at most as many jobs as the batch has hints, and each hint has a slot.
        let start = if jobs <= AT_ONCE {
            executor::start_at_once
        } else {
            executor::start
        };
        for job in locked.jobs {
            let Some(mut slot) = slots.pop() else { break };
            slot.of_type = TypeSlot::take_from(&mut type_slots, &job.job.job_type);
            let stages = stages(&job);
            start(&self.node, job, sent, stages, slot);
        }
        if let Some(HeldRows {
            jobs,
            at_most,
            hold,
        }) = locked.rows
        {
            let admitted = jobs.into_iter().map_while(|job| {
                let stages = stages(&job);
                slots.pop().map(|mut slot| {
                    slot.of_type = TypeSlot::take_from(&mut type_slots, &job.job.job_type);
                    (job, stages, slot)
                })
            });
            row_batch::start(&self.node, hold, sent, at_most, by_row, admitted);
        }
        // The slots of refused hints are free again.
        drop((slots, type_slots));
        let mut busy: Vec<JobId> = Vec::new();
        let mut unserved: Vec<JobId> = Vec::new();
        for (id, why) in locked.refused {
            // A job that this node does not serve may be forwarded, which does not count as a
            // refusal.
            if why != Refusal::Unserved {
                counter!(m::HINTS_REFUSED, "reason" => why.as_str()).increment(1);
            }
            if let Some(of) = by_id.get(&id).and_then(|at| batch.of.get(*at)) {
                self.schedule.requeue(of.lane);
            }
            match why {
                Refusal::Busy => busy.push(id),
                Refusal::Unserved => unserved.push(id),
                _ => tracing::debug!(job = %id, reason = %why, "hint refused"),
            }
        }
        if !unserved.is_empty() {
            let needs = &locked.unserved;
            unserved = self.pass_on_unserved(&batch, &by_id, unserved, needs, &mut busy);
        }
        let passed_over = self.passed_over(&batch.of);
        let all_busy = batch.hints.iter().all(|hint| busy.contains(&hint.id));
        self.settle(batch, &busy, &unserved).await;
        if let Some(place) = passed_over {
            self.requeue(place).await;
        }
        if all_busy {
            idle(&self.node, BUSY_PAUSE).await;
        }
    }

    /// Refuses hints whose instance is held by a job of this node. The handoff at that job's end
    /// takes the next job.
    pub(super) async fn refuse_held(&mut self, held: Batch) {
        let reason = Refusal::InstanceHeld.as_str();
        counter!(m::HINTS_REFUSED, "reason" => reason).increment(held.hints.len() as u64);
        for of in &held.of {
            self.schedule.requeue(of.lane);
        }
        self.settle(held, &[], &[]).await;
    }

    /// Returns a lane whose hints have waited for [`RETURN_AFTER`] while the slots went to other
    /// lanes.
    fn passed_over(&mut self, served: &[Arrival]) -> Option<usize> {
        if self.node.options.lanes.len() == 1 {
            return None;
        }
        let now = Instant::now();
        let before = now.checked_sub(RETURN_AFTER)?;
        self.pending
            .passed_over(now, before, |lane| served.iter().any(|of| of.lane == lane))
    }

    /// Settles each message whose last hint is decided, and keeps busy hints. A hint that stays
    /// busy is published again, at the end of its lane: a requeued hint might come first again.
    pub(super) async fn settle(&mut self, batch: Batch, busy: &[JobId], unserved: &[JobId]) {
        let mut settled = Vec::new();
        let mut again = Vec::new();
        let mut decided = vec![0; self.node.options.lanes.len()];
        for mut waiting in batch.into_waiting().rev() {
            let is_busy = !busy.is_empty() && busy.contains(&waiting.hint.id);
            let busy_since = match waiting.of.tried {
                Tried::Busy(since) => since,
                _ => Instant::now(),
            };
            if is_busy && busy_since.elapsed() < BUSY_FOR {
                waiting.of.tried = Tried::Busy(busy_since);
                again.push(waiting);
                continue;
            }
            let ticket = waiting.of.ticket;
            // An own hint that this node does not serve is published, because a node with an older
            // program may serve it.
            if is_busy || (ticket.is_none() && unserved.contains(&waiting.hint.id)) {
                let ready = Ready {
                    lane: self.pending.lane(waiting.of.lane),
                    hint: waiting.hint,
                };
                self.publish_again(Cause::Requeue, waiting.of.lane, vec![ready]);
            }
            let Some(ticket) = ticket else { continue };
            if let Some(decided) = decided.get_mut(waiting.of.lane) {
                *decided += 1;
            }
            settled.extend(self.one_less(ticket));
        }
        for (metrics, hints) in self.metrics.iter().zip(decided) {
            metrics.decided.increment(hints);
        }
        for waiting in again.into_iter().rev() {
            self.pending.push_again(waiting);
        }
        if !settled.is_empty() {
            settled.reverse();
            self.receiver.settle(&settled).await;
            crash_point!("hints-settled");
        }
    }

    /// Records that a hint of this message is decided. Returns the ticket if it was the last one.
    pub(super) fn one_less(&mut self, ticket: Ticket) -> Option<Ticket> {
        let of = self.undecided.get_mut(&ticket)?;
        of.left -= 1;
        if of.left > 0 {
            return None;
        }
        self.undecided.remove(&ticket);
        Some(ticket)
    }

    pub(super) fn count_returned(&self, place: usize, hints: usize) {
        if hints > 0 {
            counter!(m::HINTS_RETURNED, "lane" => self.pending.lane(place).0)
                .increment(hints as u64);
        }
    }
}
