//! The consumer: hints in, locked jobs out.
//!
//! Receive what has come, lock as much of it as there are free slots in one statement, settle, start.
//! A message is settled when its last hint is decided: locked, or refused for good. From then on the row,
//! its lease and the sweeper own the job, so no broker timeout can touch a long one.
//!
//! * **Backpressure**: nothing is locked without a free slot, and the transport holds back what exceeds
//!   its prefetch.
//! * **Saturated** for [`LET_GO`], the consumer returns its undecided hints and takes nothing until a slot
//!   is free: no hint waits unsettled behind a long job (protocol rule 18).
//! * A **busy** row (protocol rule 7) is tried again here.
//! * **Own hints**: what the leader takes off the dead is tried here first. A hint that went to a frozen
//!   node would come back only when the broker gives that node up.
//! * A **marker** is decided when everything received before it is; then the fleet is told.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use tokio::sync::{Mutex, mpsc};

use crate::commit_hook::Cause;
use crate::executor::{self, Stages};
use crate::hint::{Body, Hint, Marker, Ready};
use crate::job::{JobId, Lane};
use crate::metrics as m;
use crate::shared::Shared;
use crate::store::{Locked, Refusal};
use crate::transport::{Control, Delivery, Receiver, Subscription, Ticket};

/// Hints are let go when no slot was free for so long.
const LET_GO: Duration = Duration::from_secs(3);
/// The most hints in one lock statement.
const LOCK_BATCH: usize = 256;
/// A busy row is tried so often before its hint goes back to the broker.
const BUSY_ATTEMPTS: u8 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(15);
/// After an error of broker or database, wait between these.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

struct Pending {
    what: What,
    lane: Lane,
    /// None for a hint of this node's own making.
    ticket: Option<Ticket>,
    received_at: DateTime<Utc>,
    attempts: u8,
}

impl Pending {
    fn into_ready(self) -> Option<Ready> {
        match self.what {
            What::Hint(hint) => Some(Ready {
                lane: self.lane,
                hint,
            }),
            What::Marker(_) => None,
        }
    }
}

enum What {
    Hint(Hint),
    Marker(Marker),
}

/// Hints of a node's own making that may wait; more go to the broker.
pub(crate) const OWN_HINTS: usize = 1_024;
/// Where they arrive; kept while the consumer is started again.
pub(crate) type OwnHints = Arc<Mutex<mpsc::Receiver<Ready>>>;

struct Consumer {
    node: Arc<Shared>,
    receiver: Box<dyn Receiver>,
    /// In order of arrival.
    pending: VecDeque<Pending>,
    /// Hints of each message that are not decided yet.
    undecided: HashMap<Ticket, usize>,
}

/// Consume until the node drains.
pub(crate) async fn consume(node: Arc<Shared>, own_hints: OwnHints) {
    let subscription = Subscription {
        lanes: node.options.lanes.clone(),
        prefetch: node.options.prefetch(),
    };
    let mut pause = FIRST_PAUSE;
    let receiver = loop {
        match node.transport.subscribe(subscription.clone()).await {
            Ok(receiver) => break receiver,
            Err(error) => {
                tracing::error!(%error, "hints can't be received");
                node.report("consumer", Some(error.to_string()));
                if idle(&node, pause).await {
                    return;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    };
    node.report("consumer", None);
    let mut consumer = Consumer {
        node,
        receiver,
        pending: VecDeque::new(),
        undecided: HashMap::new(),
    };
    let mut own_hints = own_hints.lock().await;
    consumer.run(&mut own_hints).await;
    while let Ok(ready) = own_hints.try_recv() {
        consumer.note_own(ready);
    }
    consumer.let_go().await;
}

/// Wait; true when the node drains.
async fn idle(node: &Shared, pause: Duration) -> bool {
    tokio::select! {
        () = tokio::time::sleep(pause) => false,
        () = node.draining.cancelled() => true,
    }
}

impl Consumer {
    async fn run(&mut self, own_hints: &mut mpsc::Receiver<Ready>) {
        let mut pause = FIRST_PAUSE;
        while !self.node.draining.is_cancelled() {
            if self.pending.is_empty() {
                let draining = self.node.draining.clone();
                tokio::select! {
                    received = self.receiver.receive(LOCK_BATCH) => match received {
                        Ok(deliveries) => {
                            pause = FIRST_PAUSE;
                            self.node.report("consumer", None);
                            self.note(deliveries);
                        }
                        Err(error) => {
                            tracing::debug!(%error, "no hints for now");
                            self.node.report("consumer", Some(error.to_string()));
                            idle(&self.node, pause).await;
                            pause = (pause * 2).min(LONGEST_PAUSE);
                        }
                    },
                    Some(ready) = own_hints.recv() => self.note_own(ready),
                    () = draining.cancelled() => return,
                }
                continue;
            }
            while let Ok(ready) = own_hints.try_recv() {
                self.note_own(ready);
            }
            if !self.wait_for_slot().await {
                continue;
            }
            if !self.node.leases.healthy() {
                // The database does not renew what is held: taking more would only lose more.
                idle(&self.node, FIRST_PAUSE).await;
                continue;
            }
            if self.lock_some().await {
                pause = FIRST_PAUSE;
            } else {
                idle(&self.node, pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    fn note(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            if let Some(published) = delivery.published_at {
                m::latency(
                    m::PUBLISH_TO_RECEIVE,
                    "publish_to_receive",
                    ("lane", delivery.lane.0.clone()),
                    published,
                    delivery.received_at,
                );
            }
            let whats: Vec<What> = match delivery.body {
                Body::Hints(hints) => hints.into_iter().map(What::Hint).collect(),
                Body::Marker(marker) => vec![What::Marker(marker)],
            };
            self.undecided.insert(delivery.ticket, whats.len());
            self.pending.extend(whats.into_iter().map(|what| Pending {
                what,
                lane: delivery.lane.clone(),
                ticket: Some(delivery.ticket),
                received_at: delivery.received_at,
                attempts: 0,
            }));
        }
    }

    fn note_own(&mut self, ready: Ready) {
        self.pending.push_back(Pending {
            what: What::Hint(ready.hint),
            lane: ready.lane,
            ticket: None,
            received_at: Utc::now(),
            attempts: 0,
        });
    }

    /// Wait until a slot is free; after a while let the hints go, and wait on without them.
    async fn wait_for_slot(&mut self) -> bool {
        let slots = self.node.slots.clone();
        if slots.available_permits() > 0 {
            return true;
        }
        let draining = self.node.draining.clone();
        tokio::select! {
            permit = slots.acquire() => return permit.is_ok(),
            () = draining.cancelled() => return false,
            () = tokio::time::sleep(LET_GO) => {}
        }
        tracing::info!(
            undecided = self.pending.len(),
            "no slot was free for {LET_GO:?}; hints go back to the broker until one is"
        );
        self.receiver.pause().await;
        self.let_go().await;
        tokio::select! {
            _ = slots.acquire() => {}
            () = draining.cancelled() => {}
        }
        self.receiver.resume().await;
        false
    }

    async fn let_go(&mut self) {
        let own = self.pending.drain(..).filter(|p| p.ticket.is_none());
        let ready = own.filter_map(Pending::into_ready).collect();
        self.node.hook.publish(Cause::Sweep, ready);
        let tickets: Vec<Ticket> = self.undecided.drain().map(|(ticket, _)| ticket).collect();
        self.receiver.give_back(&tickets).await;
    }

    /// Lock what the free slots can take; false where the database could not be asked.
    async fn lock_some(&mut self) -> bool {
        let mut batch: Vec<Pending> = Vec::new();
        let mut slots = Vec::new();
        while batch.len() < LOCK_BATCH
            && let Some(next) = self.pending.front()
        {
            if let What::Marker(_) = next.what {
                if batch.is_empty() && !self.has_earlier_undecided() {
                    self.decide_marker().await;
                    continue;
                }
                break;
            }
            let Ok(slot) = self.node.slots.clone().try_acquire_owned() else {
                break;
            };
            slots.push(slot);
            if let Some(next) = self.pending.pop_front() {
                batch.push(next);
            }
        }
        if batch.is_empty() {
            return true;
        }
        let hints: Vec<Hint> = batch
            .iter()
            .filter_map(|p| match &p.what {
                What::Hint(hint) => Some(hint.clone()),
                What::Marker(_) => None,
            })
            .collect();
        histogram!(m::LOCK_BATCH).record(hints.len() as f64);
        let sent = Instant::now();
        match self.node.store.lock(&self.node.terms, &hints).await {
            Ok(locked) => {
                self.decide(batch, locked, sent, slots).await;
                true
            }
            Err(error) => {
                tracing::warn!(hints = hints.len(), %error, "hints could not be locked; trying again");
                for pending in batch.into_iter().rev() {
                    self.pending.push_front(pending);
                }
                false
            }
        }
    }

    /// A busy hint was put behind a marker that came after it.
    fn has_earlier_undecided(&self) -> bool {
        self.pending.iter().skip(1).any(|p| p.attempts > 0)
    }

    async fn decide_marker(&mut self) {
        let Some(pending) = self.pending.pop_front() else {
            return;
        };
        if let What::Marker(marker) = pending.what {
            if let Some(ticket) = pending.ticket {
                self.undecided.remove(&ticket);
                self.receiver.settle(&[ticket]).await;
            }
            self.node.hook.tell(Control::MarkerBack {
                lane: pending.lane,
                marker,
            });
        }
    }

    async fn decide(
        &mut self,
        batch: Vec<Pending>,
        locked: Locked,
        sent: Instant,
        mut slots: Vec<tokio::sync::OwnedSemaphorePermit>,
    ) {
        let locked_at = Utc::now();
        let by_id: HashMap<JobId, &Pending> = batch
            .iter()
            .filter_map(|p| match &p.what {
                What::Hint(hint) => Some((hint.id, p)),
                What::Marker(_) => None,
            })
            .collect();
        counter!(m::JOBS_LOCKED, "source" => "hint").increment(locked.jobs.len() as u64);
        for job in locked.jobs {
            let hinted = by_id.get(&job.job.id);
            if let Some(pending) = hinted {
                m::latency(
                    m::RECEIVE_TO_LOCK,
                    "receive_to_lock",
                    ("lane", pending.lane.0.clone()),
                    pending.received_at,
                    locked_at,
                );
            }
            let stages = Stages {
                committed_at: hinted.and_then(|p| match &p.what {
                    What::Hint(hint) => hint.committed_at,
                    What::Marker(_) => None,
                }),
                locked_at,
            };
            // No more jobs come back than hints were asked for, each with its slot.
            let Some(slot) = slots.pop() else { break };
            executor::start(&self.node, job, sent, stages, slot);
        }
        let mut busy: Vec<JobId> = Vec::new();
        let mut unserved: Vec<JobId> = Vec::new();
        for (id, why) in locked.refused {
            counter!(m::HINTS_REFUSED, "reason" => why.as_str()).increment(1);
            match why {
                Refusal::Busy => busy.push(id),
                Refusal::Unserved => {
                    unserved.push(id);
                    tracing::warn!(
                        job = %id,
                        "no handler for this job's type on this node; register one, or give the type a lane of its own"
                    );
                }
                _ => tracing::debug!(job = %id, reason = %why, "hint refused"),
            }
        }
        drop(slots);
        let mut settled = Vec::new();
        let mut returned = Vec::new();
        for mut pending in batch {
            let among =
                |ids: &[JobId]| matches!(&pending.what, What::Hint(h) if ids.contains(&h.id));
            let is_busy = !busy.is_empty() && among(&busy);
            let is_unserved = !unserved.is_empty() && among(&unserved);
            if is_busy && pending.attempts < BUSY_ATTEMPTS {
                pending.attempts += 1;
                self.pending.push_back(pending);
                continue;
            }
            let Some(ticket) = pending.ticket else {
                if is_busy || is_unserved {
                    // Not for this node after all: for whoever the broker finds.
                    let ready = pending.into_ready().into_iter().collect();
                    self.node.hook.publish(Cause::Sweep, ready);
                }
                continue;
            };
            let Some(left) = self.undecided.get_mut(&ticket) else {
                continue;
            };
            *left -= 1;
            if is_busy {
                returned.push(ticket);
                self.undecided.remove(&ticket);
            } else if *left == 0 {
                self.undecided.remove(&ticket);
                settled.push(ticket);
            }
        }
        if !settled.is_empty() {
            self.receiver.settle(&settled).await;
        }
        if !returned.is_empty() {
            self.pending
                .retain(|p| p.ticket.is_none_or(|t| !returned.contains(&t)));
            self.receiver.give_back(&returned).await;
        }
        if !busy.is_empty() {
            idle(&self.node, BUSY_PAUSE).await;
        }
    }
}
