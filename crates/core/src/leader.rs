//! The leader: one node of a fleet moves timers and sweeps.
//!
//! The leader holds a lease in the database, with a term. The **leader cycle** is one statement: it
//! renews this lease, ends the leases of dead nodes, marks jobs that never had a hint, and reads
//! the next due date and the gauges. While jobs wait or run, it runs every
//! [`sweep_interval`](crate::NodeOptions::sweep_interval), at least twice a lease. In an idle fleet
//! it runs every third interval, but always before the leader's own lease ends: by default after 20 s. Followers
//! receive the leader's beats over the broker. A node that receives no beat asks the database once
//! every interval. One that receives beats asks every five to six minutes, because any client that may
//! publish can send beats.
//!
//! ```text
//!                 cycle: "I lead"                     lease gone, or cycle: "another leads"
//!   follower ───────────────────────► leader ──────────────────────────────────────────► follower
//!      ▲   no beat for an interval │     │ every interval: cycle; in between: beats
//!      └────── beat received ──────┘     └─ shutdown: resign, "I leave" ─► followers try at once
//! ```
//! The leader's searches (`searches`) run beside the cycles and delay none.
//!
//! The leader's lease is no longer than a job's. So a job of a dead node is taken over within a
//! job's lease, one interval and two seconds, even if the dead node led (protocol rule 24).
//!
//! A leader that cannot publish, and has received beats of other nodes, resigns for a while so that
//! a node that can publish may lead (`publish_watch`). Two leaders at once, as after a jump of
//! the clock, do no harm: a cycle changes only rows that it has locked.

pub(crate) mod batches;
mod clock;
mod cycle;
pub(crate) mod events;
mod members;
mod messages;
mod page_size;
pub(crate) mod periodic;
pub(crate) mod pruning;
mod publish_watch;
mod rescue;
pub(crate) mod searches;
pub mod sweeper;
pub(crate) mod tap;
pub(crate) mod timers;
mod unserved_lanes;
mod unserved_types;
mod waiting_types;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::leader::clock::DatabaseClock;
use crate::telemetry::metrics as m;
use crate::transport::Control;
use crate::worker::context::NodeContext;
use members::Members;
use page_size::PageSize;
use publish_watch::PublishWatch;

/// The interval at which a store is asked whether another process wrote to it, if the store can
/// answer cheaply.
const LOOK: Duration = Duration::from_millis(500);

/// The time from a node's first beat to its second. It doubles with each beat, up to the regular
/// interval.
const FIRST_BEATS: Duration = Duration::from_millis(250);

/// The minimum time between two beats. Each new node is answered with a beat, and any client that
/// may publish can invent new nodes.
const BETWEEN_BEATS: Duration = Duration::from_millis(100);

/// The time for which messages alone keep a follower from asking the database which node leads, at
/// least.
const BEATS_TRUSTED: Duration = Duration::from_secs(300);
/// The rest after a leader cycle before one that a message asks for, as a multiple of the cycle's
/// duration, and its minimum.
const REST: u32 = 4;
const SHORTEST_REST: Duration = Duration::from_secs(1);

struct Leader {
    node: Arc<NodeContext>,
    term: Option<i64>,
    /// The latest end of the leader's lease.
    leads_until: Instant,
    /// Whether a cycle without an answer may have ended leases since the last one that may.
    answer_lost: bool,
    /// The first of the last answers that all said that no node leads: another transaction has locked the
    /// leader's row.
    unled_since: Option<Instant>,
    /// Whether the last cycle failed. Then beats do not postpone the next one.
    failed: bool,
    /// The number of cycles in a row that came too late to end leases.
    late: u32,
    /// Whether jobs wait or run, so that cycles run at the short interval.
    busy: bool,
    /// The number of expired leases in one cycle.
    leases: PageSize,
    /// The number of unhinted jobs in one cycle.
    unhinted: PageSize,
    next_cycle: Instant,
    /// The time of the last cycle, or of the start.
    asked: Instant,
    /// The earliest time of a cycle that a message asks for.
    rested: Instant,
    next_beat: Instant,
    last_beat: Instant,
    /// The pause before the next beat. It starts short, because other nodes may not listen yet, and
    /// forward jobs only to a node whose beat they received.
    beat_pause: Duration,
    /// The time of the last search on request of a control message.
    looked: Option<Instant>,
    clock: DatabaseClock,
    publish_watch: PublishWatch,
    members: Members,
    last_nodes: rescue::LastNodes,
}

/// Leads or follows until the node drains.
pub(crate) async fn lead(node: Arc<NodeContext>) {
    node.gauges.of_node(m::LEADER).set(0.0);
    // A task that died may have led.
    node.leadership.end();
    let mut control = node.transport.listen();
    let drain = node.signals.draining.clone();
    let this = node.clone();
    let mut leader = Leader {
        node,
        term: None,
        leads_until: Instant::now(),
        answer_lost: false,
        unled_since: None,
        failed: false,
        late: 0,
        busy: true,
        leases: PageSize::at_most(cycle::PAGE),
        unhinted: PageSize::at_most(cycle::PAGE),
        next_cycle: Instant::now(),
        asked: Instant::now(),
        rested: Instant::now(),
        next_beat: Instant::now(),
        last_beat: Instant::now(),
        beat_pause: FIRST_BEATS,
        looked: None,
        clock: DatabaseClock::default(),
        publish_watch: PublishWatch::default(),
        members: Members::begin(),
        last_nodes: rescue::LastNodes::default(),
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
    // Reads the rows of the nodes first: the first cycle may end leases of dead nodes, whose rows name
    // the types that they recorded.
    leader.go_on_with_members().await;
    loop {
        tokio::select! {
            biased;
            () = drain.cancelled() => break,
            heard = control.recv() => match heard {
                Ok(message) => leader.hear(message).await,
                // A slow listener loses the oldest messages.
                Err(broadcast::error::RecvError::Lagged(_)) => leader.ask_soon(),
                Err(broadcast::error::RecvError::Closed) => break,
            },
            // These have intervals of their own. A cycle may be due at once after another, for as long as it
            // finds full pages.
            () = tokio::time::sleep_until(leader.next_beat) => leader.announce(),
            Ok(()) = revision.changed() => leader.members.write_now(),
            () = this.fleet.rows_wanted() => leader.members.read_soon(),
            () = tokio::time::sleep_until(leader.members.next()) => leader.go_on_with_members().await,
            () = tokio::time::sleep_until(leader.next_cycle) => leader.run_cycle().await,
            _ = look.tick(), if watches => leader.look(&mut version).await,
        }
    }
    leader.leave().await;
}

impl Leader {
    fn interval(&self) -> Duration {
        let options = &self.node.options;
        let interval = if self.busy {
            options.busy_interval()
        } else {
            options.sweep_interval * 3
        };
        if self.node.transport.wakes().is_some() {
            // A lost wake leaves no other trace than jobs that wait.
            return interval.min(options.claim_interval);
        }
        interval
    }

    /// Returns whether a node with a broker should lead: this transport carries wakes, and living
    /// nodes wait for hints. Such a leader serves both, because woken nodes claim by themselves
    /// while they hear no leader.
    fn makes_way(&self) -> bool {
        self.node.transport.wakes().is_some() && self.members.has_broker()
    }

    fn leads(&self) -> bool {
        self.term.is_some()
    }

    fn announce(&mut self) {
        let node = &self.node;
        // A leader that can't reach the database must not keep another node from asking it.
        if let Some(term) = self.term
            && Instant::now() < self.leads_until
        {
            node.hook.tell(Control::LeaderAlive {
                node: node.id,
                term,
                now: self.clock.at_least(),
                age: self.clock.age(),
                doubt: self
                    .clock
                    .doubted_until()
                    .map(|until| until.saturating_duration_since(Instant::now())),
            });
        }
        let beat = node.beat();
        node.hook.tell(Control::NodeAlive {
            node: node.id,
            types: node.served.types().to_vec(),
            lanes: node.options.lane_names(),
            free: beat.free,
            rescue_room: beat.rescue_room,
            speaks: beat.speaks,
            row: beat.revision,
        });
        self.last_beat = Instant::now();
        self.next_beat = self.last_beat + self.beat_pause.min(node.options.sweep_interval / 2);
        self.beat_pause = (self.beat_pause * 2).min(node.options.sweep_interval);
    }

    fn follow(&mut self) {
        if self.term.take().is_some() {
            tracing::info!(node = %self.node.id, "this node no longer leads");
            self.node.gauges.of_node(m::LEADER).set(0.0);
            self.node.leadership.end();
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

    async fn leave(&mut self) {
        let node = &self.node;
        node.hook.tell(Control::NodeLeaves { node: node.id });
        if self.leads() {
            self.resign().await;
        }
        if let Err(error) = self.node.store.remove_node(self.node.id).await {
            tracing::warn!(
                %error,
                "could not remove this node's row; the leader removes it after five minutes"
            );
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
