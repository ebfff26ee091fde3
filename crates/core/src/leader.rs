//! The leader: one node of a fleet moves timers and sweeps.
//!
//! The leader holds a lease in the database, with a term. The **leader cycle** is one statement: it
//! renews this lease, ends the leases of dead nodes, marks jobs that never had a hint, and reads
//! the next due date and the gauges. It runs every
//! [`sweep_interval`](crate::NodeOptions::sweep_interval) while jobs wait or run, at least twice a
//! lease, every third interval when the fleet is idle, and always before the leader's own lease
//! ends. Followers ask the database nothing; they receive the leader's beats over the broker. A
//! node that receives no beat asks once every interval.
//!
//! ```text
//!                 cycle: "I lead"                     lease gone, or cycle: "another leads"
//!   follower ───────────────────────► leader ──────────────────────────────────────────► follower
//!      ▲   no beat for an interval │     │ every interval: cycle; in between: beats
//!      └────── beat received ──────┘     └─ shutdown: resign, "I leave" ─► followers try at once
//! ```
//! The leader's lease is no longer than a job's. So a job of a dead node is taken over within a
//! job's lease, one interval and two seconds, even if the dead node led (protocol rule 24).
//!
//! A leader that cannot publish, and has received beats of other nodes, resigns for a while so that
//! a node that can publish may lead (`publish_watch`). Two leaders at once, as after a jump of
//! the clock, do no harm: a cycle changes only rows that it has locked.

mod clock;
mod members;
mod publish_watch;
mod rescue;
pub mod sweeper;
pub(crate) mod tap;
pub(crate) mod timers;
mod unserved_lanes;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, gauge};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::fleet::Beat;
use crate::hint::Ready;
use crate::job::NodeId;
use crate::leader::clock::DatabaseClock;
use crate::leader::sweeper::Sweeper;
use crate::leader::unserved_lanes::UnservedLanes;
use crate::producer::commit_hook::Cause;
use crate::store::{COUNT_LIMIT, CycleOutcome, CycleReport, LeaderCycle, Rescued};
use crate::telemetry::metrics as m;
use crate::transport::{Control, SPOKEN};
use crate::worker::context::NodeContext;
use crate::worker::forward;
use crate::worker::held_hints::Question;
use crate::worker::next_timer::Asker;
use members::Members;
use publish_watch::PublishWatch;

/// Maximum number of expired leases and of unhinted jobs in one cycle. A full cycle is followed by
/// another at once.
const PAGE: i64 = 5_000;
/// The interval at which a store that can answer cheaply is asked whether another process wrote to
/// it.
const LOOK: Duration = Duration::from_millis(500);

/// The time from a node's first beat to its second. It doubles with each beat, up to the regular
/// interval.
const FIRST_BEATS: Duration = Duration::from_millis(250);

/// The pause after which a leader whose row is locked asks again.
const ROW_LOCKED: Duration = Duration::from_millis(100);

/// The minimum time between two beats. New nodes are answered with a beat, and everyone who may
/// publish can invent new nodes.
const BETWEEN_BEATS: Duration = Duration::from_millis(100);

/// The minimum time between two searches for unhinted jobs that a control message asks for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

struct Leader {
    node: Arc<NodeContext>,
    sweeper: Sweeper,
    unreceived: UnservedLanes,
    term: Option<i64>,
    /// The latest end of the leader's lease.
    leads_until: Instant,
    /// The last cycle failed. Beats do not postpone the next one.
    failed: bool,
    /// Jobs wait or run, so cycles run at the short interval.
    busy: bool,
    next_turn: Instant,
    next_beat: Instant,
    last_beat: Instant,
    /// The pause before the next beat. It starts short, because the listeners of other nodes may
    /// not be there yet, and jobs are forwarded only to a node whose beat was received.
    beat_pause: Duration,
    looked: Option<Instant>,
    clock: DatabaseClock,
    publish_watch: PublishWatch,
    members: Members,
    alone_pass_done: bool,
}

/// Leads or follows until the node drains.
pub(crate) async fn lead(node: Arc<NodeContext>) {
    gauge!(m::LEADER).set(0.0);
    let mut control = node.transport.listen();
    let drain = node.signals.draining.clone();
    let mut leader = Leader {
        node,
        sweeper: Sweeper::default(),
        unreceived: UnservedLanes::default(),
        term: None,
        leads_until: Instant::now(),
        failed: false,
        busy: true,
        next_turn: Instant::now(),
        next_beat: Instant::now(),
        last_beat: Instant::now(),
        beat_pause: FIRST_BEATS,
        looked: None,
        clock: DatabaseClock::default(),
        publish_watch: PublishWatch::default(),
        members: Members::begin(),
        alone_pass_done: false,
    };
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let watches = leader.node.transport.is_single_node()
        && matches!(leader.node.store.data_version().await, Ok(Some(_)));
    if leader.node.transport.is_single_node() {
        // No other node could have held a lease before this node started.
        leader.clock.answered();
    }
    let mut version = None;
    let mut revision = leader.node.served.revision();
    // It may have changed since the node wrote its row.
    revision.mark_changed();
    leader.announce();
    loop {
        tokio::select! {
            biased;
            () = drain.cancelled() => break,
            heard = control.recv() => match heard {
                Ok(message) => leader.hear(message).await,
                // A slow listener loses the oldest messages; the next beat or cycle makes up for
                // them.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => break,
            },
            () = tokio::time::sleep_until(leader.next_turn) => leader.turn().await,
            () = tokio::time::sleep_until(leader.next_beat) => leader.announce(),
            Ok(()) = revision.changed() => leader.members.write_now(),
            () = tokio::time::sleep_until(leader.members.next()) => leader.go_on_with_members().await,
            () = leader.next_question(), if leader.leads() => leader.sweeper.go_on_with_questions(&leader.node).await,
            _ = look.tick(), if watches => leader.look(&mut version).await,
        }
    }
    leader.leave().await;
}

impl Leader {
    fn interval(&self) -> Duration {
        let options = &self.node.options;
        if self.busy {
            options.busy_interval()
        } else {
            options.sweep_interval * 3
        }
    }

    /// Waits until the sweeper has a question to ask, or has waited long enough for answers.
    async fn next_question(&self) {
        match self.sweeper.next_question() {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    fn leads(&self) -> bool {
        self.term.is_some()
    }

    fn announce(&mut self) {
        let node = &self.node;
        if let Some(term) = self.term {
            node.hook.tell(Control::LeaderAlive {
                node: node.id,
                term,
                now: Some(self.clock.now()),
                age: self.clock.age(),
                doubt: self
                    .clock
                    .doubted_until()
                    .map(|until| until.saturating_duration_since(Instant::now())),
            });
        }
        node.hook.tell(Control::NodeAlive {
            node: node.id,
            types: node.served.types().to_vec(),
            lanes: node.options.lane_names(),
            free: Some(node.free_slots()),
            speaks: SPOKEN,
            row: Some(*node.served.revision().borrow()),
        });
        self.last_beat = Instant::now();
        self.next_beat = self.last_beat + self.beat_pause.min(node.options.sweep_interval / 2);
        self.beat_pause = (self.beat_pause * 2).min(node.options.sweep_interval);
    }

    async fn turn(&mut self) {
        let node = self.node.clone();
        if self.leads() {
            let health = node.transport.publisher().health();
            // The leader resigns only if another node lives; otherwise no node would lead.
            let others = node
                .fleet
                .hears_others(node.id, node.options.sweep_interval * 3);
            if self
                .publish_watch
                .makes_room(Instant::now(), health.can_publish(), others)
            {
                tracing::warn!(
                    node = %node.id,
                    problem = health.problem.as_deref().unwrap_or("the broker takes no messages"),
                    "this node cannot publish hints; it resigns so that another node may lead"
                );
                self.resign().await;
                self.next_turn = Instant::now() + self.interval() * 3;
                return;
            }
        }
        let patience = node.options.renewal_period();
        // A leader has to check this only after a failed cycle: an outage in which leases end fails
        // at least one.
        let may_be_away = self.failed || !self.leads();
        let away = may_be_away && self.clock.is_unanswered_for(patience);
        let waits = self.clock.is_doubted() || away;
        let turn = LeaderCycle {
            node: node.id,
            lease: node.options.leader_lease(),
            transport: node.transport.name(),
            reset_at_most: if waits { 0 } else { PAGE },
            clock: self.clock.window(),
            grace: patience,
            services: node.fleet.services(),
            again_after: node.options.sweep_interval,
            hint_at_most: PAGE,
        };
        node.leadership.next_timer.asks(Asker::LeaderCycle);
        let sent = Instant::now();
        let taken = node.store.run_leader_cycle(&turn).await;
        self.failed = taken.is_err();
        if let Ok(outcome) = &taken {
            if let CycleOutcome::Follows { remaining, .. } = outcome {
                // The leader's last cycle was answered when its lease began.
                let age = turn.lease.saturating_sub(*remaining);
                self.clock.answered_before(age);
            }
            if away && self.clock.is_unanswered_for(patience) {
                // The outage may have lasted until leases expired, so living nodes renew first
                // (protocol rule 25).
                self.clock.doubt_for(patience);
            }
            self.clock.answered();
        }
        match taken {
            Ok(CycleOutcome::Leads(report)) => {
                self.leads_until = sent + turn.lease;
                node.reports.part("leader", None);
                self.led(*report, sent).await;
                // The longer interval of an idle fleet must not outlast the leader's lease.
                self.next_turn = self.next_turn.min(sent + turn.lease * 4 / 5);
                // Work that waits for the end of the doubt continues then.
                if let Some(end) = self.clock.doubted_until() {
                    self.next_turn = self.next_turn.min(end);
                }
            }
            Ok(CycleOutcome::Follows { leader, .. })
                if leader == node.id && self.leads() && Instant::now() < self.leads_until =>
            {
                // Another node asks at this moment, or a transaction has locked the leader's row.
                self.next_turn = Instant::now() + ROW_LOCKED;
            }
            Ok(CycleOutcome::Follows { remaining, .. }) => {
                node.reports.part("leader", None);
                self.follow();
                let remaining = remaining + Duration::from_millis(50);
                self.next_turn = Instant::now() + remaining.min(node.options.sweep_interval);
            }
            Err(error) => {
                let message = if self.term.is_some() {
                    "the leader cycle failed; trying again"
                } else {
                    "could not ask the database which node leads; trying again"
                };
                tracing::warn!(%error, "{message}");
                node.reports.part("leader", Some(error.to_string()));
                if Instant::now() >= self.leads_until {
                    // Beats of a leader without a lease would keep other nodes from asking.
                    self.follow();
                }
                // Another node may lead soon; this node learns it in its next cycle.
                self.next_turn = Instant::now() + Duration::from_secs(1).min(self.interval());
            }
        }
    }

    async fn led(&mut self, report: CycleReport, sent: Instant) {
        let node = self.node.clone();
        if self.term != Some(report.term) {
            tracing::info!(node = %node.id, term = report.term, "this node leads");
            crash_point!("term-begun");
            self.term = Some(report.term);
            gauge!(m::LEADER).set(1.0);
            node.leadership.leads.send_replace(true);
            self.announce();
            self.unreceived.begin(&node);
            self.free_instances().await;
        }
        if let Some(jump) = self.clock.saw(report.now, sent, node.options.lease) {
            counter!(m::CLOCK_JUMPS).increment(1);
            tracing::warn!(
                seconds = jump.num_milliseconds() as f64 / 1e3,
                wait = node.options.lease.as_secs_f64(),
                "the database's clock jumped, or its answer was late by as much; no job is taken \
                 over until all nodes have renewed their leases"
            );
        }
        node.leadership
            .next_timer
            .answered(Asker::LeaderCycle, sent, report.now, report.next_due);
        // Leases are counted exactly. Executable jobs are counted up to a limit; beyond it their
        // number is an estimate that may be too small, so some jobs are assumed to wait.
        let waits = report.executable > report.leased.min(COUNT_LIMIT);
        self.busy = report.leased > 0 || report.executable > 0;
        self.next_turn = Instant::now() + self.interval();
        gauge!(m::EXECUTABLE).set(report.executable as f64);
        gauge!(m::TIMERS).set(report.timers as f64);
        gauge!(m::DEAD_LETTERS).set(report.dead_letters as f64);
        gauge!(m::LEASED).set(report.leased as f64);
        let oldest = report
            .oldest_ready_at
            .map_or(0.0, |at| (report.now - at).as_seconds_f64().max(0.0));
        gauge!(m::OLDEST_AGE).set(oldest);

        let full = |found: usize| i64::try_from(found).is_ok_and(|n| n >= PAGE);
        if full(report.rescued.len()) || full(report.unhinted.len()) || report.has_more {
            self.next_turn = Instant::now();
        }
        self.rescue(report.rescued);
        self.hint_new(report.unhinted);
        if node.transport.is_single_node() && !self.alone_pass_done {
            // Jobs that this cycle has marked became ready after it began, and their hints are on
            // their way.
            let before = report.now - chrono::Duration::microseconds(1);
            self.alone_pass_done = self.sweeper.start_alone(&node, before).await;
        } else if waits {
            self.sweeper
                .send_markers(&node, report.now, report.horizon)
                .await;
        }
        if waits {
            self.unreceived.look(&node).await;
        } else {
            self.unreceived.end();
        }
    }

    /// Sends the jobs of dead holders to nodes that start them before waiting jobs.
    fn rescue(&self, rescued: Vec<Rescued>) {
        if rescued.is_empty() {
            return;
        }
        let node = &self.node;
        counter!(m::SWEPT, "class" => "expired").increment(rescued.len() as u64);
        let dead: HashSet<_> = rescued.iter().filter_map(|rescued| rescued.owner).collect();
        tracing::info!(
            jobs = rescued.len(),
            holders = list_of(&dead),
            "leases expired; other nodes take their jobs over"
        );
        crash_point!("turn-taken");
        node.fleet.note(node.id, node.beat());
        rescue::send(node, rescued, &dead);
    }

    /// Hints jobs that were created without a hint.
    fn hint_new(&self, found: Vec<Ready>) {
        if found.is_empty() {
            return;
        }
        let node = &self.node;
        counter!(m::SWEPT, "class" => "unhinted").increment(found.len() as u64);
        tracing::info!(
            jobs = found.len(),
            "jobs were created without a hint; they are hinted"
        );
        crash_point!("turn-taken");
        // Hints of lanes that this node receives are tried here first, up to the number of free
        // slots.
        let mut room = node.free_slots();
        let try_here = |ready: Ready| {
            if room == 0 || !node.options.receives(&ready.lane) {
                return Some(ready);
            }
            room -= 1;
            node.inbox.try_here(ready)
        };
        let rest = found.into_iter().filter_map(try_here).collect();
        node.hook.publish(Cause::Sweep, rest);
    }

    /// Frees instances whose holder is gone, and hints their next jobs. Completions free their
    /// instance themselves; this finds the ones that other programs left held.
    async fn free_instances(&self) {
        match self.node.store.free_instances().await {
            Ok(ready) if !ready.is_empty() => {
                counter!(m::SWEPT, "class" => "instance").increment(ready.len() as u64);
                tracing::warn!(
                    jobs = ready.len(),
                    "process instances were held by jobs that are gone; their next jobs are hinted"
                );
                self.node.hook.publish(Cause::Sweep, ready);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "could not look for leftover instance locks"),
        }
    }

    fn follow(&mut self) {
        if self.term.take().is_some() {
            tracing::info!(node = %self.node.id, "this node no longer leads");
            gauge!(m::LEADER).set(0.0);
            self.node.leadership.leads.send_replace(false);
            self.unreceived.end();
            self.sweeper.forget();
        }
    }

    /// Writes this node's row and reads those of the others, when they are due.
    async fn go_on_with_members(&mut self) {
        let node = self.node.clone();
        if self.members.go_on(&node, self.leads()).await {
            // Other nodes read the row when a beat names its new revision.
            self.next_beat = self.next_beat.min(self.last_beat + BETWEEN_BEATS);
        }
    }

    /// Returns whether the sender has a row. Messages of other senders are ignored, and the rows
    /// are read again.
    fn is_from_member(&mut self, id: NodeId) -> bool {
        let is_member = self.node.fleet.knows(id);
        if !is_member {
            self.members.read_soon();
        }
        is_member
    }

    async fn hear(&mut self, message: Control) {
        let node = self.node.clone();
        if let Some(sender) = message.sender()
            && !self.is_from_member(sender)
            && !matches!(message, Control::NodeAlive { .. })
        {
            return;
        }
        match message {
            Control::LeaderAlive {
                node: leader,
                now,
                age,
                doubt,
                ..
            } if leader != node.id && !self.leads() => {
                if let Some(doubt) = doubt {
                    self.clock.leader_doubts(doubt, node.options.lease);
                }
                if let Some(now) = now {
                    let lease = node.options.lease;
                    let jump = self.clock.heard(now, age.unwrap_or_default(), lease);
                    if let Some(jump) = jump {
                        let seconds = jump.num_milliseconds() as f64 / 1e3;
                        tracing::info!(
                            seconds,
                            "the leader's beat shows that the database's clock jumped"
                        );
                    }
                }
                if !self.failed {
                    // While the leader sends beats, this node need not ask.
                    self.next_turn = Instant::now() + node.options.sweep_interval;
                }
            }
            Control::Rescued { node: to, jobs } if to == node.id => rescue::receive(&node, jobs),
            Control::Forwarded { node: to, jobs } if to == node.id => forward::receive(&node, jobs),
            Control::LeaderLeaves { node: leader } if leader != node.id => {
                // Spreads the followers over 50 ms; the ids are random.
                let (spread, _) = node.id.0.as_u64_pair();
                self.next_turn = Instant::now() + Duration::from_millis(spread % 50);
            }
            Control::TimerSet { due } if self.leads() => {
                node.leadership.next_timer.earlier(self.clock.now(), due);
            }
            Control::MarkerBack { lane, marker } if self.leads() && marker.node == node.id => {
                self.sweeper.marker_back(&node, &lane, marker).await;
            }
            Control::WhichHeld {
                node: to,
                question,
                lane,
                within,
            } => node.inbox.questions.ask(Question {
                to,
                number: question,
                lane,
                within,
            }),
            Control::Held {
                node: from,
                to,
                question,
                jobs,
                last,
            } if self.leads() && to == node.id => {
                let sweeper = &mut self.sweeper;
                sweeper.answered(&node, from, question, jobs, last).await;
            }
            Control::NodeAlive {
                node: id,
                free,
                speaks,
                row: revision,
                ..
            } => {
                let beat = Beat {
                    revision,
                    free,
                    speaks,
                };
                let noted = node.fleet.note(id, beat);
                if noted.read_rows {
                    self.members.read_soon();
                }
                if noted.is_new && id != node.id {
                    // The beat tells the new node which node leads and that this node lives. One
                    // beat answers many new nodes.
                    self.next_beat = self.next_beat.min(self.last_beat + BETWEEN_BEATS);
                }
            }
            Control::NodeLeaves { node: id } => {
                node.fleet.forget(id);
                self.sweeper.left(id);
            }
            Control::Look if self.leads() => {
                // Everyone who may publish can ask. Requests that come too often wait for a cycle,
                // which looks as well.
                let next = self.looked.map(|looked| looked + BETWEEN_LOOKS);
                match next.filter(|next| *next > Instant::now()) {
                    Some(next) => self.next_turn = self.next_turn.min(next),
                    None => {
                        self.hint_unhinted().await;
                        self.looked = Some(Instant::now());
                    }
                }
            }
            Control::Cancel { job } if node.leases.cancel(job) => {
                tracing::info!(%job, "a running job was asked to stop by an operator");
            }
            _ => {}
        }
    }

    /// Looks for unhinted jobs after another process has written to the embedded database.
    async fn look(&mut self, last: &mut Option<i64>) {
        let Ok(version) = self.node.store.data_version().await else {
            return;
        };
        if *last != version {
            *last = version;
            if self.leads() {
                self.hint_unhinted().await;
            }
        }
    }

    async fn hint_unhinted(&mut self) {
        match self.node.store.unhinted(PAGE).await {
            Ok(found) if !found.is_empty() => {
                counter!(m::SWEPT, "class" => "unhinted").increment(found.len() as u64);
                self.node.hook.publish(Cause::Sweep, found);
                self.busy = true;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "could not look for jobs without a hint"),
        }
    }

    async fn leave(&mut self) {
        let node = &self.node;
        node.hook.tell(Control::NodeLeaves { node: node.id });
        if self.leads() {
            self.resign().await;
        }
        if let Err(error) = self.node.store.remove_node(self.node.id).await {
            tracing::warn!(%error, "could not remove this node's row; the leader removes it after five minutes");
        }
    }

    async fn resign(&mut self) {
        let node = self.node.clone();
        self.follow();
        if let Err(error) = node.store.resign(node.id).await {
            tracing::warn!(%error, "could not resign; another node leads when the lease ends");
        }
        node.hook.tell(Control::LeaderLeaves { node: node.id });
    }
}

/// Formats node ids for the log.
fn list_of(nodes: &HashSet<NodeId>) -> String {
    let mut ids: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    ids.sort_unstable();
    ids.join(", ")
}
