//! The consumer: hints in, locked jobs out.
//!
//! Receive what has come, lock as much of it as there are free slots in one statement, settle, start.
//! A message is settled when its last hint is decided: locked, or refused for good. From then on the row,
//! its lease and the sweeper own the job, so no broker timeout can touch a long one.
//!
//! * **Backpressure**: nothing is locked without a free slot, and the transport holds back what exceeds
//!   its prefetch.
//! * **Lanes**: what was received waits in [`pending`], lane by lane, and each free slot goes to the lane
//!   whose turn it is ([`schedule`]). Receiving goes on while hints wait for a slot or for the database, so
//!   what comes later in a lane with a better claim overtakes.
//! * **Saturated** for [`LET_GO`], the consumer returns its undecided hints and takes nothing until a slot
//!   is free: no hint waits unsettled behind a long job (protocol rule 18). A lane of which nothing was
//!   taken for so long, while other lanes got the slots, returns its own: an idle node may have them.
//! * A node that **can't renew** its leases takes nothing, and after the same while keeps no hint either.
//! * A job that was locked **alone** begins at once ([`first_turn`](crate::worker::inline_start)).
//! * A **busy** row (protocol rule 7) is tried again here, behind what waits in its lane.
//! * A job that the database **refuses** to lock is tried alone, and its hint settled once others were locked meanwhile.
//! * A lock statement asks for fewer hints where **payloads are large** ([`lock_size`]).
//! * An instance that **this node holds** is not asked for: [`held_instances`](crate::worker::held_instances) knows.
//! * **Own hints** did not come from the broker: a job that became ready here is tried here, and a job that was
//!   [rescued](crate::leader::rescue) is tried before all that waits in its lane, as long as jobs with a strike take no more
//!   than a quarter of the slots. A job whose type **another node** can't serve may be [forwarded](crate::worker::forward) to
//!   this one, and this one forwards such jobs.
//! * **Accounts**: each hint that was taken from the broker is decided or returned in the end, and counted as such.
//! * A **marker** is decided when everything received before it in its lane is; then the fleet is told.

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
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;

use crate::hint::{Body, Hint, Ready};
use crate::job::{JobId, LockToken};
use crate::producer::commit_hook::Cause;
use crate::store::{Locked, Refusal, StoreError};
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;
use crate::transport::{Control, Delivery, Receiver, Subscription, Ticket, TransportError};
use crate::worker::cached_metrics::LaneMetrics;
use crate::worker::context::NodeContext;
use crate::worker::held_hints::Returned;
use lock_size::LockSize;
use pending::{Arrival, Pending, Waiting};
use schedule::Schedule;

/// Hints are let go when no slot was free for so long.
const LET_GO: Duration = Duration::from_secs(3);
/// The most hints in one lock statement.
const LOCK_BATCH: usize = 512;
/// Lock statements that may be under way at once.
const LOCKS_AT_ONCE: usize = 2;
/// With so many hints nothing more is received. The prefetch bounds messages, not what foreign publishers
/// pack into one.
const MOST_PENDING: usize = 65_536;
/// A hint whose job's row is busy for so long goes behind its lane.
const BUSY_FOR: Duration = LET_GO;
const BUSY_PAUSE: Duration = Duration::from_millis(15);
/// Forwarded jobs that wait here, or four times the slots; the sweeper has the others.
const MOST_FORWARDED: usize = 1_024;
/// When receiving has begun, the first message of each of several lanes may take so long to come: until then
/// it is not known whose turn it is.
const GATHER: Duration = Duration::from_millis(100);
/// Nothing has failed for so long: hints can be received again. Longer than a transport waits before it
/// says that its broker is away.
const WELL: Duration = Duration::from_secs(3);
/// After an error of broker or database, wait between these.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Hints of a node's own making that may wait; more go to the broker. There is room for all that one turn of the leader
/// rescues, so that none of it stands behind a backlog.
pub(crate) const OWN_HINTS: usize = 8_192;
/// Where they arrive; kept while the consumer is started again.
pub(crate) type OwnHints = Arc<Mutex<mpsc::Receiver<OwnHint>>>;

/// A hint that did not come from the broker.
pub(crate) enum OwnHint {
    /// It waits behind what is here.
    InTurn(Ready),
    /// The job's holder has died: it comes first in its lane.
    Rescued(Ready),
    /// Another node can't serve it: it waits behind the hints that are here, until a slot is free.
    Forwarded(Ready),
}

impl OwnHint {
    pub(crate) fn into_ready(self) -> Ready {
        match self {
            Self::InTurn(ready) | Self::Rescued(ready) | Self::Forwarded(ready) => ready,
        }
    }
}

struct Consumer {
    node: Arc<NodeContext>,
    receiver: Box<dyn Receiver>,
    pending: Pending,
    schedule: Schedule,
    /// Of each lane, in their order.
    metrics: Vec<Arc<LaneMetrics>>,
    /// Messages that are not settled yet.
    undecided: HashMap<Ticket, Unsettled>,
    /// Messages to settle: all their hints were forwarded when they came.
    passed_on: Vec<Ticket>,
    returned: Returned,
    /// The last call failed: not before this moment again, and the next pause is so long.
    receive_after: Option<(Instant, Duration)>,
    /// Receiving has just begun, and there are several lanes.
    gathers: bool,
    /// Jobs with a strike that this node holds.
    struck: watch::Receiver<usize>,
    /// Rescued jobs in lock statements that are under way.
    rescuing: usize,
    lock_size: LockSize,
    /// Statements that locked jobs.
    locked: u64,
    /// Anybody may create jobs of a type that is not served here.
    unserved: LogThrottle,
}

/// A message of which hints are not decided yet.
struct Unsettled {
    lane: usize,
    jobs: Box<[JobId]>,
    /// So many hints.
    left: usize,
}

/// What one statement asks for, each hint with its slot.
#[derive(Default)]
struct Batch {
    hints: Vec<Hint>,
    of: Vec<Arrival>,
    slots: Vec<OwnedSemaphorePermit>,
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

/// What the database said to a batch.
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

/// Consume until the node drains.
pub(crate) async fn consume(node: Arc<NodeContext>, own_hints: OwnHints) {
    let subscription = Subscription {
        lanes: node.options.lane_names(),
        prefetch: node.options.prefetch(),
    };
    let mut own_hints = own_hints.lock().await;
    let mut pause = FIRST_PAUSE;
    let mut rarely = LogThrottle::default();
    let receiver = loop {
        match node.transport.subscribe(subscription.clone()).await {
            Ok(receiver) => break receiver,
            Err(error) => {
                if let Some(more) = rarely.now() {
                    tracing::error!(
                        %error, more,
                        "hints can't be received; it is tried again, and until then jobs are taken from the database"
                    );
                }
                node.report("consumer", Some(error.to_string()));
                if idle(&node, pause).await {
                    pass_on(&node, &mut own_hints).await;
                    return;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    };
    node.report("consumer", None);
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

/// The node drains: hints of its own making are for others, from now on at once.
async fn pass_on(node: &NodeContext, own_hints: &mut mpsc::Receiver<OwnHint>) {
    own_hints.close();
    let mut rest = Vec::new();
    while own_hints.recv_many(&mut rest, OWN_HINTS).await > 0 {}
    let rest = rest.into_iter().map(OwnHint::into_ready).collect();
    node.hook.publish(Cause::Sweep, rest);
}

/// Wait; true when the node drains.
async fn idle(node: &NodeContext, pause: Duration) -> bool {
    tokio::select! {
        biased;
        () = node.draining.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}

/// One that panics keeps no hint that nobody would deliver again.
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
        let draining = self.node.draining.clone();
        let mut pause = FIRST_PAUSE;
        while !draining.is_cancelled() {
            self.decide_markers().await;
            // A receiver of its own, since receiving borrows the consumer; made before the look at what may start.
            let mut struck = self.struck.clone();
            struck.mark_unchanged();
            if self.startable() == 0 {
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
                // The database does not renew what is held: taking more would only lose more.
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

    /// How many more rescued jobs may start now.
    fn rescue_room(&self) -> usize {
        let taken = *self.struck.borrow() + self.rescuing;
        self.node.options.struck_slots().saturating_sub(taken)
    }

    /// How many of the hints that wait may be tried as soon as there are slots.
    fn startable(&self) -> usize {
        self.pending.len() + self.pending.rescued().min(self.rescue_room())
    }

    /// Wait for messages and note them, or for a question and answer it. Cancel-safe.
    async fn receive(&mut self) {
        let questions = self.node.questions.clone();
        tokio::select! {
            biased;
            question = questions.next() => self.answer(&question),
            () = self.receive_messages() => {}
        }
    }

    /// Note the messages that the broker has delivered already.
    fn receive_at_once(&mut self) {
        while self.has_room() && self.receive_messages().now_or_never().is_some() {}
    }

    /// Wait for messages and note them. Cancel-safe.
    async fn receive_messages(&mut self) {
        let Some((moment, _)) = self.receive_after else {
            let received = self.receiver.receive(LOCK_BATCH).await;
            return self.received(received);
        };
        tokio::time::sleep_until(moment).await;
        // No message may come for hours; that it did not fail is good news, too.
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
                    self.node.report("consumer", None);
                }
                self.note(deliveries);
            }
            Err(error) => {
                tracing::debug!(%error, "no hints for now");
                self.node.report("consumer", Some(error.to_string()));
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

    /// The first message of one lane is here; those of the others may be a moment behind.
    async fn gather(&mut self) {
        let draining = self.node.draining.clone();
        let moment = tokio::time::sleep(GATHER);
        tokio::pin!(moment);
        loop {
            tokio::select! {
                // What goes on arriving does not prolong the moment.
                biased;
                () = draining.cancelled() => return,
                () = &mut moment => return,
                () = self.receive(), if self.has_room() => {}
            }
        }
    }

    /// Wait until a slot is free; after a while let the hints go, and wait on without them.
    async fn wait_for_slot(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) -> bool {
        let slots = self.node.slots.clone();
        if slots.available_permits() > 0 {
            return true;
        }
        let draining = self.node.draining.clone();
        let patience = tokio::time::sleep(LET_GO);
        let slot = slots.acquire();
        tokio::pin!(patience, slot);
        loop {
            tokio::select! {
                // Receiving comes last: what goes on arriving keeps no free slot from being noticed.
                biased;
                () = draining.cancelled() => return false,
                permit = &mut slot => return permit.is_ok(),
                () = &mut patience => break,
                () = self.receive(), if self.has_room() => self.decide_markers().await,
            }
        }
        tracing::info!(
            undecided = self.pending.len(),
            "no slot was free for {LET_GO:?}; hints go back to the broker until one is"
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

    /// Wait until leases can be renewed again; after a while without the hints, which another node may have.
    async fn wait_for_renewals(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) {
        let node = self.node.clone();
        let renewals =
            || async { while !node.leases.healthy() && !idle(&node, FIRST_PAUSE).await {} };
        if tokio::time::timeout(LET_GO, renewals()).await.is_ok() {
            return;
        }
        tracing::info!(
            undecided = self.pending.len(),
            "leases could not be renewed for {LET_GO:?}; hints go back to the broker until they can"
        );
        self.step_aside(renewals(), own_hints).await;
    }

    /// Leave every hint to other nodes for so long, but for rescued and forwarded jobs.
    async fn step_aside(
        &mut self,
        until: impl Future<Output = ()>,
        own_hints: &mut mpsc::Receiver<OwnHint>,
    ) {
        // Delivered messages go back, too: the leader may ask after them.
        self.receive_at_once();
        self.receiver.pause().await;
        self.let_go().await;
        tokio::pin!(until);
        let questions = self.node.questions.clone();
        loop {
            tokio::select! {
                biased;
                () = &mut until => break,
                question = questions.next() => self.answer(&question),
                // Rescued and forwarded jobs stay: the first slots that are free are theirs.
                Some(hint) = own_hints.recv(), if self.has_room() => match hint {
                    OwnHint::Rescued(_) | OwnHint::Forwarded(_) => self.note_own(hint),
                    OwnHint::InTurn(ready) => self.node.hook.publish(Cause::Sweep, vec![ready]),
                },
            }
        }
        self.receiver.resume().await;
        self.gathers = self.node.options.lanes.len() > 1;
    }

    /// Leave rescued and forwarded jobs to other nodes.
    fn leave_addressed(&mut self) {
        let addressed = self.pending.take_addressed();
        self.node.hook.publish(Cause::Sweep, addressed);
    }

    async fn let_go(&mut self) {
        for place in 0..self.node.options.lanes.len() {
            self.requeue(place).await;
        }
    }

    /// Give back everything of one lane.
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

    /// Settle what was forwarded, and tell of the markers that have nothing undecided before them.
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

    /// Lock what the free slots can take; false where the database could not be asked.
    ///
    /// What arrives while a statement is under way, and finds a slot at once, need not wait for that statement's
    /// end; nor need a full batch, so that the database works while an answer is read. Where slots are short there
    /// is one statement at a time, as large as it can be.
    async fn lock_some(&mut self, own_hints: &mut mpsc::Receiver<OwnHint>) -> bool {
        let mut answered = true;
        let mut under_way = FuturesUnordered::new();
        under_way.extend(self.ask_next().await);
        while !under_way.is_empty() {
            let more = answered && under_way.len() < LOCKS_AT_ONCE && self.may_ask_at_once();
            tokio::select! {
                // The one under way leaves before the next is put together, and that before more is received.
                biased;
                Some(answer) = under_way.next() => answered &= self.note_answer(answer).await,
                () = std::future::ready(()), if more => under_way.extend(self.ask_next().await),
                Some(hint) = own_hints.recv(), if self.has_room() => self.note_own(hint),
                () = self.receive(), if self.has_room() => {}
            }
        }
        answered
    }

    /// Everything that waits, or a full batch of it, could be locked now, and nothing else is to be done before.
    fn may_ask_at_once(&self) -> bool {
        let node = &self.node;
        let wanted = self.startable().min(self.lock_size.limit());
        wanted > 0
            && wanted <= node.slots.available_permits()
            && !self.pending.has_markers()
            && node.leases.healthy()
            && !node.draining.is_cancelled()
    }

    async fn note_answer(&mut self, answer: Answer) -> bool {
        let rescued = answer.batch.of.iter().filter(|of| of.rescued).count();
        self.rescuing = self.rescuing.saturating_sub(rescued);
        match answer.locked {
            Ok(locked) => {
                crash_point!("jobs-locked");
                self.locked += u64::from(!locked.jobs.is_empty() || locked.rows.is_some());
                self.node.report("database", None);
                self.decide(answer.batch, locked, answer.sent).await;
                true
            }
            Err(error) => self.not_locked(answer.batch, &error).await,
        }
    }

    /// A batch could not be locked. One that the database refuses is tried in smaller ones, down to the hint that is to
    /// blame: it is settled once others were locked meanwhile. True where the next batch need not wait.
    async fn not_locked(&mut self, batch: Batch, error: &StoreError) -> bool {
        let hints = batch.hints.len();
        for of in &batch.of {
            self.schedule.requeue(of.lane);
        }
        if error.is_answer() {
            self.lock_size.was_refused(hints);
            if hints > 1 {
                tracing::debug!(hints, %error, "hints could not be locked; fewer are tried");
                self.put_back(batch);
                return true;
            }
            return self.is_refused(batch, error).await;
        }
        tracing::warn!(hints, %error, "hints could not be locked; trying again");
        self.node.report("database", Some(error.to_string()));
        self.put_back(batch);
        false
    }

    /// A hint that is refused alone.
    async fn is_refused(&mut self, batch: Batch, error: &StoreError) -> bool {
        let Some((hint, of)) = batch.hints.first().zip(batch.of.first()) else {
            return true;
        };
        let job = hint.id;
        if of.refused_at.is_some_and(|then| self.locked > then) {
            if let Some(more) = self.node.throttled_lines.now("refused") {
                tracing::error!(
                    %job, %error, more,
                    "the database refuses to lock a job, and locks others; its hint is settled, and the sweeper hints it \
                     again. Correct what the error names (a constraint, a trigger, a lock that a transaction holds), or \
                     delete the job"
                );
            }
            let reason = Refusal::Refused.as_str();
            counter!(m::HINTS_REFUSED, "reason" => reason).increment(1);
            self.settle(batch, &[], &[]).await;
            return true;
        }
        if let Some(more) = self.node.throttled_lines.now("not locked") {
            tracing::warn!(
                %job, %error, more,
                "a job could not be locked; others are tried before it is tried again"
            );
        }
        let again = of.refused_at.is_some();
        if again && !error.is_row_fault() && !error.is_lock_timeout() {
            // Nothing was locked since, and no row seems to be the reason.
            self.node.report("database", Some(error.to_string()));
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

    /// Ask for the next batch, if there is one.
    async fn ask_next(&mut self) -> Option<impl Future<Output = Answer> + use<>> {
        let mut held = Batch::default();
        let batch = self.next_batch(&mut held);
        if !held.hints.is_empty() {
            self.refuse_held(held).await;
        }
        batch.map(|batch| ask(self.node.clone(), batch))
    }

    /// As many as there are free slots, of the lanes whose turn it is; aside what this node's own jobs hold.
    fn next_batch(&mut self, held: &mut Batch) -> Option<Batch> {
        let mut batch = Batch::default();
        let mut free = None;
        let most = self.lock_size.limit();
        while batch.hints.len() < most && batch.hints.len() + held.hints.len() < LOCK_BATCH {
            let room = self.rescue_room();
            let pending = &self.pending;
            if pending.len() + pending.rescued().min(room) == 0 {
                break;
            }
            let slot = free.take();
            let slot = slot.or_else(|| self.node.slots.clone().try_acquire_owned().ok());
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
