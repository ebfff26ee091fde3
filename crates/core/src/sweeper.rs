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
//! Healing paces itself: after a page of orphans the next marker leaves behind their hints, and the next
//! page is asked for when that one is back. Lost markers are replaced with growing spacing; a lane that
//! nobody consumes gets none.
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
use crate::job::Lane;
use crate::metrics as m;
use crate::shared::Shared;
use crate::store::OrphanQuery;

/// Orphans in one page.
const PAGE: i64 = 10_000;
/// A marker overtakes by milliseconds; wait this long before asking.
const MOMENT: Duration = Duration::from_millis(500);
/// The longest spacing of markers that do not return.
const LONGEST_SPACING: Duration = Duration::from_secs(600);
/// The most markers under way in one lane.
const OUTSTANDING: usize = 8;

struct Sent {
    number: u64,
    /// The database's clock before it left.
    at: DateTime<Utc>,
    since: Instant,
}

#[derive(Default)]
struct LaneState {
    outstanding: Vec<Sent>,
    spacing: Duration,
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
        for lane in node.fleet.lanes() {
            let state = self.lanes.entry(lane.clone()).or_default();
            state.spacing = state.spacing.max(node.options.sweep_interval);
            let wait = state
                .outstanding
                .last()
                .map(|last| state.spacing.saturating_sub(last.since.elapsed()));
            match wait {
                Some(left) if !left.is_zero() || state.outstanding.len() >= OUTSTANDING => continue,
                // The last one is overdue: the lane is deep, or the marker was lost. Ask again, more rarely.
                Some(_) => state.spacing = (state.spacing * 2).min(LONGEST_SPACING),
                None => {}
            }
            self.send(node, &lane, now).await;
        }
    }

    async fn send(&mut self, node: &Shared, lane: &Lane, now: DateTime<Utc>) {
        self.next += 1;
        let marker = Marker {
            number: self.next,
            node: node.id,
        };
        let publisher = node.transport.publisher();
        match publisher.publish_marker(lane, marker).await {
            Ok(()) => {
                if let Some(state) = self.lanes.get_mut(lane) {
                    state.outstanding.push(Sent {
                        number: marker.number,
                        at: now,
                        since: Instant::now(),
                    });
                }
            }
            Err(error) => tracing::debug!(%lane, %error, "no marker could be sent"),
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
        let Some(position) = state
            .outstanding
            .iter()
            .position(|s| s.number == marker.number)
        else {
            return 0;
        };
        crash_point!("marker-returned");
        let sent = state.outstanding.swap_remove(position);
        state.outstanding.retain(|s| s.number > marker.number);
        state.spacing = node.options.sweep_interval;
        histogram!(m::MARKER_ROUND_TRIP, "lane" => lane.0.clone())
            .record(sent.since.elapsed().as_secs_f64());
        if !node.transport.is_single_node() {
            tokio::time::sleep(MOMENT).await;
        }
        let ready_before = sent.at - age(node);
        let healed = heal(node, lane, ready_before).await;
        if healed.full {
            // More is lost: the next page when these hints have been decided.
            self.send(node, lane, now).await;
        }
        healed.count
    }

    /// A node that serves alone and has just started: whatever was hinted before is gone with the process
    /// before it, so no marker is needed to know.
    pub(crate) async fn start_alone(&mut self, node: &Arc<Shared>, now: DateTime<Utc>) {
        for lane in node.fleet.lanes() {
            let healed = heal(node, &lane, now).await;
            if healed.count > 0 {
                tracing::info!(jobs = healed.count, %lane, "jobs that waited for a node were hinted");
            }
            if healed.full {
                self.lanes.entry(lane.clone()).or_default();
                // Its own age has passed already for all that was ready before this start.
                self.send(node, &lane, now + age(node)).await;
            }
        }
    }
}

/// Nothing younger is suspected: its hint may still be in a hook's buffer, or unconfirmed.
fn age(node: &Shared) -> chrono::Duration {
    chrono::Duration::from_std(node.options.suspect_after).unwrap_or(chrono::Duration::MAX)
}

struct Healed {
    count: usize,
    full: bool,
}

async fn heal(node: &Arc<Shared>, lane: &Lane, ready_before: DateTime<Utc>) -> Healed {
    let mut healed = Healed {
        count: 0,
        full: false,
    };
    let query = OrphanQuery {
        ready_before,
        types: node.fleet.types().into(),
        lane: lane.clone(),
        after: None,
        limit: PAGE,
        mark: true,
    };
    match node.store.orphans(&query).await {
        Ok(orphans) => {
            healed.count = orphans.len();
            healed.full = i64::try_from(orphans.len()).is_ok_and(|n| n >= PAGE);
            if !orphans.is_empty() {
                counter!(m::SWEPT, "class" => "orphan").increment(orphans.len() as u64);
                tracing::info!(%lane, jobs = orphans.len(), "lost hints were found; the jobs are hinted again");
                crash_point!("orphans-found");
                node.hook.publish(Cause::Sweep, orphans);
                crash_point!("orphans-hinted");
            }
        }
        Err(error) => tracing::warn!(%lane, %error, "orphans could not be looked for"),
    }
    healed
}
