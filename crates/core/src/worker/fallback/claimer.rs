//! The claimer: gives the free slots to the lanes, and claims a page of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::cursor::Cursor;
use super::lane::ClaimedLane;
use super::limited::free_terms;
use super::pace::Pace;
use super::page::claim_page;
use super::turn::Turn;
use super::watch::Watch;
use crate::store::{ClaimOf, ClaimPage, StoreError};
use crate::telemetry::log_throttle::LogThrottle;
use crate::transport::TransportError;
use crate::worker::consumer::lock_size::LockSize;
use crate::worker::consumer::schedule::Schedule;
use crate::worker::context::NodeContext;
use crate::worker::slot_pool::Slot;

/// The maximum number of jobs in one page.
const PAGE: usize = 256;

/// The first number of this task's markers. The range differs from that of the sweeper, which
/// counts from one, and from that of a transport of several brokers.
pub(super) const FIRST_MARKER: u64 = 1 << 47;

/// The publication of a marker: the position of its lane, and the result.
type Leaving = BoxFuture<'static, (usize, Result<(), TransportError>)>;

/// Claims the jobs of the lanes of a node, page by page.
pub(super) struct Claimer {
    pub(super) node: Arc<NodeContext>,
    pub(super) lanes: Vec<ClaimedLane>,
    pub(super) schedule: Schedule,
    pub(super) next_marker: u64,
    pub(super) pace: Pace,
    /// The earliest time of the next page of a type with a limit.
    pub(super) limited_from: Instant,
    /// Whether the next single slot is for a type with a limit, if the other types want it, too.
    pub(super) limited_next: bool,
    pub(super) failures: LogThrottle,
    pub(super) refused: LogThrottle,
    /// Limits pages to fewer jobs if jobs are large.
    pub(super) size: LockSize,
    /// Markers on their way to the broker.
    pub(super) leaving: FuturesUnordered<Leaving>,
}

impl Claimer {
    pub(super) fn new(node: Arc<NodeContext>, patience: Duration) -> Self {
        let lanes = node.options.lane_names().into_iter().map(|lane| {
            node.reports.claiming(&lane, false);
            ClaimedLane {
                lane,
                watch: Watch::new(patience),
                turn: None,
                cursor: Cursor::default(),
                limited: BTreeMap::new(),
                rescued_at: None,
                rescued: None,
                suspect: None,
                done: false,
                taken: 0,
            }
        });
        Self {
            lanes: lanes.collect(),
            schedule: Schedule::new(
                &node.options.lanes,
                node.options.lane_order,
                node.options.lane_aging,
            ),
            node,
            next_marker: FIRST_MARKER,
            pace: Pace::new(Instant::now()),
            limited_from: Instant::now(),
            limited_next: false,
            failures: LogThrottle::default(),
            refused: LogThrottle::default(),
            size: LockSize::default(),
            leaving: FuturesUnordered::new(),
        }
    }

    /// Creates the claimer of a node that is woken.
    pub(super) fn woken(node: Arc<NodeContext>) -> Self {
        let mut claimer = Self::new(node, Duration::MAX);
        for lane in &mut claimer.lanes {
            lane.turn = Some(Turn::new(Instant::now()));
        }
        claimer
    }

    pub(super) fn claims(&self) -> bool {
        self.lanes.iter().any(ClaimedLane::claims)
    }

    /// Claims a page of each lane that gets slots.
    pub(super) async fn take_some(&mut self, first: Option<Slot>) {
        if !self.node.leases.healthy() {
            // While leases cannot be renewed, further locks would be lost, too.
            let now = Instant::now();
            self.pace.put_off(now);
            self.limited_from = self.pace.at();
            return;
        }
        let mut slots: Vec<Slot> = first.into_iter().collect();
        while slots.len() < PAGE
            && let Some(slot) = self.node.slots.of_node.try_take()
        {
            slots.push(slot);
        }
        // The pass goes first, since it looks for rescued jobs, also of types with a limit.
        let kept = self.kept_for_limited(slots.len());
        let mut limited = slots.split_off(slots.len() - kept);
        let answered = self.take_pass(&mut slots).await;
        slots.append(&mut limited);
        if answered {
            self.take_limited(&mut slots).await;
        }
        if !slots.is_empty() {
            // There were fewer jobs than slots.
            drop(slots);
            self.node.slots.of_node.wants_none();
        }
    }

    /// Claims a page of each lane that gets slots, if the pass is due. Returns false if the database
    /// could not be asked.
    async fn take_pass(&mut self, slots: &mut Vec<Slot>) -> bool {
        if !self.is_due(Instant::now()) {
            return true;
        }
        let shares = self.shares(slots.len(), ClaimedLane::is_open);
        for (at, share) in shares
            .into_iter()
            .enumerate()
            .filter(|(_, share)| *share > 0)
        {
            if let Err(error) = self.take(at, share, slots).await {
                if let Some(more) = self.failures.now() {
                    tracing::warn!(%error, more, "could not claim jobs; retrying");
                }
                self.pace.failed(Instant::now());
                return false;
            }
        }
        let now = Instant::now();
        if !self.lanes.iter().any(ClaimedLane::is_open) {
            let limited = self.node.served.limited();
            for lane in &mut self.lanes {
                lane.done = false;
                // A woken node looks for them when its next pass begins.
                if lane.turn.is_none() {
                    lane.look_for_limited(&limited);
                }
            }
            self.pace.pass_ended(now);
        }
        if self.lanes.iter().any(|lane| lane.turn.is_some()) {
            // The turns of the lanes set the pace, as long as the database answers.
            self.pace = Pace::new(now);
        }
        true
    }

    /// Returns how many of the slots each lane gets, of those that are `open`.
    pub(super) fn shares(
        &mut self,
        slots: usize,
        open: impl Fn(&ClaimedLane) -> bool,
    ) -> Vec<usize> {
        let mut shares = vec![0_usize; self.lanes.len()];
        // Claimed jobs have no hints with an age: all but the first lane count as old.
        let age = |at: usize| {
            if at == 0 {
                Duration::ZERO
            } else {
                Duration::MAX
            }
        };
        let open = |at: usize| self.lanes.get(at).is_some_and(&open);
        for _ in 0..slots {
            let next = self.schedule.next(open, age);
            if let Some(share) = next.and_then(|at| shares.get_mut(at)) {
                *share += 1;
            }
        }
        shares
    }

    /// Claims rescued jobs of a lane if a search is due. Returns the number of claimed jobs.
    async fn take_rescued(
        &mut self,
        at: usize,
        share: usize,
        slots: &mut Vec<Slot>,
    ) -> Result<usize, StoreError> {
        let node = self.node.clone();
        let now = Instant::now();
        let room = node.rescue_room().min(share).min(self.size.limit());
        let Some(lane) = self.lanes.get_mut(at) else {
            return Ok(0);
        };
        if room == 0 || !lane.wants_rescued(now) {
            return Ok(0);
        }
        lane.rescued_at = Some(now);
        let page = ClaimPage {
            lane: lane.lane.clone(),
            of: ClaimOf::Rescued {
                after: lane.rescued,
            },
            at_most: i64::try_from(room).unwrap_or(i64::MAX),
        };
        let terms = free_terms(&node);
        let (size, refused) = (&mut self.size, &mut self.refused);
        let (count, after) = claim_page(&node, &terms, &page, slots, size, refused).await?;
        lane.rescued = after;
        lane.taken += count as u64;
        Ok(count)
    }

    /// Claims a suspect of a lane, unless this node has one. The suspect waits until nothing else
    /// runs, and the node takes nothing meanwhile.
    async fn take_suspect(&mut self, at: usize, slots: &mut Vec<Slot>) -> Result<(), StoreError> {
        let node = self.node.clone();
        let Some(lane) = self.lanes.get_mut(at) else {
            return Ok(());
        };
        if slots.is_empty() || node.suspects.any() || !lane.looks_for_struck() {
            return Ok(());
        }
        let page = ClaimPage {
            lane: lane.lane.clone(),
            of: ClaimOf::Suspects {
                after: lane.suspect,
            },
            at_most: 1,
        };
        let terms = free_terms(&node);
        let (size, refused) = (&mut self.size, &mut self.refused);
        let (count, after) = claim_page(&node, &terms, &page, slots, size, refused).await?;
        lane.suspect = after;
        lane.taken += count as u64;
        Ok(())
    }

    /// Claims one page of a lane.
    async fn take(
        &mut self,
        at: usize,
        share: usize,
        slots: &mut Vec<Slot>,
    ) -> Result<(), StoreError> {
        let node = self.node.clone();
        let share = share - self.take_rescued(at, share, slots).await?;
        let Some(lane) = self.lanes.get_mut(at).filter(|_| share > 0) else {
            return Ok(());
        };
        let sent = Instant::now();
        let place = lane.cursor.next(sent);
        let page = ClaimPage {
            lane: lane.lane.clone(),
            of: ClaimOf::Next {
                after: place.after,
                look_at: place.look_at,
            },
            at_most: i64::try_from(share.min(self.size.limit())).unwrap_or(i64::MAX),
        };
        let (types, _) = node.served.by_limit();
        let claimed = if types.is_empty() {
            Ok((0, None))
        } else {
            let terms = node.terms().of(types);
            let (size, refused) = (&mut self.size, &mut self.refused);
            claim_page(&node, &terms, &page, slots, size, refused).await
        };
        let count = claimed.as_ref().map_or(0, |(count, _)| *count);
        for _ in count..share {
            self.schedule.requeue(at);
        }
        let (_, after) = claimed?;
        lane.done = lane.cursor.looked(place, count, after) || lane.done;
        lane.taken += count as u64;
        self.pace.answered(count, sent.elapsed());
        if let Some(turn) = &mut lane.turn {
            turn.answered(count, sent.elapsed());
        }
        if lane.done {
            self.take_suspect(at, slots).await?;
            self.end_turn(at);
        }
        Ok(())
    }

    fn end_turn(&mut self, at: usize) {
        let turn = self.lanes.get_mut(at).and_then(|lane| lane.turn.as_mut());
        if let Some(turn) = turn {
            turn.ended(Instant::now());
        }
    }

    pub(super) fn end(&self) {
        for lane in &self.lanes {
            self.node.reports.claiming(&lane.lane, false);
        }
    }
}
