//! The sweeper: which jobs are ready although no hint for them is on its way?
//!
//! Age can't answer that: a job may wait for hours in a healthy backlog, and hinting it again makes a
//! storm. Order can. The leader sends a numbered **marker** down each lane; when it comes back, every
//! message published before it has been decided, so whatever was ready before the marker left and is
//! still unlocked has lost its hint.
//!
//! Only jobs are suspected that were ready some time *before* the marker left (the hook's largest hint age plus the
//! confirm timeout, protocol rule 16), and whose transaction had ended by then: a job says when it was inserted, and
//! not when it was committed.
//!
//! With several consumers on one lane a marker overtakes what other nodes hold: hints that wait there for a slot, for
//! tens of seconds where jobs are long. So where a lane may have several nodes, and jobs are suspected, the
//! leader asks the nodes which hints they hold (`question.rs`). A wrong suspicion costs one extra hint.
//!
//! ```text
//!   hints …  ──►│ marker 7 │──► lane ──► consumer decides all before it ──► "marker 7 is back"
//!   T7 = database's clock when it left              orphans: ready_at ≤ T7 − age, unlocked, ungated, not held by a node
//! ```
//! What one marker proves is healed in pages, in the order of the ids, and paces itself: a marker leaves
//! behind the hints of each page, three pages are under way, and when the marker of one is back the
//! next one follows. So a lost queue is hinted again as fast as the fleet works it off, and not faster.
//! Lost markers are replaced with growing spacing; a lane that nobody consumes gets none.
//!
//! Expired locks and jobs that nobody hinted yet (plain SQL) are found by the leader's turn
//! ([`crate::store::Store::run_leader_cycle`]): for them no question of order arises.

mod question;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use tokio::time::Instant;

use crate::hint::Marker;
use crate::job::{JobId, Lane};
use crate::producer::commit_hook::Cause;
use crate::store::{Horizon, OrphanPage, OrphanQuery};
use crate::telemetry::label;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use question::{Asked, Silent};

/// Orphans in one page.
const PAGE: i64 = 10_000;
/// Pages under way: while one is asked for, the fleet works on the others.
const WINDOW: usize = 3;
/// Hints that a marker has overtaken may be on their way to a node: wait this long before asking.
pub const MOMENT: Duration = Duration::from_millis(500);
/// Creators' clocks may run ahead, and their ids with them. Finding those reads the whole lane, so it is done at
/// so many times the distance of its own length: half a percent of one connection.
const DISTANCE: u32 = 200;
/// The longest spacing of markers that do not return.
const LONGEST_SPACING: Duration = Duration::from_secs(600);
/// The most markers under way in one lane.
const OUTSTANDING: usize = 8;

/// The jobs that a marker proves something about.
#[derive(Clone, Copy)]
struct Before {
    /// Jobs that were ready then.
    ready: DateTime<Utc>,
    /// Of transactions that had ended then.
    horizon: Option<Horizon>,
}

struct Sent {
    number: u64,
    before: Before,
    since: Instant,
}

/// What one marker has proved to be lost, page by page.
struct Healing {
    before: Before,
    /// Hints of these jobs were overtaken.
    held: Arc<[JobId]>,
    /// Ids from the future too.
    whole: bool,
    /// Go on behind this job.
    after: Option<JobId>,
    /// The markers behind the pages that are under way.
    pages: Vec<Sent>,
}

#[derive(Default)]
struct LaneState {
    outstanding: Vec<Sent>,
    spacing: Duration,
    not_whole_before: Option<Instant>,
    /// A marker that is back, and when the nodes are asked.
    returned: Option<(Sent, Instant)>,
    question: Option<Asked>,
    silent: Silent,
    healing: Option<Healing>,
}

impl LaneState {
    /// Ids from the future are looked at, too.
    fn looks_at_whole(&self) -> bool {
        let moment = self.not_whole_before;
        moment.is_none_or(|moment| Instant::now() >= moment)
    }

    /// Since when nothing has been heard of the last marker.
    fn waits_since(&self) -> Option<Instant> {
        let pages = self.healing.iter().flat_map(|healing| &healing.pages);
        self.outstanding
            .iter()
            .chain(pages)
            .map(|sent| sent.since)
            .max()
    }
}

/// The leader's memory of markers.
#[derive(Default)]
pub(crate) struct Sweeper {
    lanes: HashMap<Lane, LaneState>,
    next: u64,
    /// The horizon that each turn saw, the oldest first: no more than one is as old as a job must be to be suspected.
    horizons: VecDeque<(Instant, Horizon)>,
}

impl Sweeper {
    /// After a turn that saw `now` on the database's clock and jobs that wait: send markers where none
    /// is under way, or where the last one is overdue.
    pub(crate) async fn send_markers(
        &mut self,
        node: &NodeContext,
        now: DateTime<Utc>,
        horizon: Option<Horizon>,
    ) {
        let received = node.fleet.lanes();
        // Anybody who may publish can invent a lane: what is known of one goes with its last receiver.
        self.lanes.retain(|lane, _| received.contains(lane));
        let mut due = Vec::new();
        for lane in received {
            let state = self.lanes.entry(lane.clone()).or_default();
            if state.returned.is_some() || state.question.is_some() {
                continue;
            }
            state.spacing = state.spacing.max(node.options.sweep_interval);
            let wait = state
                .waits_since()
                .map(|since| state.spacing.saturating_sub(since.elapsed()));
            match wait {
                Some(left) if !left.is_zero() => continue,
                // The last one is overdue: the lane is deep, or the marker was lost. Ask again, more rarely.
                Some(_) => state.spacing = (state.spacing * 2).min(LONGEST_SPACING),
                None => {}
            }
            if state.outstanding.len() >= OUTSTANDING {
                // The first ones come back through a deep lane, and the last ones where the first were lost.
                state.outstanding.remove(OUTSTANDING / 2);
            }
            due.push(lane);
        }
        let age = age(node);
        let before = Before {
            ready: now - age,
            horizon: self.horizon(horizon, age.to_std().unwrap_or(Duration::MAX)),
        };
        self.send_outstanding(node, due, before).await;
    }

    /// The horizon of a turn that is as old as a job must be to be suspected: a hook may need so long to publish.
    fn horizon(&mut self, seen: Option<Horizon>, age: Duration) -> Option<Horizon> {
        self.horizons.push_back((Instant::now(), seen?));
        let is_old = |(at, _): &(Instant, Horizon)| at.elapsed() >= age;
        while self.horizons.get(1).is_some_and(is_old) {
            self.horizons.pop_front();
        }
        self.horizons.front().map(|(_, horizon)| *horizon)
    }

    /// One marker behind each of these lanes, all at once: a broker that confirms none costs one time-out and not one a
    /// lane. False where one could not be sent.
    async fn send_outstanding(
        &mut self,
        node: &NodeContext,
        lanes: Vec<Lane>,
        before: Before,
    ) -> bool {
        let markers: Vec<Marker> = lanes.iter().map(|_| self.marker(node)).collect();
        let sending = lanes.iter().zip(markers);
        let sending = sending.map(|(lane, marker)| send(node, lane, marker, before));
        let sent = futures_util::future::join_all(sending).await;
        let all = sent.iter().all(Option::is_some);
        for (lane, sent) in lanes.into_iter().zip(sent) {
            let state = self.lanes.entry(lane).or_default();
            state.outstanding.extend(sent);
        }
        all
    }

    fn marker(&mut self, node: &NodeContext) -> Marker {
        self.next += 1;
        Marker {
            number: self.next,
            node: node.id,
        }
    }

    /// A marker is back: heal what it proves to be lost.
    pub(crate) async fn marker_back(
        &mut self,
        node: &Arc<NodeContext>,
        lane: &Lane,
        marker: Marker,
    ) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        let is_it = |sent: &Sent| sent.number == marker.number;
        if let Some(healing) = &mut state.healing
            && let Some(position) = healing.pages.iter().position(is_it)
        {
            measure(lane, &healing.pages.swap_remove(position));
            return self.heal(node, lane).await;
        }
        let Some(position) = state.outstanding.iter().position(is_it) else {
            return;
        };
        crash_point!("marker-returned");
        let sent = state.outstanding.swap_remove(position);
        state.outstanding.retain(|s| s.number > marker.number);
        state.spacing = node.options.sweep_interval;
        measure(lane, &sent);
        if node.transport.is_single_node() {
            self.begin(node, lane, sent.before, Arc::default()).await;
        } else if state.question.is_none() {
            state
                .returned
                .get_or_insert((sent, Instant::now() + MOMENT));
        }
    }

    /// A node that serves alone and has just started: what was hinted before is gone with the process before it, or
    /// waits in the lane behind which this marker leaves. So nothing needs to be old to be suspected. False where no
    /// marker could be sent to some lane.
    pub(crate) async fn start_alone(&mut self, node: &NodeContext, now: DateTime<Utc>) -> bool {
        let before = Before {
            ready: now,
            horizon: None,
        };
        self.send_outstanding(node, node.fleet.lanes(), before)
            .await
    }

    /// Heal what was ready before this moment, from the front of the lane.
    async fn begin(
        &mut self,
        node: &Arc<NodeContext>,
        lane: &Lane,
        before: Before,
        held: Arc<[JobId]>,
    ) {
        let state = self.lanes.entry(lane.clone()).or_default();
        state.healing = Some(Healing {
            before,
            held,
            whole: state.looks_at_whole(),
            after: None,
            pages: Vec::new(),
        });
        self.heal(node, lane).await;
    }

    /// Hint pages until so many are under way, or all is hinted.
    async fn heal(&mut self, node: &Arc<NodeContext>, lane: &Lane) {
        loop {
            let Some(healing) = self.lanes.get(lane).and_then(|s| s.healing.as_ref()) else {
                return;
            };
            if healing.pages.len() >= WINDOW {
                return;
            }
            let mut query = query(node, lane, healing.before, PAGE);
            query.held = healing.held.clone();
            query.after = healing.after;
            query.whole = healing.whole;
            query.mark = true;
            let (before, next) = (healing.before, self.page(node, query).await);
            let sent = match next {
                Some(_) => send(node, lane, self.marker(node), before).await,
                None => None,
            };
            let Some(state) = self.lanes.get_mut(lane) else {
                return;
            };
            // Without a marker behind it nobody would say when to go on: the next turn begins anew.
            let Some(sent) = sent else {
                state.healing = None;
                return;
            };
            if let Some(healing) = &mut state.healing {
                healing.after = next;
                healing.pages.push(sent);
            }
        }
    }

    /// Find one page of orphans and let their hints leave. Returns behind which job to go on, where there may be more.
    async fn page(&mut self, node: &Arc<NodeContext>, query: OrphanQuery) -> Option<JobId> {
        let lane = &query.lane;
        let OrphanPage { ready, next } = self.look(node, &query).await?;
        if !ready.is_empty() {
            let jobs = ready.len();
            counter!(m::SWEPT, "class" => "orphan").increment(jobs as u64);
            tracing::info!(%lane, jobs, "lost hints were found; the jobs are hinted again");
            crash_point!("orphans-found");
            node.hook.publish(Cause::Sweep, ready);
            crash_point!("orphans-hinted");
        }
        next
    }

    /// Ask the database; nothing where it does not answer.
    async fn look(&mut self, node: &Arc<NodeContext>, query: &OrphanQuery) -> Option<OrphanPage> {
        let asked = Instant::now();
        let page = node.store.orphans(query).await;
        if query.whole
            && let Some(state) = self.lanes.get_mut(&query.lane)
        {
            let pause = (asked.elapsed() * DISTANCE).max(node.options.sweep_interval * 3);
            state.not_whole_before = Some(Instant::now() + pause);
        }
        match page {
            Ok(page) => Some(page),
            Err(error) => {
                tracing::warn!(lane = %query.lane, %error, "orphans could not be looked for");
                None
            }
        }
    }
}

async fn send(node: &NodeContext, lane: &Lane, marker: Marker, before: Before) -> Option<Sent> {
    let publisher = node.transport.publisher();
    match publisher.publish_marker(lane, marker).await {
        Ok(()) => Some(Sent {
            number: marker.number,
            before,
            since: Instant::now(),
        }),
        Err(error) => {
            tracing::debug!(%lane, %error, "no marker could be sent");
            None
        }
    }
}

fn measure(lane: &Lane, sent: &Sent) {
    histogram!(m::MARKER_ROUND_TRIP, "lane" => label::lane(lane))
        .record(sent.since.elapsed().as_secs_f64());
}

/// Nothing younger is suspected: its hint may still be in a hook's buffer, or unconfirmed (protocol rule 16).
fn age(node: &NodeContext) -> chrono::Duration {
    let confirmed = node.transport.publisher().confirm_timeout();
    let age = node.options.suspected_after(confirmed);
    chrono::Duration::from_std(age).unwrap_or(chrono::Duration::MAX)
}

/// Which jobs of this lane are suspected?
fn query(node: &NodeContext, lane: &Lane, before: Before, limit: i64) -> OrphanQuery {
    let services = node.fleet.services();
    let mut query = OrphanQuery::new(lane.clone(), services, before.ready, limit);
    query.horizon = before.horizon;
    query
}
