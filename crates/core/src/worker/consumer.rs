//! The consumer: receives hints, locks their jobs and starts them.
//!
//! The consumer receives the hints that have arrived. One statement locks as many jobs as there are
//! free slots. Then the consumer starts the jobs and settles the messages. A message is settled
//! when its last hint is decided: locked, or finally refused. From then on the job depends on its
//! row, its lease and the sweeper, so no broker timeout affects a long job.
//!
//! * **Backpressure**: No job is locked without a free slot. The transport holds back the messages
//!   that exceed its prefetch.
//! * **Lanes**: Received hints wait in [`pending`], in one queue for each lane. [`schedule`] picks
//!   the lane that gets the next free slot. Receiving continues while hints wait for a slot or for
//!   the database, so a later hint in a preferred lane can overtake.
//! * **Saturation**: When no slot was free for [`RETURN_AFTER`], the consumer requeues its
//!   undecided hints and receives nothing until a slot is free. So no hint waits unsettled behind a
//!   long job (protocol rule 18). A lane that got no slot for this time while other lanes did
//!   requeues its own hints; an idle node may get them.
//! * **Failed renewals**: A node that cannot renew its leases locks nothing. After [`RETURN_AFTER`]
//!   it requeues its hints.
//! * **Inline start**: A job that was locked alone starts at once
//!   ([`inline_start`](crate::worker::inline_start)).
//! * **Busy rows** (protocol rule 7): The hint is tried again on this node, behind the hints that
//!   wait in its lane.
//! * **Refused locks**: A job that the database refuses to lock is tried alone. Its hint is settled
//!   once other jobs were locked meanwhile.
//! * **Full types**: A hint of a type that has no free slot here waits apart, and the others pass it
//!   ([`full`]).
//! * **Large payloads**: A lock statement asks for fewer jobs if payloads are large
//!   ([`lock_size`]).
//! * **Held instances**: A hint for an instance that this node holds is refused without a statement
//!   ([`held_instances`](crate::worker::held_instances)).
//! * **Own hints** do not come from the broker. A job that became ready on this node is tried here.
//!   A [rescued](crate::leader::rescue) job is tried before all other jobs of its lane; jobs with a
//!   strike take at most a quarter of the slots. A job that is woken for a
//!   [permit](crate::worker::permit_exchange) takes every second start of its lane. Another node may [forward](crate::worker::forward)
//!   a job that it does not serve to this node, and this node forwards such jobs, too.
//! * **Accounting**: Each received hint is finally decided or requeued, and counted accordingly.
//! * **Markers**: A marker is decided when all messages received before it in its lane are decided.
//!   The consumer then reports it to the fleet.

mod answer;
mod decision;
mod full;
pub(crate) mod lock_size;
mod locking;
mod pending;
mod ranking;
mod receiving;
mod refused;
pub(crate) mod schedule;
mod unserved;
mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::job::JobId;
use crate::producer::commit_hook::Cause;
use crate::runtime::alarm;
use crate::telemetry::log_throttle::LogThrottle;
use crate::transport::{Control, Receiver, Subscription, Ticket};
use crate::worker::cached_metrics::LaneMetrics;
use crate::worker::context::NodeContext;
use crate::worker::held_hints::Returned;
use crate::worker::own_hints::{OWN_HINTS, OwnHint, OwnHints};
use crate::worker::slot_pool::Slot;
use lock_size::LockSize;
use pending::Pending;
use receiving::Unsettled;
use schedule::Schedule;

/// The time without a free slot after which hints are requeued.
const RETURN_AFTER: Duration = Duration::from_secs(3);
/// The number of pending hints at which receiving stops. The prefetch limits the number of
/// messages, but not the number of hints that other publishers pack into one message.
const MOST_PENDING: usize = 65_536;
/// The bounds of the pause after an error of the broker or the database.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

struct Consumer {
    node: Arc<NodeContext>,
    receiver: Box<dyn Receiver>,
    pending: Pending,
    schedule: Schedule,
    /// The metrics of each lane, in the order of the lanes.
    metrics: Vec<Arc<LaneMetrics>>,
    /// Messages that are not settled yet.
    undecided: HashMap<Ticket, Unsettled>,
    /// The slot for the next job, for which the consumer has waited.
    slot: Option<Slot>,
    /// Messages to settle because all their hints were forwarded on arrival.
    passed_on: Vec<Ticket>,
    returned: Returned,
    /// The time of the next call after an error, and the pause after the next error.
    receive_after: Option<(Instant, Duration)>,
    /// Whether receiving has just begun and there are several lanes.
    gathers: bool,
    /// The number of jobs with a strike that this node holds.
    struck: watch::Receiver<usize>,
    /// Rescued jobs in lock statements that are under way.
    rescuing: usize,
    /// The jobs of own hints in lock statements that are under way, and the places of their lanes.
    asked: HashMap<JobId, usize>,
    /// The number of slots that the prefetch follows.
    slots_seen: usize,
    lock_size: LockSize,
    /// The statement that reads places in the start order, if it takes long.
    reading_ranks: Option<JoinHandle<ranking::Read>>,
    /// The time since which no lock statement was answered.
    fails_since: Option<Instant>,
    /// The number of statements that locked jobs.
    locked: u64,
    /// Limits warnings about unserved jobs, because any creator may create them.
    unserved: LogThrottle,
    /// Changes when a slot of a type is free again.
    freed: watch::Receiver<()>,
    /// The time at which hints that wait for a slot of their type are published again, if some wait.
    return_full_at: Option<Instant>,
    /// The pause before the next such time.
    return_full_pause: Duration,
}

/// Receives hints and starts their jobs until the node drains.
pub(crate) async fn consume(node: Arc<NodeContext>, own_hints: OwnHints) {
    let subscription = Subscription {
        lanes: node.options.lane_names(),
        prefetch: node.options.prefetch(node.options.first_slots()),
    };
    let mut own_hints = own_hints.lock().await;
    // A task that died may have set it.
    node.database_away.store(false, Ordering::Relaxed);
    let mut pause = FIRST_PAUSE;
    let mut throttle = LogThrottle::default();
    let receiver = loop {
        match node.transport.subscribe(subscription.clone()).await {
            Ok(receiver) => break receiver,
            Err(error) => {
                if let Some(more) = throttle.now() {
                    tracing::error!(
                        %error, more,
                        "could not subscribe to hints; retrying, and jobs are claimed from the \
                         database meanwhile"
                    );
                }
                node.reports.part("consumer", Some(error.to_string()));
                if idle(&node, pause).await {
                    pass_on(&node, &mut own_hints).await;
                    return;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    };
    node.reports.part("consumer", None);
    let lanes = subscription.lanes.iter();
    let node_slots = node.options.first_slots();
    let mut consumer = Consumer {
        metrics: lanes.map(|lane| node.cached_metrics.lane(lane)).collect(),
        pending: Pending::new(subscription.lanes.into_iter()),
        schedule: Schedule::new(
            &node.options.lanes,
            node.options.lane_order,
            node.options.lane_aging,
        ),
        gathers: node.options.lanes.len() > 1,
        struck: node.leases.watch_struck(),
        freed: node.slots.freed(),
        return_full_at: None,
        return_full_pause: RETURN_AFTER,
        rescuing: 0,
        asked: HashMap::new(),
        node,
        receiver,
        undecided: HashMap::new(),
        slot: None,
        passed_on: Vec::new(),
        returned: Returned::default(),
        receive_after: None,
        slots_seen: node_slots,
        lock_size: LockSize::default(),
        reading_ranks: None,
        fails_since: None,
        locked: 0,
        unserved: LogThrottle::default(),
    };
    consumer.run(&mut own_hints).await;
    let node = consumer.node.clone();
    consumer.return_hints().await;
    consumer.leave_addressed();
    pass_on(&node, &mut own_hints).await;
}

/// Publishes own hints for other nodes, because this node drains.
async fn pass_on(node: &NodeContext, own_hints: &mut mpsc::Receiver<OwnHint>) {
    own_hints.close();
    let mut rest = Vec::new();
    while own_hints.recv_many(&mut rest, OWN_HINTS).await > 0 {}
    let rest = rest.into_iter().map(OwnHint::into_ready).collect();
    node.hook.publish(Cause::Sweep, rest);
}

/// Waits for `pause`. Returns true if the node drains.
async fn idle(node: &NodeContext, pause: Duration) -> bool {
    tokio::select! {
        biased;
        () = node.signals.draining.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}

/// Publishes own hints after a panic, because no broker delivers them again.
impl Drop for Consumer {
    fn drop(&mut self) {
        for place in 0..self.node.options.lanes.len() {
            let own = self.pending.take(place).own;
            self.node.hook.publish(Cause::Sweep, own);
        }
        self.leave_addressed();
    }
}

impl Consumer {
    async fn run(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) {
        let draining = self.node.signals.draining.clone();
        let mut pause = FIRST_PAUSE;
        while !draining.is_cancelled() {
            self.follow_slots();
            self.decide_markers().await;
            self.try_full_again();
            self.return_full();
            // A separate receiver, because `receive` borrows the consumer. It is created before
            // `startable` is read, so that no change is missed.
            let mut struck = self.struck.clone();
            struck.mark_unchanged();
            if self.startable() == 0 {
                self.slot = None;
                self.node.slots.of_node.wants_none();
                let rescued = self.pending.rescued();
                // Not marked: a slot that was freed since the last look counts.
                let mut freed = self.freed.clone();
                let some_wait = self.pending.full() > 0;
                let return_full = alarm::at(self.return_full_at);
                tokio::select! {
                    biased;
                    () = draining.cancelled() => return,
                    Some(hint) = own_hints.recv(), if self.has_room() => self.note_own(hint),
                    Ok(()) = struck.changed(), if rescued > 0 => {}
                    Ok(()) = freed.changed(), if some_wait => {}
                    () = return_full => {}
                    () = self.receive() => {}
                }
                continue;
            }
            if std::mem::take(&mut self.gathers) {
                self.gather().await;
                continue;
            }
            if !self.wait_for_slot(own_hints).await {
                continue;
            }
            if !self.node.leases.healthy() {
                // While leases cannot be renewed, further locks would be lost, too.
                self.slot = None;
                self.wait_for_renewals(own_hints).await;
                continue;
            }
            self.note_arrived(own_hints);
            self.rank_pending().await;
            if self.lock_some(own_hints).await {
                pause = FIRST_PAUSE;
            } else if self
                .fails_since
                .is_some_and(|at| at.elapsed() >= RETURN_AFTER)
            {
                self.leave_to_others(own_hints).await;
            } else {
                idle(&self.node, pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Takes the own hints that have arrived.
    fn note_arrived(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) {
        while self.has_room()
            && let Ok(hint) = own_hints.try_recv()
        {
            self.note_own(hint);
        }
    }

    /// Adapts the prefetch of an elastic node to its number of slots.
    fn follow_slots(&mut self) {
        if self.node.options.elastic.is_none() {
            return;
        }
        let slots = self.node.slots.of_node.cap();
        if slots != self.slots_seen {
            self.slots_seen = slots;
            let prefetch = self.node.options.prefetch(slots);
            self.receiver.set_prefetch(prefetch);
        }
    }

    fn has_room(&self) -> bool {
        self.pending.ready() + self.pending.rescued() < MOST_PENDING
    }

    /// Returns the number of rescued jobs that may still start now.
    fn rescue_room(&self) -> usize {
        self.node.rescue_room().saturating_sub(self.rescuing)
    }

    /// Returns the number of waiting hints that can be tried as soon as slots are free.
    fn startable(&self) -> usize {
        self.pending.ready() + self.pending.rescued().min(self.rescue_room())
    }

    /// Waits until a slot is free and returns true. After [`RETURN_AFTER`] requeues the hints,
    /// keeps waiting without them, and returns false.
    async fn wait_for_slot(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) -> bool {
        let node = self.node.clone();
        let slots = &node.slots.of_node;
        if self.slot.is_some() || slots.free() > 0 {
            return true;
        }
        let draining = node.signals.draining.clone();
        let patience = tokio::time::sleep(RETURN_AFTER);
        let slot = slots.take();
        tokio::pin!(patience, slot);
        loop {
            tokio::select! {
                // Receiving comes last, so that steady arrivals do not hide a free slot.
                biased;
                () = draining.cancelled() => return false,
                slot = &mut slot => {
                    self.slot = Some(slot);
                    return true;
                }
                () = &mut patience => break,
                () = self.receive(), if self.has_room() => self.decide_markers().await,
            }
        }
        tracing::info!(
            undecided = self.pending.len(),
            "no slot was free for {RETURN_AFTER:?}; requeued undecided hints, receiving resumes \
             when a slot is free"
        );
        let until = async {
            tokio::select! {
                biased;
                () = draining.cancelled() => {}
                _ = slot => {}
            }
        };
        self.step_aside(until, own_hints).await;
        false
    }

    /// Waits until leases can be renewed again. After [`RETURN_AFTER`] requeues the hints, so that
    /// other nodes get them.
    async fn wait_for_renewals(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) {
        let node = self.node.clone();
        let renewals =
            || async { while !node.leases.healthy() && !idle(&node, FIRST_PAUSE).await {} };
        if tokio::time::timeout(RETURN_AFTER, renewals()).await.is_ok() {
            return;
        }
        tracing::info!(
            undecided = self.pending.len(),
            "leases could not be renewed for {RETURN_AFTER:?}; requeued undecided hints, receiving \
             resumes when renewals succeed"
        );
        self.step_aside(renewals(), own_hints).await;
    }

    /// Requeues all hints after lock statements have failed for [`RETURN_AFTER`], so that nodes that
    /// can lock get them. Waits until the database answers.
    async fn leave_to_others(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) {
        let node = self.node.clone();
        tracing::warn!(
            undecided = self.pending.len(),
            "no job could be locked for {RETURN_AFTER:?}; requeued undecided hints, receiving \
             resumes when the database answers"
        );
        self.fails_since = None;
        node.database_away.store(true, Ordering::Relaxed);
        let answers = async {
            let mut pause = FIRST_PAUSE;
            while node.store.answers().await.is_err() && !idle(&node, pause).await {
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        };
        let draining = node.signals.draining.clone();
        let until = async {
            tokio::select! {
                biased;
                () = draining.cancelled() => {}
                () = answers => {}
            }
        };
        self.step_aside(until, own_hints).await;
        node.database_away.store(false, Ordering::Relaxed);
        node.reports.part("database", None);
    }

    /// Requeues all hints and stops receiving until `until` completes. Rescued, woken and forwarded
    /// jobs stay.
    async fn step_aside(
        &mut self,
        until: impl Future<Output = ()>,
        own_hints: &mut mpsc::Receiver<OwnHint>,
    ) {
        // Delivered messages are requeued, too. They are stored first, because the leader may ask
        // for them.
        self.receive_at_once();
        self.settle_passed_on().await;
        self.receiver.pause().await;
        self.return_hints().await;
        tokio::pin!(until);
        let questions = self.node.inbox.questions.clone();
        loop {
            tokio::select! {
                biased;
                () = &mut until => break,
                question = questions.next() => self.answer(&question),
                // Jobs that are meant for this node stay and get the first free slots.
                Some(hint) = own_hints.recv(), if self.has_room() => match hint {
                    OwnHint::Rescued(_) | OwnHint::Woken(_) | OwnHint::Forwarded(_) => {
                        self.note_own(hint);
                    }
                    OwnHint::InTurn(ready) => {
                        self.node.inbox.taken(ready.hint.id);
                        let place = self.pending.place(&ready.lane);
                        self.publish_again(Cause::Sweep, place, vec![ready]);
                    }
                },
            }
        }
        self.receiver.resume().await;
        self.gathers = self.node.options.lanes.len() > 1;
    }

    /// Publishes rescued, woken and forwarded jobs for other nodes.
    fn leave_addressed(&mut self) {
        let addressed = self.pending.take_addressed();
        self.node.hook.publish(Cause::Sweep, addressed);
    }

    /// Settles forwarded messages.
    async fn settle_passed_on(&mut self) {
        if !self.passed_on.is_empty() {
            let passed_on = std::mem::take(&mut self.passed_on);
            self.receiver.settle(&passed_on).await;
        }
    }

    /// Settles forwarded messages, and reports the decided markers.
    async fn decide_markers(&mut self) {
        self.settle_passed_on().await;
        while let Some((lane, marker, ticket)) = self.pending.decided_marker() {
            self.receiver.settle(&[ticket]).await;
            self.node.hook.tell(Control::MarkerBack { lane, marker });
        }
    }
}
