//! The consumer: receives hints, locks their jobs and starts them.
//!
//! It receives the hints that have arrived, locks as many jobs as there are free slots in one
//! statement, starts the jobs and settles the messages. A message is settled when its last hint is
//! decided: locked, or refused for good. From then on the job depends on its row, its lease and the
//! sweeper, so no broker timeout affects a long job.
//!
//! * **Backpressure**: Nothing is locked without a free slot. The transport holds back the messages
//!   that exceed its prefetch.
//! * **Lanes**: Received hints wait in [`pending`], in one queue for each lane. [`schedule`] picks
//!   the lane that gets the next free slot. Receiving continues while hints wait for a slot or for
//!   the database, so a later hint in a preferred lane can overtake.
//! * **Saturation**: When no slot was free for [`LET_GO`], the consumer requeues its undecided
//!   hints and receives nothing until a slot is free. So no hint waits unsettled behind a long job
//!   (protocol rule 18). A lane that got no slot for this time while other lanes did requeues its
//!   own hints; an idle node may get them.
//! * **Failed renewals**: A node that cannot renew its leases locks nothing. After [`LET_GO`] it
//!   requeues its hints.
//! * **Inline start**: A job that was locked alone starts at once
//!   ([`inline_start`](crate::worker::inline_start)).
//! * **Busy rows** (protocol rule 7): The hint is tried again on this node, behind the hints that
//!   wait in its lane.
//! * **Refused locks**: A job that the database refuses to lock is tried alone. Its hint is settled
//!   once other jobs were locked meanwhile.
//! * **Large payloads**: A lock statement asks for fewer jobs when payloads are large
//!   ([`lock_size`]).
//! * **Held instances**: A hint for an instance that this node holds is refused without a statement
//!   ([`held_instances`](crate::worker::held_instances)).
//! * **Own hints** do not come from the broker. A job that became ready on this node is tried here.
//!   A [rescued](crate::leader::rescue) job is tried before all other jobs of its lane; jobs with a
//!   strike take at most a quarter of the slots. Another node may [forward](crate::worker::forward)
//!   a job that it does not serve to this node, and this node forwards such jobs, too.
//! * **Accounting**: Each hint that was taken from the broker is decided or requeued in the end,
//!   and counted as such.
//! * **Markers**: A marker is decided when everything received before it in its lane is. The
//!   consumer then reports it to the fleet.

mod answer;
mod decision;
pub(crate) mod lock_size;
mod pending;
pub(crate) mod schedule;
mod unserved;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use metrics::counter;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::hint::{Body, Hint};
use crate::job::{JobId, LockToken};
use crate::producer::commit_hook::Cause;
use crate::store::{Locked, Refusal, StoreError};
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;
use crate::transport::{Control, Delivery, Receiver, Subscription, Ticket, TransportError};
use crate::worker::cached_metrics::LaneMetrics;
use crate::worker::context::NodeContext;
use crate::worker::held_hints::Returned;
use crate::worker::own_hints::{OWN_HINTS, OwnHint, OwnHints};
use crate::worker::slot_pool::Slot;
use lock_size::{LOCK_BATCH, LockSize};
use pending::{Arrival, Pending, Waiting};
use schedule::Schedule;

/// The time without a free slot after which hints are requeued.
const LET_GO: Duration = Duration::from_secs(3);
/// The maximum number of lock statements that are under way at once.
const LOCKS_AT_ONCE: usize = 2;
/// The number of pending hints at which receiving stops. The prefetch bounds messages, but not the
/// number of hints that foreign publishers pack into one.
const MOST_PENDING: usize = 65_536;
/// The time after which the hint of a busy row goes to the end of its lane.
const BUSY_FOR: Duration = LET_GO;
const BUSY_PAUSE: Duration = Duration::from_millis(15);
/// The maximum number of forwarded jobs that wait here, or four times the slots if that is more.
/// The sweeper finds the others.
const MOST_FORWARDED: usize = 1_024;
/// How long the consumer waits for the first messages of the other lanes after receiving has begun.
/// Before that it cannot tell which lane is next.
const GATHER: Duration = Duration::from_millis(100);
/// The time without a failure after which receiving counts as working again. Longer than the time
/// that a transport takes to report that its broker is away.
const WELL: Duration = Duration::from_secs(3);
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
    /// The slot that the consumer has waited for, for the next job.
    slot: Option<Slot>,
    /// Messages to settle because all their hints were forwarded on arrival.
    passed_on: Vec<Ticket>,
    returned: Returned,
    /// After an error: the time of the next call, and the pause after the next error.
    receive_after: Option<(Instant, Duration)>,
    /// Whether receiving has just begun and there are several lanes.
    gathers: bool,
    /// The number of jobs with a strike that this node holds.
    struck: watch::Receiver<usize>,
    /// Rescued jobs in lock statements that are under way.
    rescuing: usize,
    lock_size: LockSize,
    /// The number of statements that locked jobs.
    locked: u64,
    /// Limits warnings about unserved jobs, because any creator may create them.
    unserved: LogThrottle,
}

/// A message with undecided hints.
struct Unsettled {
    lane: usize,
    jobs: Box<[JobId]>,
    /// The number of undecided hints.
    left: usize,
}

/// The hints of one lock statement, each with its slot.
#[derive(Default)]
struct Batch {
    hints: Vec<Hint>,
    of: Vec<Arrival>,
    slots: Vec<Slot>,
}

impl Batch {
    fn push(&mut self, waiting: Waiting) {
        self.hints.push(waiting.hint);
        self.of.push(waiting.of);
    }

    fn into_waiting(self) -> impl DoubleEndedIterator<Item = Waiting> {
        let hints = self.hints.into_iter().zip(self.of);
        hints.map(|(hint, of)| Waiting { hint, of })
    }
}

/// The database's answer to a batch.
struct Answer {
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

/// Receives hints and starts their jobs until the node drains.
pub(crate) async fn consume(node: Arc<NodeContext>, own_hints: OwnHints) {
    let subscription = Subscription {
        lanes: node.options.lane_names(),
        prefetch: node.options.prefetch(),
    };
    let mut own_hints = own_hints.lock().await;
    let mut pause = FIRST_PAUSE;
    let mut throttle = LogThrottle::default();
    let receiver = loop {
        match node.transport.subscribe(subscription.clone()).await {
            Ok(receiver) => break receiver,
            Err(error) => {
                if let Some(more) = throttle.now() {
                    tracing::error!(
                        %error, more,
                        "could not subscribe to hints; retrying, and jobs are claimed from the database meanwhile"
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
    let mut consumer = Consumer {
        metrics: lanes.map(|lane| node.cached_metrics.lane(lane)).collect(),
        pending: Pending::new(subscription.lanes.into_iter()),
        schedule: Schedule::new(&node.options.lanes, node.options.lane_order),
        gathers: node.options.lanes.len() > 1,
        struck: node.leases.struck(),
        rescuing: 0,
        node,
        receiver,
        undecided: HashMap::new(),
        slot: None,
        passed_on: Vec::new(),
        returned: Returned::default(),
        receive_after: None,
        lock_size: LockSize::default(),
        locked: 0,
        unserved: LogThrottle::default(),
    };
    consumer.run(&mut own_hints).await;
    let node = consumer.node.clone();
    consumer.let_go().await;
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
            self.decide_markers().await;
            // A separate receiver, because `receive` borrows the consumer. It is created before
            // `startable` is read, so that no change is missed.
            let mut struck = self.struck.clone();
            struck.mark_unchanged();
            if self.startable() == 0 {
                self.slot = None;
                self.node.slots.of_node.wants_none();
                let rescued = self.pending.rescued();
                tokio::select! {
                    biased;
                    () = draining.cancelled() => return,
                    Some(hint) = own_hints.recv(), if self.has_room() => self.note_own(hint),
                    Ok(()) = struck.changed(), if rescued > 0 => {}
                    () = self.receive() => {}
                }
                continue;
            }
            while self.has_room()
                && let Ok(hint) = own_hints.try_recv()
            {
                self.note_own(hint);
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
            if self.lock_some(own_hints).await {
                pause = FIRST_PAUSE;
            } else {
                idle(&self.node, pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.pending.len() + self.pending.rescued() < MOST_PENDING
    }

    /// Returns how many more rescued jobs may start now.
    fn rescue_room(&self) -> usize {
        let taken = *self.struck.borrow() + self.rescuing;
        self.node.options.struck_slots().saturating_sub(taken)
    }

    /// Returns how many waiting hints can be tried as soon as slots are free.
    fn startable(&self) -> usize {
        self.pending.len() + self.pending.rescued().min(self.rescue_room())
    }

    /// Waits for messages and stores them, or for a question and answers it. Cancel-safe.
    async fn receive(&mut self) {
        let questions = self.node.inbox.questions.clone();
        tokio::select! {
            biased;
            question = questions.next() => self.answer(&question),
            () = self.receive_messages() => {}
        }
    }

    /// Stores the messages that the broker has already delivered.
    fn receive_at_once(&mut self) {
        while self.has_room() && self.receive_messages().now_or_never().is_some() {}
    }

    /// Waits for messages and stores them. Cancel-safe.
    async fn receive_messages(&mut self) {
        let Some((moment, _)) = self.receive_after else {
            let received = self.receiver.receive(LOCK_BATCH).await;
            return self.received(received);
        };
        tokio::time::sleep_until(moment).await;
        // There may be no message for hours, so a call that does not fail counts as success.
        let receiving = self.receiver.receive(LOCK_BATCH);
        let received = tokio::time::timeout(WELL, receiving).await;
        let received = received.unwrap_or_else(|_| Ok(Vec::new()));
        self.received(received);
    }

    fn received(&mut self, received: Result<Vec<Delivery>, TransportError>) {
        match received {
            Ok(deliveries) => {
                crash_point!("hints-received");
                if self.receive_after.take().is_some() {
                    self.node.reports.part("consumer", None);
                }
                self.note(deliveries);
            }
            Err(error) => {
                tracing::debug!(%error, "could not receive hints; retrying");
                self.node.reports.part("consumer", Some(error.to_string()));
                let pause = self.receive_after.map_or(FIRST_PAUSE, |(_, pause)| pause);
                let next = (pause * 2).min(LONGEST_PAUSE);
                self.receive_after = Some((Instant::now() + pause, next));
            }
        }
    }

    fn note(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            let ticket = delivery.ticket;
            let place = self.pending.place(&delivery.lane);
            if let Some(metrics) = self.metrics.get(place) {
                metrics.received(&delivery);
            }
            match delivery.body {
                Body::Marker(marker) => self.pending.push_marker(place, marker, ticket),
                Body::Hints(hints) => {
                    let hints = self.pass_on_by_type(place, hints);
                    if hints.is_empty() {
                        self.passed_on.push(ticket);
                        continue;
                    }
                    let unsettled = Unsettled {
                        lane: place,
                        jobs: hints.iter().map(|hint| hint.id).collect(),
                        left: hints.len(),
                    };
                    self.undecided.insert(ticket, unsettled);
                    let of = Arrival {
                        lane: place,
                        ticket: Some(ticket),
                        received_at: delivery.received_at,
                        busy_since: None,
                        rescued: false,
                        forwarded: false,
                        refused_at: None,
                    };
                    for hint in hints {
                        self.pending.push_hint(hint, of);
                    }
                }
            }
        }
    }

    fn note_own(&mut self, hint: OwnHint) {
        let rescued = matches!(hint, OwnHint::Rescued(_));
        let forwarded = matches!(hint, OwnHint::Forwarded(_));
        let ready = hint.into_ready();
        let of = Arrival {
            lane: self.pending.place(&ready.lane),
            ticket: None,
            received_at: Utc::now(),
            busy_since: None,
            rescued,
            forwarded,
            refused_at: None,
        };
        if rescued {
            self.pending.push_rescued(ready.hint, of);
        } else if forwarded {
            let most = MOST_FORWARDED.max(self.node.options.concurrency * 4);
            if !self.pending.push_forwarded(ready.hint, of, most) {
                let reason = Refusal::Unserved.as_str();
                counter!(m::HINTS_REFUSED, "reason" => reason).increment(1);
            }
        } else {
            self.pending.push_hint(ready.hint, of);
        }
    }

    /// Waits up to [`GATHER`] for the first messages of the other lanes.
    async fn gather(&mut self) {
        let draining = self.node.signals.draining.clone();
        let moment = tokio::time::sleep(GATHER);
        tokio::pin!(moment);
        loop {
            tokio::select! {
                // Further arrivals do not prolong the wait.
                biased;
                () = draining.cancelled() => return,
                () = &mut moment => return,
                () = self.receive(), if self.has_room() => {}
            }
        }
    }

    /// Waits until a slot is free and returns true. After [`LET_GO`] requeues the hints, waits on
    /// without them and returns false.
    async fn wait_for_slot(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) -> bool {
        let node = self.node.clone();
        let slots = &node.slots.of_node;
        if self.slot.is_some() || slots.free() > 0 {
            return true;
        }
        let draining = node.signals.draining.clone();
        let patience = tokio::time::sleep(LET_GO);
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
            "no slot was free for {LET_GO:?}; requeued undecided hints, receiving resumes when a slot is free"
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

    /// Waits until leases can be renewed again. After [`LET_GO`] requeues the hints, so that other
    /// nodes get them.
    async fn wait_for_renewals(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) {
        let node = self.node.clone();
        let renewals =
            || async { while !node.leases.healthy() && !idle(&node, FIRST_PAUSE).await {} };
        if tokio::time::timeout(LET_GO, renewals()).await.is_ok() {
            return;
        }
        tracing::info!(
            undecided = self.pending.len(),
            "leases could not be renewed for {LET_GO:?}; requeued undecided hints, receiving resumes when renewals succeed"
        );
        self.step_aside(renewals(), own_hints).await;
    }

    /// Requeues all hints and stops receiving until `until` completes. Rescued and forwarded jobs
    /// stay.
    async fn step_aside(
        &mut self,
        until: impl Future<Output = ()>,
        own_hints: &mut mpsc::Receiver<OwnHint>,
    ) {
        // Delivered messages are requeued, too. They are stored first, because the leader may ask
        // for them.
        self.receive_at_once();
        self.receiver.pause().await;
        self.let_go().await;
        tokio::pin!(until);
        let questions = self.node.inbox.questions.clone();
        loop {
            tokio::select! {
                biased;
                () = &mut until => break,
                question = questions.next() => self.answer(&question),
                // Rescued and forwarded jobs stay and get the first free slots.
                Some(hint) = own_hints.recv(), if self.has_room() => match hint {
                    OwnHint::Rescued(_) | OwnHint::Forwarded(_) => self.note_own(hint),
                    OwnHint::InTurn(ready) => self.node.hook.publish(Cause::Sweep, vec![ready]),
                },
            }
        }
        self.receiver.resume().await;
        self.gathers = self.node.options.lanes.len() > 1;
    }

    /// Publishes rescued and forwarded jobs for other nodes.
    fn leave_addressed(&mut self) {
        let addressed = self.pending.take_addressed();
        self.node.hook.publish(Cause::Sweep, addressed);
    }

    async fn let_go(&mut self) {
        for place in 0..self.node.options.lanes.len() {
            self.requeue(place).await;
        }
    }

    /// Requeues everything undecided of one lane.
    async fn requeue(&mut self, place: usize) {
        let undecided = self.pending.take(place);
        self.count_returned(place, undecided.hints);
        self.node.hook.publish(Cause::Sweep, undecided.own);
        for ticket in &undecided.tickets {
            if let Some(unsettled) = self.undecided.remove(ticket) {
                self.returned.note(place, unsettled.jobs);
            }
        }
        if !undecided.tickets.is_empty() {
            self.receiver.requeue(&undecided.tickets).await;
        }
    }

    /// Settles forwarded messages, and reports the markers that have nothing undecided before them.
    async fn decide_markers(&mut self) {
        if !self.passed_on.is_empty() {
            let passed_on = std::mem::take(&mut self.passed_on);
            self.receiver.settle(&passed_on).await;
        }
        while let Some((lane, marker, ticket)) = self.pending.decided_marker() {
            self.receiver.settle(&[ticket]).await;
            self.node.hook.tell(Control::MarkerBack { lane, marker });
        }
    }

    /// Locks jobs for the free slots. Returns false if the database could not be asked.
    ///
    /// Hints that arrive while a statement is under way, and find free slots, do not wait for its
    /// end or for a full batch. So the database works while an answer is read. When slots are
    /// short, one statement runs at a time, as large as possible.
    async fn lock_some(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) -> bool {
        let mut answered = true;
        let mut under_way = FuturesUnordered::new();
        under_way.extend(self.ask_next().await);
        while !under_way.is_empty() {
            let more = answered && under_way.len() < LOCKS_AT_ONCE && self.may_ask_at_once();
            tokio::select! {
                // The statement under way is sent before the next one is built, and that one before
                // more is received.
                biased;
                Some(answer) = under_way.next() => answered &= self.note_answer(answer).await,
                () = std::future::ready(()), if more => under_way.extend(self.ask_next().await),
                Some(hint) = own_hints.recv(), if self.has_room() => self.note_own(hint),
                () = self.receive(), if self.has_room() => {}
            }
        }
        answered
    }

    /// Returns whether all waiting hints, or a full batch of them, can be locked now and nothing
    /// has to be done before.
    fn may_ask_at_once(&self) -> bool {
        let node = &self.node;
        let wanted = self.startable().min(self.lock_size.limit());
        wanted > 0
            && wanted <= node.slots.of_node.free()
            && !self.pending.has_markers()
            && node.leases.healthy()
            && !node.signals.draining.is_cancelled()
    }

    async fn note_answer(&mut self, answer: Answer) -> bool {
        let rescued = answer.batch.of.iter().filter(|of| of.rescued).count();
        self.rescuing = self.rescuing.saturating_sub(rescued);
        match answer.locked {
            Ok(locked) => {
                crash_point!("jobs-locked");
                self.locked += u64::from(!locked.jobs.is_empty() || locked.rows.is_some());
                self.node.reports.part("database", None);
                self.decide(answer.batch, locked, answer.sent).await;
                true
            }
            Err(error) => self.not_locked(answer.batch, &error).await,
        }
    }

    /// Handles a batch that could not be locked. A batch that the database refuses is tried in
    /// smaller ones, down to the hint at fault. That hint is settled once other jobs were locked
    /// meanwhile. Returns true if the next batch need not wait.
    async fn not_locked(&mut self, batch: Batch, error: &StoreError) -> bool {
        let hints = batch.hints.len();
        for of in &batch.of {
            self.schedule.requeue(of.lane);
        }
        if error.is_answer() {
            self.lock_size.was_refused(hints);
            if hints > 1 {
                tracing::debug!(hints, %error, "the database refused to lock hinted jobs; trying fewer at once");
                self.put_back(batch);
                return true;
            }
            return self.is_refused(batch, error).await;
        }
        tracing::warn!(hints, %error, "could not lock hinted jobs; retrying");
        self.node.reports.part("database", Some(error.to_string()));
        self.put_back(batch);
        false
    }

    /// Handles a hint that was refused alone.
    async fn is_refused(&mut self, batch: Batch, error: &StoreError) -> bool {
        let Some((hint, of)) = batch.hints.first().zip(batch.of.first()) else {
            return true;
        };
        let job = hint.id;
        if of.refused_at.is_some_and(|then| self.locked > then) {
            if let Some(more) = self.node.reports.throttled_lines.now("refused") {
                tracing::error!(
                    %job, %error, more,
                    "the database refuses to lock this job but locks others; its hint is settled, and the sweeper publishes \
                     it again. Fix the cause named in the error (a constraint, a trigger, a lock that a transaction \
                     holds), or delete the job"
                );
            }
            let reason = Refusal::Refused.as_str();
            counter!(m::HINTS_REFUSED, "reason" => reason).increment(1);
            self.settle(batch, &[], &[]).await;
            return true;
        }
        if let Some(more) = self.node.reports.throttled_lines.now("not locked") {
            tracing::warn!(
                %job, %error, more,
                "could not lock this job; trying others before it is tried again"
            );
        }
        let again = of.refused_at.is_some();
        if again && !error.is_row_fault() && !error.is_lock_timeout() {
            // Nothing was locked since the last refusal, and the error does not point to a row.
            self.node.reports.part("database", Some(error.to_string()));
        }
        for mut waiting in batch.into_waiting() {
            waiting.of.refused_at = Some(self.locked);
            waiting.of.rescued = false;
            self.pending.push_again(waiting);
        }
        !again
    }

    fn put_back(&mut self, batch: Batch) {
        for waiting in batch.into_waiting().rev() {
            self.pending.put_back(waiting);
        }
    }

    /// Returns the request for the next batch, if there is one.
    async fn ask_next(&mut self) -> Option<impl Future<Output = Answer> + use<>> {
        let mut held = Batch::default();
        let batch = self.next_batch(&mut held);
        if !held.hints.is_empty() {
            self.refuse_held(held).await;
        }
        batch.map(|batch| ask(self.node.clone(), batch))
    }

    /// Builds a batch for the free slots, lane by lane in turn. Hints of instances that this node's
    /// jobs hold go to `held`.
    fn next_batch(&mut self, held: &mut Batch) -> Option<Batch> {
        let mut batch = Batch::default();
        let mut free = self.slot.take();
        let most = self.lock_size.limit();
        while batch.hints.len() < most && batch.hints.len() + held.hints.len() < LOCK_BATCH {
            let room = self.rescue_room();
            let pending = &self.pending;
            if pending.len() + pending.rescued().min(room) == 0 {
                break;
            }
            let slot = free.take();
            let slot = slot.or_else(|| self.node.slots.of_node.try_take());
            let Some(slot) = slot else { break };
            let lane = self.schedule.next(|lane| pending.waits(lane, room));
            let Some(waiting) = lane.and_then(|lane| self.pending.pop(lane, room)) else {
                break;
            };
            if self.is_held_here(&waiting) {
                free = Some(slot);
                held.push(waiting);
            } else {
                self.rescuing += usize::from(waiting.of.rescued);
                batch.push(waiting);
                batch.slots.push(slot);
            }
        }
        (!batch.hints.is_empty()).then_some(batch)
    }

    fn is_held_here(&self, waiting: &Waiting) -> bool {
        let node = &self.node;
        let lane = || self.pending.lane(waiting.of.lane);
        let trusts = |held: &LockToken| node.leases.trusts(held);
        let place = waiting.of.lane;
        node.instances.refuses(&waiting.hint, place, lane, trusts)
    }
}
