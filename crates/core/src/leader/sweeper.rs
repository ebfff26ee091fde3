//! The sweeper finds ready jobs for which no hint is on its way.
//!
//! Age does not show that a hint is lost: a job may wait for hours in a healthy backlog, and
//! hinting it again would double the backlog. Order shows it. The leader sends a numbered
//! **marker** through each lane. When it returns, every message published before it has been
//! decided. A job that was ready before the marker left, and that is still unlocked, is an
//! **orphan**.
//!
//! A job is suspected only if it was ready some time *before* the marker left (the hook's largest
//! hint age plus the confirm timeout, protocol rule 16), and if its transaction had ended by then:
//! a job's row shows when it was inserted, not when it was committed.
//!
//! If several nodes receive a lane, a marker overtakes the hints that wait on other nodes for a
//! slot, for tens of seconds if jobs are long. It passes hints that wait for a slot of their type,
//! too. So when jobs are suspected, the leader asks the nodes which hints they hold
//! (`question.rs`). A wrong suspicion costs one extra hint.
//!
//! ```text
//!   hints …  ──►│ marker 7 │──► lane ──► consumer decides all before it ──► "marker 7 is back"
//!
//!   T7 = the database's clock when it left
//!   orphans: ready_at ≤ T7 − age, unlocked, ungated, not held by a node
//! ```
//! The orphans that one marker proves are hinted in pages, in the order of their ids. A marker
//! leaves behind the hints of each page, and three pages are under way; when the marker of one page
//! returns, the next page follows. So a lost queue is hinted again exactly as fast as the fleet
//! works it off. Lost markers are replaced at growing intervals; a lane that no node receives gets
//! none.
//!
//! Expired leases and jobs that never had a hint (plain SQL) are found by the leader cycle
//! ([`crate::store::Store::run_leader_cycle`]), because they need no marker.

mod question;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use tokio::time::Instant;

use crate::hint::Marker;
use crate::job::{JobId, Lane};
use crate::producer::commit_hook::Cause;
use crate::store::{BACK_OFF, Horizon, OrphanPage, OrphanQuery};
use crate::telemetry::label;
use crate::telemetry::metrics as m;
use crate::transport::TransportError;
use crate::worker::context::NodeContext;
use question::{Asked, Silent};

/// Maximum number of orphans in one page.
const PAGE: i64 = 10_000;
/// Maximum number of pages under way. While one is read, the fleet works on the others.
const WINDOW: usize = 3;
/// The pause before nodes are asked. Hints that a marker has overtaken may still be on their way to
/// a node.
pub const MOMENT: Duration = Duration::from_millis(500);
/// The pause between two searches of a whole lane, as a multiple of the duration of one. The clocks
/// of creators may run ahead, and so may their ids. A search for such ids reads the whole lane. The
/// pause limits the searches to half a percent of one connection.
const DISTANCE: u32 = 200;
/// The longest interval between markers that do not return.
const LONGEST_SPACING: Duration = Duration::from_secs(600);
/// Maximum number of markers under way in one lane.
const OUTSTANDING: usize = 8;

/// The jobs that a marker proves to be orphans.
#[derive(Clone, Copy)]
struct Before {
    /// The jobs were ready at this time.
    ready: DateTime<Utc>,
    /// Their transactions had ended at this horizon.
    horizon: Option<Horizon>,
    /// See [`OrphanQuery::back_off`].
    back_off: Duration,
}

#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    before: Before,
    since: Instant,
}

/// The orphans that one marker proves, and the progress in hinting them.
struct Healing {
    before: Before,
    /// Jobs whose hints were overtaken by the marker.
    held: Arc<[JobId]>,
    /// The pages include ids from the future.
    whole: bool,
    /// The next page begins after this job.
    after: Option<JobId>,
    /// The markers behind the pages that are under way.
    pages: Vec<Sent>,
}

#[derive(Default)]
struct LaneState {
    outstanding: Vec<Sent>,
    spacing: Duration,
    not_whole_before: Option<Instant>,
    /// A returned marker, and the time at which the nodes are asked.
    returned: Option<(Sent, Instant)>,
    question: Option<Asked>,
    silent: Silent,
    healing: Option<Healing>,
}

impl LaneState {
    /// Returns whether it is time to look at ids from the future as well.
    fn looks_at_whole(&self) -> bool {
        let moment = self.not_whole_before;
        moment.is_none_or(|moment| Instant::now() >= moment)
    }

    /// Returns the sending time of the last marker that has not returned.
    fn waits_since(&self) -> Option<Instant> {
        let pages = self.healing.iter().flat_map(|healing| &healing.pages);
        self.outstanding
            .iter()
            .chain(pages)
            .map(|sent| sent.since)
            .max()
    }
}

/// The markers that the leader has sent.
#[derive(Default)]
pub(crate) struct Sweeper {
    lanes: HashMap<Lane, LaneState>,
    /// The horizons of earlier cycles, oldest first. At most one of them has the age of a suspected
    /// job.
    horizons: VecDeque<(Instant, Horizon)>,
    /// Lanes that living nodes receive, without a queue or topic on the broker of this node.
    unreachable: BTreeSet<Lane>,
}

impl Sweeper {
    /// Returns a lane that living nodes receive and to which this node can't publish: its nodes use
    /// a broker that this node does not know.
    pub(crate) fn unreachable(&self) -> Option<&Lane> {
        self.unreachable.first()
    }

    /// Sends markers after a cycle that saw waiting jobs and `now` on the database's clock: into
    /// each lane in which none is under way, or the last one is overdue.
    pub(crate) async fn send_markers(
        &mut self,
        node: &NodeContext,
        now: DateTime<Utc>,
        horizon: Option<Horizon>,
    ) {
        let received = node.fleet.lanes();
        // Any client that may publish can invent a lane, so the state of a lane ends with its last
        // receiver.
        self.lanes.retain(|lane, _| received.contains(lane));
        self.unreachable.retain(|lane| received.contains(lane));
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
                // The last one is overdue: the lane is deep, or the marker was lost. Send another,
                // at a longer interval.
                Some(_) => state.spacing = (state.spacing * 2).min(LONGEST_SPACING),
                None => {}
            }
            if state.outstanding.len() >= OUTSTANDING {
                // The first ones return through a deep lane, and the last ones if the first were
                // lost.
                state.outstanding.remove(OUTSTANDING / 2);
            }
            due.push(lane);
        }
        let age = age(node);
        let before = Before {
            ready: now - age,
            horizon: self.horizon(horizon, age.to_std().unwrap_or(Duration::MAX)),
            back_off: BACK_OFF,
        };
        self.send_outstanding(node, due, before).await;
    }

    /// Returns the horizon of a cycle that has the age of a suspected job: the longest time that a
    /// hook may take to publish.
    fn horizon(&mut self, seen: Option<Horizon>, age: Duration) -> Option<Horizon> {
        self.horizons.push_back((Instant::now(), seen?));
        let is_old = |(at, _): &(Instant, Horizon)| at.elapsed() >= age;
        while self.horizons.get(1).is_some_and(is_old) {
            self.horizons.pop_front();
        }
        self.horizons.front().map(|(_, horizon)| *horizon)
    }

    /// Sends one marker into each of these lanes, all at once: a broker that confirms none costs
    /// one timeout, not one for each lane. Returns false if one could not be sent.
    async fn send_outstanding(
        &mut self,
        node: &NodeContext,
        lanes: Vec<Lane>,
        before: Before,
    ) -> bool {
        let markers: Vec<Marker> = lanes.iter().map(|_| marker(node)).collect();
        let sending = lanes.iter().zip(markers);
        let sending = sending.map(|(lane, marker)| send(node, lane, marker, before));
        let sent = futures_util::future::join_all(sending).await;
        let all = sent.iter().all(Result::is_ok);
        for (lane, sent) in lanes.into_iter().zip(sent) {
            if let Err(TransportError::NoReceiver(_)) = sent {
                self.unreachable.insert(lane.clone());
            } else {
                self.unreachable.remove(&lane);
            }
            let state = self.lanes.entry(lane).or_default();
            state.outstanding.extend(sent.ok());
        }
        all
    }

    /// Handles a returned marker: hints the jobs that it proves to be orphans.
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
        if state.question.is_none() {
            let now = Instant::now();
            // Within a process no marker overtakes hints.
            let alone = node.transport.is_single_node();
            let asks_at = if alone { now } else { now + MOMENT };
            state.returned.get_or_insert((sent, asks_at));
        }
    }

    /// Sends markers for a node that serves alone and has just started. Earlier hints are gone with
    /// the previous process, or wait in the lane before this marker. So jobs of any age are
    /// suspected, whatever number of hints they had. Returns false if a marker could not be sent.
    pub(crate) async fn start_alone(&mut self, node: &NodeContext, now: DateTime<Utc>) -> bool {
        let before = Before {
            ready: now,
            horizon: None,
            back_off: Duration::ZERO,
        };
        self.send_outstanding(node, node.fleet.lanes(), before)
            .await
    }

    /// Begins to hint the orphans that were ready before this moment, with the first page of the
    /// lane.
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

    /// Hints pages until [`WINDOW`] are under way or all are hinted.
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
                Some(_) => send(node, lane, marker(node), before).await.ok(),
                None => None,
            };
            let Some(state) = self.lanes.get_mut(lane) else {
                return;
            };
            // Without a marker behind the page, healing would not continue, so the next cycle
            // begins it again.
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

    /// Finds and hints one page of orphans. Returns the job after which the next page begins, if
    /// there may be one.
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

    /// Asks the database for orphans. Returns `None` if it does not answer.
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
                tracing::warn!(
                    lane = %query.lane,
                    %error,
                    "could not look for jobs whose hint is lost; the next marker tries again"
                );
                None
            }
        }
    }
}

fn marker(node: &NodeContext) -> Marker {
    Marker {
        number: node.leadership.number(),
        node: node.id,
    }
}

async fn send(
    node: &NodeContext,
    lane: &Lane,
    marker: Marker,
    before: Before,
) -> Result<Sent, TransportError> {
    let publisher = node.transport.publisher();
    let sent = publisher.publish_marker(lane, marker).await;
    if let Err(error) = &sent {
        tracing::debug!(%lane, %error, "no marker could be sent");
    }
    sent.map(|()| Sent {
        number: marker.number,
        before,
        since: Instant::now(),
    })
}

fn measure(lane: &Lane, sent: &Sent) {
    histogram!(m::MARKER_ROUND_TRIP, "lane" => label::lane(lane))
        .record(sent.since.elapsed().as_secs_f64());
}

/// Returns the age from which jobs are suspected: the hint of a younger job may still be in a
/// hook's buffer, or unconfirmed (protocol rule 16).
fn age(node: &NodeContext) -> chrono::Duration {
    let confirmed = node.transport.publisher().confirm_timeout();
    let age = node.options.suspected_after(confirmed);
    chrono::Duration::from_std(age).unwrap_or(chrono::Duration::MAX)
}

/// Returns the query for the suspected jobs of this lane.
fn query(node: &NodeContext, lane: &Lane, before: Before, limit: i64) -> OrphanQuery {
    let services = node.fleet.services();
    let mut query = OrphanQuery::new(lane.clone(), services, before.ready, limit);
    query.horizon = before.horizon;
    query.back_off = before.back_off;
    query
}
