//! Locking: batches of pending hints for the free slots, and the database's answers.

use std::sync::Arc;

use chrono::Utc;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Consumer;
use super::lock_size::LOCK_BATCH;
use super::waiting::{Arrival, Waiting};
use crate::hint::Hint;
use crate::job::LockToken;
use crate::store::{Locked, StoreError};
use crate::worker::context::NodeContext;
use crate::worker::own_hints::OwnHint;
use crate::worker::slot_pool::Slot;
use crate::worker::slots::{TypeSlot, TypeSlots};

/// The maximum number of lock statements that are under way at once.
const LOCKS_AT_ONCE: usize = 2;

/// The hints of one lock statement, each with its slot.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) hints: Vec<Hint>,
    pub(super) of: Vec<Arrival>,
    pub(super) slots: Vec<Slot>,
    /// The slots of the types of hints whose types have their own limits.
    pub(super) type_slots: Vec<TypeSlot>,
}

impl Batch {
    pub(super) fn push(&mut self, waiting: Waiting) {
        self.hints.push(waiting.hint);
        self.of.push(waiting.of);
    }

    pub(super) fn into_waiting(self) -> impl DoubleEndedIterator<Item = Waiting> {
        let hints = self.hints.into_iter().zip(self.of);
        hints.map(|(hint, of)| Waiting { hint, of })
    }
}

/// The database's answer to a batch.
pub(super) struct Answer {
    batch: Batch,
    sent: Instant,
    locked: Result<Locked, StoreError>,
}

async fn ask(node: Arc<NodeContext>, batch: Batch) -> Answer {
    node.cached_metrics
        .lock_batch
        .record(batch.hints.len() as f64);
    let sent = Instant::now();
    let terms = node.terms_for_hints();
    let locked = node.asks(node.store.lock(&terms, &batch.hints)).await;
    Answer {
        batch,
        sent,
        locked,
    }
}

impl Consumer {
    /// Locks jobs for the free slots. Returns false if the database could not be asked.
    ///
    /// Hints that arrive while a statement is under way, and find free slots, do not wait for its
    /// end or for a full batch. So the database works while an answer is read. When slots are
    /// short, one statement runs at a time, as large as possible.
    pub(super) async fn lock_some(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) -> bool {
        let mut answered = true;
        let mut under_way = FuturesUnordered::new();
        under_way.extend(self.ask_next().await);
        while !under_way.is_empty() {
            let more = answered && under_way.len() < LOCKS_AT_ONCE && self.may_ask_at_once();
            tokio::select! {
                // The order matters: first send the statement under way, then build the next one,
                // then receive.
                biased;
                Some(answer) = under_way.next() => answered &= self.note_answer(answer).await,
                () = std::future::ready(()), if more => under_way.extend(self.ask_next().await),
                Some(hint) = own_hints.recv(), if self.has_room() => self.note_own(hint),
                () = self.receive(), if self.has_room() => {}
            }
        }
        answered
    }

    /// Returns whether all waiting hints, or a full batch of them, can be locked now, without
    /// another step before.
    pub(super) fn may_ask_at_once(&self) -> bool {
        let node = &self.node;
        let wanted = self.startable().min(self.lock_size.limit());
        wanted > 0
            && wanted <= node.slots.of_node.free()
            && !self.pending.has_markers()
            && node.leases.healthy()
            && !node.signals.draining.is_cancelled()
    }

    pub(super) async fn note_answer(&mut self, answer: Answer) -> bool {
        let rescued = answer.batch.of.iter().filter(|of| of.rescued).count();
        self.rescuing = self.rescuing.saturating_sub(rescued);
        if !self.asked.is_empty() {
            let own = answer.batch.hints.iter().zip(&answer.batch.of);
            for (hint, _) in own.filter(|(_, of)| of.ticket.is_none()) {
                self.asked.remove(&hint.id);
            }
        }
        match answer.locked {
            Ok(locked) => {
                crash_point!("jobs-locked");
                self.fails_since = None;
                self.locked += u64::from(!locked.jobs.is_empty() || locked.rows.is_some());
                self.node.reports.part("database", None);
                self.decide(answer.batch, locked, answer.sent).await;
                true
            }
            Err(error) => {
                if error.is_answer() {
                    self.fails_since = None;
                } else {
                    self.fails_since.get_or_insert(answer.sent);
                }
                self.not_locked(answer.batch, &error).await
            }
        }
    }

    /// Returns the request for the next batch, if there is one.
    pub(super) async fn ask_next(&mut self) -> Option<impl Future<Output = Answer> + use<>> {
        self.try_full_again();
        self.return_full();
        let (mut held, mut full) = (Batch::default(), Vec::new());
        let batch = self.next_batch(&mut held, &mut full);
        if held.of.iter().any(Arrival::is_full) {
            // It was tried for a free slot, which the next one may take.
            self.freed.mark_changed();
        }
        if !held.hints.is_empty() {
            self.refuse_held(held).await;
        }
        if !full.is_empty() {
            self.set_aside(full).await;
        }
        batch.map(|batch| ask(self.node.clone(), batch))
    }

    /// Builds a batch for the free slots, lane by lane in turn. Hints of instances that this node's
    /// jobs hold go to `held`, and hints of types without a free slot to `full`.
    pub(super) fn next_batch(
        &mut self,
        held: &mut Batch,
        full: &mut Vec<Waiting>,
    ) -> Option<Batch> {
        let limited = self.node.served.limited();
        let mut batch = Batch::default();
        let mut free = self.slot.take();
        let most = self.lock_size.limit();
        while batch.hints.len() < most && batch.hints.len() + held.hints.len() < LOCK_BATCH {
            let room = self.rescue_room();
            let pending = &self.pending;
            if pending.ready() + pending.rescued().min(room) == 0 || full.len() >= LOCK_BATCH {
                break;
            }
            let slot = free.take();
            let slot = slot.or_else(|| self.node.slots.of_node.try_take());
            let Some(slot) = slot else { break };
            let waits = |lane| pending.waits(lane, room);
            let lane = self
                .schedule
                .next(waits, |lane| pending.waited(lane, Utc::now()));
            let Some(waiting) = lane.and_then(|lane| self.pending.pop(lane, room)) else {
                break;
            };
            if self.is_held_here(&waiting) {
                free = Some(slot);
                held.push(waiting);
                continue;
            }
            let type_slots = self.type_slots(&limited, &waiting);
            let type_slot = type_slots.as_ref().map(TypeSlots::try_take);
            if matches!(type_slot, Some(None)) {
                free = Some(slot);
                self.schedule.requeue(waiting.of.lane);
                full.push(waiting);
            } else {
                batch.type_slots.extend(type_slot.flatten());
                self.rescuing += usize::from(waiting.of.rescued);
                if waiting.of.ticket.is_none() {
                    self.asked.insert(waiting.hint.id, waiting.of.lane);
                }
                batch.push(waiting);
                batch.slots.push(slot);
            }
        }
        (!batch.hints.is_empty()).then_some(batch)
    }

    /// Returns the slots of the type that the hint names, if it is one of these types.
    fn type_slots(&self, limited: &[String], waiting: &Waiting) -> Option<Arc<TypeSlots>> {
        if limited.is_empty() {
            return None;
        }
        let job_type = waiting.hint.job_type.as_ref()?;
        limited.binary_search(job_type).ok()?;
        self.node.type_slots(job_type)
    }

    pub(super) fn is_held_here(&self, waiting: &Waiting) -> bool {
        let node = &self.node;
        let lane = || self.pending.lane(waiting.of.lane);
        let trusts = |held: &LockToken| node.leases.trusts(held);
        let place = waiting.of.lane;
        node.instances.refuses(&waiting.hint, place, lane, trusts)
    }
}
