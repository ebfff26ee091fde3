//! The sweeper: which jobs are ready although no hint for them is on its way?
//!
//! Age can't answer that: a job may wait for hours in a healthy backlog, and hinting it again makes a
//! storm. Order can. The leader sends a numbered **marker** down each lane; when it comes back, every
//! message published before it has been decided, so whatever was ready before the marker left and is
//! still unlocked has lost its hint.
//!
//! With several consumers on one lane a marker overtakes its neighbours by some milliseconds, and a
//! redelivered message comes after it. So only jobs that were ready some time *before* the marker left are
//! suspected (the hook's largest hint age plus the confirm timeout, protocol rule 16), and a moment
//! passes before the question is asked. A wrong suspicion costs one extra hint and nothing else.
//!
//! ```text
//!   hints …  ──►│ marker 7 │──► lane ──► consumer decides all before it ──► "marker 7 is back"
//!   T7 = database's clock when it left              orphans: ready_at ≤ T7 − age, unlocked, ungated
//! ```
//! What one marker proves is healed in pages, in the order of the ids, and paces itself: a marker leaves
//! behind the hints of each page, three pages are under way, and when the marker of one is back the
//! next one follows. So a lost queue is hinted again as fast as the fleet works it off, and not faster.
//! Lost markers are replaced with growing spacing; a lane that nobody consumes gets none.
//!
//! Expired locks and jobs that nobody hinted yet (plain SQL) are found by the leader's turn
//! ([`crate::store::Store::take_turn`]): for them no question of order arises.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use tokio::time::Instant;

use crate::commit_hook::Cause;
use crate::hint::Marker;
use crate::job::{JobId, Lane};
use crate::label;
use crate::metrics as m;
use crate::shared::Shared;
use crate::store::{OrphanPage, OrphanQuery};

/// Orphans in one page.
const PAGE: i64 = 10_000;
/// Pages under way: while one is asked for, the fleet works on the others.
const WINDOW: usize = 3;
/// A marker overtakes by milliseconds; wait this long before asking.
pub const MOMENT: Duration = Duration::from_millis(500);
/// Creators' clocks may run ahead, and their ids with them. Finding those reads the whole lane, so it is done at
/// so many times the distance of its own length: half a percent of one connection.
const DISTANCE: u32 = 200;
/// The longest spacing of markers that do not return.
const LONGEST_SPACING: Duration = Duration::from_secs(600);
/// The most markers under way in one lane.
const OUTSTANDING: usize = 8;

struct Sent {
    number: u64,
    /// What was ready then is suspected when it is back.
    ready_before: DateTime<Utc>,
    since: Instant,
}

/// What one marker has proved to be lost, page by page.
struct Healing {
    ready_before: DateTime<Utc>,
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
    healing: Option<Healing>,
}

impl LaneState {
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
}

impl Sweeper {
    /// After a turn that saw `now` on the database's clock and jobs that wait: send markers where none
    /// is under way, or where the last one is overdue.
    pub(crate) async fn send_markers(&mut self, node: &Shared, now: DateTime<Utc>) {
        let received = node.fleet.lanes();
        // Anybody who may publish can invent a lane: what is known of one goes with its last receiver.
        self.lanes.retain(|lane, _| received.contains(lane));
        let mut due = Vec::new();
        for lane in received {
            let state = self.lanes.entry(lane.clone()).or_default();
            state.spacing = state.spacing.max(node.options.sweep_interval);
            let wait = state
                .waits_since()
                .map(|since| state.spacing.saturating_sub(since.elapsed()));
            match wait {
                Some(left) if !left.is_zero() || state.outstanding.len() >= OUTSTANDING => continue,
                // The last one is overdue: the lane is deep, or the marker was lost. Ask again, more rarely.
                Some(_) => state.spacing = (state.spacing * 2).min(LONGEST_SPACING),
                None => {}
            }
            due.push(lane);
        }
        self.send_outstanding(node, due, now - age(node)).await;
    }

    /// One marker behind each of these lanes, all at once: a broker that confirms none costs one time-out and not one a
    /// lane. False where one could not be sent.
    async fn send_outstanding(
        &mut self,
        node: &Shared,
        lanes: Vec<Lane>,
        ready_before: DateTime<Utc>,
    ) -> bool {
        let markers: Vec<Marker> = lanes.iter().map(|_| self.marker(node)).collect();
        let sending = lanes.iter().zip(markers);
        let sending = sending.map(|(lane, marker)| send(node, lane, marker, ready_before));
        let sent = futures_util::future::join_all(sending).await;
        let all = sent.iter().all(Option::is_some);
        for (lane, sent) in lanes.into_iter().zip(sent) {
            let state = self.lanes.entry(lane).or_default();
            state.outstanding.extend(sent);
        }
        all
    }

    fn marker(&mut self, node: &Shared) -> Marker {
        self.next += 1;
        Marker {
            number: self.next,
            node: node.id,
        }
    }

    /// A marker is back: heal what it proves to be lost. Returns how many jobs were hinted again.
    pub(crate) async fn marker_back(
        &mut self,
        node: &Arc<Shared>,
        lane: &Lane,
        marker: Marker,
        now: DateTime<Utc>,
    ) -> usize {
        let Some(state) = self.lanes.get_mut(lane) else {
            return 0;
        };
        let is_it = |sent: &Sent| sent.number == marker.number;
        if let Some(healing) = &mut state.healing
            && let Some(position) = healing.pages.iter().position(is_it)
        {
            measure(lane, &healing.pages.swap_remove(position));
            return self.heal(node, lane, now).await;
        }
        let Some(position) = state.outstanding.iter().position(is_it) else {
            return 0;
        };
        crash_point!("marker-returned");
        let sent = state.outstanding.swap_remove(position);
        state.outstanding.retain(|s| s.number > marker.number);
        state.spacing = node.options.sweep_interval;
        measure(lane, &sent);
        if !node.transport.is_single_node() {
            tokio::time::sleep(MOMENT).await;
        }
        self.begin(node, lane, sent.ready_before, now).await
    }

    /// A node that serves alone and has just started: what was hinted before is gone with the process before it, or
    /// waits in the lane behind which this marker leaves. So nothing needs to be old to be suspected. False where no
    /// marker could be sent to some lane.
    pub(crate) async fn start_alone(&mut self, node: &Shared, now: DateTime<Utc>) -> bool {
        self.send_outstanding(node, node.fleet.lanes(), now).await
    }

    /// Heal what was ready before this moment, from the front of the lane.
    async fn begin(
        &mut self,
        node: &Arc<Shared>,
        lane: &Lane,
        ready_before: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> usize {
        let state = self.lanes.entry(lane.clone()).or_default();
        let moment = state.not_whole_before;
        state.healing = Some(Healing {
            ready_before,
            whole: moment.is_none_or(|moment| Instant::now() >= moment),
            after: None,
            pages: Vec::new(),
        });
        self.heal(node, lane, now).await
    }

    /// Hint pages until so many are under way, or all is hinted.
    async fn heal(&mut self, node: &Arc<Shared>, lane: &Lane, now: DateTime<Utc>) -> usize {
        let mut healed = 0;
        loop {
            let Some(healing) = self.lanes.get(lane).and_then(|s| s.healing.as_ref()) else {
                return healed;
            };
            if healing.pages.len() >= WINDOW {
                return healed;
            }
            let query = OrphanQuery {
                ready_before: healing.ready_before,
                types: node.fleet.types().into(),
                lane: lane.clone(),
                after: healing.after,
                limit: PAGE,
                whole: healing.whole,
                mark: true,
            };
            let (asked, whole) = (Instant::now(), query.whole);
            let page = page(node, query).await;
            healed += page.count;
            if whole && let Some(state) = self.lanes.get_mut(lane) {
                let pause = (asked.elapsed() * DISTANCE).max(node.options.sweep_interval * 3);
                state.not_whole_before = Some(Instant::now() + pause);
            }
            let sent = match page.next {
                Some(_) => send(node, lane, self.marker(node), now).await,
                None => None,
            };
            let Some(state) = self.lanes.get_mut(lane) else {
                return healed;
            };
            // Without a marker behind it nobody would say when to go on: the next turn begins anew.
            let Some(sent) = sent else {
                state.healing = None;
                return healed;
            };
            if let Some(healing) = &mut state.healing {
                healing.after = page.next;
                healing.pages.push(sent);
            }
        }
    }
}

async fn send(
    node: &Shared,
    lane: &Lane,
    marker: Marker,
    ready_before: DateTime<Utc>,
) -> Option<Sent> {
    let publisher = node.transport.publisher();
    match publisher.publish_marker(lane, marker).await {
        Ok(()) => Some(Sent {
            number: marker.number,
            ready_before,
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
fn age(node: &Shared) -> chrono::Duration {
    let confirmed = node.transport.publisher().confirm_timeout();
    let age = node.options.suspected_after(confirmed);
    chrono::Duration::from_std(age).unwrap_or(chrono::Duration::MAX)
}

struct Page {
    count: usize,
    /// Behind which job to go on, where there may be more.
    next: Option<JobId>,
}

/// Find one page of orphans and let their hints leave.
async fn page(node: &Arc<Shared>, query: OrphanQuery) -> Page {
    let lane = &query.lane;
    match node.store.orphans(&query).await {
        Ok(OrphanPage { ready, next }) => {
            let count = ready.len();
            if !ready.is_empty() {
                counter!(m::SWEPT, "class" => "orphan").increment(count as u64);
                tracing::info!(%lane, jobs = count, "lost hints were found; the jobs are hinted again");
                crash_point!("orphans-found");
                node.hook.publish(Cause::Sweep, ready);
                crash_point!("orphans-hinted");
            }
            Page { count, next }
        }
        Err(error) => {
            tracing::warn!(%lane, %error, "orphans could not be looked for");
            Page {
                count: 0,
                next: None,
            }
        }
    }
}
