//! Fallback: claims jobs from the database while hints do not reach the node (protocol rule 28).
//!
//! Without a broker no hint shows that a job is ready. If receiving or publishing is impossible for
//! [`claim_after`](crate::NodeOptions::claim_after), a node asks the database for ready jobs, lane
//! by lane. A claimed job is treated like a hinted one: it passes the same checks, and is run,
//! renewed and completed in the same way.
//!
//! ```text
//!       receiving or publishing impossible for `claim_after`,
//!       or for a second while the node joins its group
//!  hints ───────────────────────────────────────────────► claims ◄─────────────┐
//!    ▲                                                      │ both possible    │ impossible
//!    │                                                      ▼ again            │ again
//!    └─────────── the marker is back ───────────── claims, a marker under way ─┘
//! ```
//! * **A node that joins** is not in the group of its lane yet. On Kafka that may take seconds.
//!   This is no fault, so the node waits one second instead of `claim_after`.
//! * **A blocked publisher** is enough: the broker keeps consumers connected, but no hint arrives.
//! * **The marker** is published after recovery, behind the hints that still wait in the lane. When
//!   it is back, hints pass through again, and the hints from the time of the outage have been
//!   decided. Their jobs that were claimed meanwhile are gone, so these hints start nothing. Until
//!   then the node claims jobs and receives hints; the store decides.
//! * **Pages**: A node claims at most as many jobs as it has free slots, in pages by key, in
//!   smaller pages if jobs are large. After a pass through its lanes it pauses: up to a second
//!   while it finds nothing, and a few times as long as the pass kept the database busy ([`pace`]).
//!   A job that becomes ready in this process shortens the pause. While hints work, the node asks
//!   nothing.
//! * **Several nodes** skip each other's locked rows, so they claim different jobs.
//! * **Rescued jobs** come first in their lane and take at most a quarter of the slots.
//!   **Suspects** come last, one at a time, after the lane was searched to its end.
//! * **A row that the database refuses to lock** does not stop other rows: a refused page is locked
//!   in halves, and the row that is refused alone is skipped until the next pass.
//!
//! A transport without a broker carries wakes instead of hints. Then claiming is the regular way,
//! and the node claims when it is woken ([`woken`]).
//!
//! Other tasks handle the rest: the leader, which needs no broker, handles expired leases and
//! timers; the sweeper handles jobs whose hints were dropped and that no node claimed before the
//! marker was back.

mod cursor;
mod pace;
mod turn;
mod watch;
mod woken;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::hint::Marker;
use crate::job::{JobId, Lane, LockedJob};
use crate::store::{ClaimOf, ClaimPage, Claimable, Refusal, StoreError};
use crate::telemetry::log_throttle::LogThrottle;
use crate::transport::{Control, TransportError};
use crate::worker::consumer::lock_size::LockSize;
use crate::worker::consumer::schedule::Schedule;
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::slot_pool::Slot;
use cursor::Cursor;
use pace::Pace;
use turn::Turn;
use watch::{Seen, Step, Watch};

/// The maximum number of jobs in one page.
const PAGE: usize = 256;
/// The interval between searches for rescued jobs in a lane.
const RESCUES: Duration = Duration::from_secs(1);
/// The interval between checks of the transport's health.
const LOOK: Duration = Duration::from_millis(250);
/// The maximum time for which a refused page is tried in parts; at most a sixth of the lease. Slots
/// wait meanwhile.
const IN_PARTS: Duration = Duration::from_secs(5);
/// The number of jobs refused alone, with none locked, from which no row counts as the reason.
const HOPELESS: usize = 16;
/// The first number of this task's markers. The range differs from that of the sweeper, which
/// counts from one, and from that of a transport of several brokers.
const MARKERS: u64 = 1 << 47;

/// One received lane.
struct ClaimedLane {
    lane: Lane,
    watch: Watch,
    /// The turn of the node, if the transport carries wakes. It then decides instead of `watch`.
    turn: Option<Turn>,
    cursor: Cursor,
    /// The time of the last search for rescued jobs.
    rescued_at: Option<Instant>,
    /// The last rescued job that was looked at, if there may be more.
    rescued: Option<JobId>,
    /// The last suspect that was looked at, if there may be more.
    suspect: Option<JobId>,
    /// Whether this pass has searched the lane to its end.
    done: bool,
    /// The number of jobs claimed since fallback began.
    taken: u64,
}

impl ClaimedLane {
    fn claims(&self) -> bool {
        match &self.turn {
            Some(turn) => turn.passes(),
            None => self.watch.claims(),
        }
    }

    /// Returns whether rescued jobs and suspects are looked for.
    fn looks_for_struck(&self) -> bool {
        self.turn.as_ref().is_none_or(Turn::looks_for_struck)
    }

    /// Returns whether the lane gets slots in this pass.
    fn is_open(&self) -> bool {
        self.claims() && !self.done
    }
}

struct Claimer {
    node: Arc<NodeContext>,
    lanes: Vec<ClaimedLane>,
    schedule: Schedule,
    next_marker: u64,
    pace: Pace,
    failures: LogThrottle,
    refused: LogThrottle,
    /// Limits pages to fewer jobs if jobs are large.
    size: LockSize,
    /// Markers on their way to the broker.
    leaving: FuturesUnordered<Leaving>,
}

/// The publication of a marker: the position of its lane, and the result.
type Leaving = BoxFuture<'static, (usize, Result<(), TransportError>)>;

/// Claims jobs while hints do not come, until the node drains.
pub(crate) async fn claim(node: Arc<NodeContext>) {
    if let Some(wakes) = node.transport.wakes() {
        return woken::claim(node, wakes).await;
    }
    let Some(patience) = node.options.claim_after else {
        return node.signals.draining.cancelled().await;
    };
    if node.transport.is_single_node() {
        // Hints within a process are always available.
        return node.signals.draining.cancelled().await;
    }
    let mut control = node.transport.listen();
    let draining = node.signals.draining.clone();
    let mut claimer = Claimer::new(node, patience);
    let mut offered = claimer.node.hook.offered();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let node = claimer.node.clone();
    loop {
        let (claims, at) = (claimer.claims(), claimer.pace.at());
        let slot = tokio::select! {
            biased;
            () = draining.cancelled() => break,
            heard = control.recv() => {
                match heard {
                    Ok(Control::MarkerBack { lane, marker }) => claimer.marker_back(&lane, marker),
                    // A missed marker is sent again.
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                }
                continue;
            }
            Some((at, left)) = claimer.leaving.next() => {
                claimer.marker_left(at, left);
                continue;
            }
            _ = look.tick() => {
                claimer.look();
                continue;
            }
            () = changed(&mut offered), if claims => {
                claimer.pace.hurry(Instant::now());
                continue;
            }
            slot = slot_at(&node, at), if claims => Some(slot),
        };
        // Must not be cancelled: a job that is locked has to be started.
        claimer.take_some(slot).await;
    }
    claimer.end();
}

/// Waits until a job becomes ready in this process.
async fn changed(offered: &mut Option<tokio::sync::watch::Receiver<u64>>) {
    let changed = match offered {
        Some(offered) => offered.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        // The hook is gone, or there is none.
        std::future::pending().await
    }
}

/// Waits until `at`, then returns a free slot. Cancel-safe.
async fn slot_at(node: &NodeContext, at: Instant) -> Slot {
    tokio::time::sleep_until(at).await;
    node.slots.of_node.take().await
}

impl Claimer {
    fn new(node: Arc<NodeContext>, patience: Duration) -> Self {
        let lanes = node.options.lane_names().into_iter().map(|lane| {
            node.reports.claiming(&lane, false);
            ClaimedLane {
                lane,
                watch: Watch::new(patience),
                turn: None,
                cursor: Cursor::default(),
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
            next_marker: MARKERS,
            pace: Pace::new(Instant::now()),
            failures: LogThrottle::default(),
            refused: LogThrottle::default(),
            size: LockSize::default(),
            leaving: FuturesUnordered::new(),
        }
    }

    /// Creates the claimer of a node that is woken.
    fn woken(node: Arc<NodeContext>) -> Self {
        let mut claimer = Self::new(node, Duration::MAX);
        for lane in &mut claimer.lanes {
            lane.turn = Some(Turn::new(Instant::now()));
        }
        claimer
    }

    fn claims(&self) -> bool {
        self.lanes.iter().any(ClaimedLane::claims)
    }

    /// Checks the transport's health for each lane.
    fn look(&mut self) {
        let node = self.node.clone();
        let publisher = node.transport.publisher();
        let deaf = node.reports.problem_of("consumer");
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let health = publisher.health_of(&lane.lane);
            let joining = health.joining;
            let seen = Seen {
                joining,
                problem: health.trouble().or_else(|| deaf.clone()),
                failing_since: node.hook.failing_since(&lane.lane),
            };
            match lane.watch.look(Instant::now(), seen) {
                Step::Nothing => {}
                Step::Begin(problem) => {
                    if joining {
                        tracing::info!(
                            lane = %lane.lane, problem,
                            "no hints arrive yet: jobs of this lane are claimed from the database \
                             until they do"
                        );
                    } else {
                        tracing::warn!(
                            lane = %lane.lane, problem,
                            "hints can't be received or published: jobs of this lane are claimed \
                             from the database until they can"
                        );
                    }
                    (lane.cursor, lane.rescued_at) = (Cursor::default(), None);
                    (lane.done, lane.taken) = (false, 0);
                    node.reports.claiming(&lane.lane, true);
                    self.pace = Pace::new(Instant::now());
                }
                Step::SendMarker => {
                    let number = self.next_marker;
                    self.next_marker += 1;
                    // Recorded before the publication, because the marker may be back at once.
                    lane.watch.sent(number);
                    let marker = Marker {
                        number,
                        node: node.id,
                    };
                    let (publisher, to) = (publisher.clone(), lane.lane.clone());
                    let leaving = async move { (at, publisher.publish_marker(&to, marker).await) };
                    self.leaving.push(Box::pin(leaving));
                }
            }
        }
    }

    fn marker_left(&mut self, at: usize, left: Result<(), TransportError>) {
        let Some(lane) = self.lanes.get_mut(at) else {
            return;
        };
        match left {
            Ok(()) => self.node.hook.published(&lane.lane),
            Err(error) => {
                lane.watch.not_sent();
                tracing::debug!(lane = %lane.lane, %error, "could not send a marker; retrying");
            }
        }
    }

    fn marker_back(&mut self, of: &Lane, marker: Marker) {
        if marker.node != self.node.id || marker.number < MARKERS {
            return;
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.lane == *of) {
            if let Some(since) = lane.watch.back(marker.number) {
                tracing::info!(
                    lane = %lane.lane, claimed = lane.taken, seconds = since.elapsed().as_secs_f64(),
                    "a marker is back: jobs of this lane come by hints again"
                );
                self.node.reports.claiming(&lane.lane, false);
            }
        }
    }

    /// Claims a page of each lane that gets slots.
    async fn take_some(&mut self, first: Option<Slot>) {
        if !self.node.leases.healthy() {
            // While leases cannot be renewed, further locks would be lost, too.
            self.pace.put_off(Instant::now());
            return;
        }
        let mut slots: Vec<Slot> = first.into_iter().collect();
        while slots.len() < PAGE
            && let Some(slot) = self.node.slots.of_node.try_take()
        {
            slots.push(slot);
        }
        let mut shares = vec![0_usize; self.lanes.len()];
        // Claimed jobs have no hints with an age: all but the first lane count as old.
        let age = |at: usize| {
            if at == 0 {
                Duration::ZERO
            } else {
                Duration::MAX
            }
        };
        for _ in 0..slots.len() {
            let open = |at: usize| {
                let lane = self.lanes.get(at);
                lane.is_some_and(ClaimedLane::is_open)
            };
            if let Some(share) = self
                .schedule
                .next(open, age)
                .and_then(|at| shares.get_mut(at))
            {
                *share += 1;
            }
        }
        for (at, share) in shares
            .into_iter()
            .enumerate()
            .filter(|(_, share)| *share > 0)
        {
            if let Err(error) = self.take(at, share, &mut slots).await {
                if let Some(more) = self.failures.now() {
                    tracing::warn!(%error, more, "could not claim jobs; retrying");
                }
                self.pace.failed(Instant::now());
                return;
            }
        }
        let now = Instant::now();
        if !self.lanes.iter().any(ClaimedLane::is_open) {
            self.lanes.iter_mut().for_each(|lane| lane.done = false);
            self.pace.pass_ended(now);
        }
        if self.lanes.iter().any(|lane| lane.turn.is_some()) {
            // The turns of the lanes set the pace, as long as the database answers.
            self.pace = Pace::new(now);
        }
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
        let struck = *node.leases.struck().borrow();
        let room = node
            .options
            .struck_slots()
            .saturating_sub(struck)
            .min(share)
            .min(self.size.limit());
        let Some(lane) = self.lanes.get_mut(at) else {
            return Ok(0);
        };
        let is_due = lane.rescued_at.is_none_or(|then| now - then >= RESCUES);
        if room == 0 || !is_due || !lane.looks_for_struck() {
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
        let (count, after) =
            claim_page(&node, &page, slots, &mut self.size, &mut self.refused).await?;
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
        let (count, after) =
            claim_page(&node, &page, slots, &mut self.size, &mut self.refused).await?;
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
        let claimed = claim_page(&node, &page, slots, &mut self.size, &mut self.refused).await;
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

    fn end(&self) {
        for lane in &self.lanes {
            self.node.reports.claiming(&lane.lane, false);
        }
    }
}

/// Claims a page and starts its jobs. A page that the database refuses is locked in halves, without
/// the rows that are refused alone. Returns the number of claimed jobs, and the job after which to
/// continue.
async fn claim_page(
    node: &Arc<NodeContext>,
    page: &ClaimPage,
    slots: &mut Vec<Slot>,
    size: &mut LockSize,
    told: &mut LogThrottle,
) -> Result<(usize, Option<JobId>), StoreError> {
    let terms = node.terms();
    let mut count = 0;
    let mut start = |jobs: Vec<LockedJob>, sent| {
        let slots = std::iter::from_fn(|| slots.pop());
        size.saw_jobs(&jobs);
        let started = jobs.len();
        executor::start_unhinted(node, jobs, "claim", sent, slots);
        started
    };
    let sent = Instant::now();
    let (undecided, mut after) = match node.asks(node.store.claim(&terms, page)).await {
        Err(error) if error.is_answer() => {
            tracing::debug!(
                lane = %page.lane,
                %error,
                "the database refused a page; trying it in parts"
            );
            let Claimable { hints, after } = node.store.claimable(&terms, page).await?;
            (hints, after)
        }
        claimed => {
            let claimed = claimed?;
            count += start(claimed.jobs, sent);
            (claimed.undecided, claimed.after)
        }
    };
    let until = sent + IN_PARTS.min(node.options.lease / 6);
    let (mut refused, mut first) = (0, None);
    let mut parts = vec![undecided];
    while let Some(hints) = parts.pop()
        && let Some(last) = hints.last().map(|hint| hint.id)
    {
        let sent = Instant::now();
        let mut again = match node.asks(node.store.lock(&terms, &hints)).await {
            Ok(locked) => {
                let is_busy = |id| locked.refused.contains(&(id, Refusal::Busy));
                let mut busy = hints;
                busy.retain(|hint| locked.is_cut && is_busy(hint.id));
                count += start(locked.jobs, sent);
                // A single busy row is skipped.
                if busy.len() > 1 { busy } else { Vec::new() }
            }
            Err(error) if error.is_answer() && hints.len() > 1 => hints,
            Err(error) if error.is_answer() => {
                refused += 1;
                first.get_or_insert((last, error));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let rest = again.split_off(again.len() / 2);
        parts.extend([rest, again].into_iter().filter(|part| !part.is_empty()));
        let is_cut = Instant::now() >= until && !parts.is_empty();
        if is_cut {
            after = Some(last);
        }
        if is_cut || (refused >= HOPELESS && count == 0) {
            break;
        }
    }
    match first {
        Some((_, error)) if refused >= HOPELESS && count == 0 => Err(error),
        Some((job, error)) => {
            if let Some(more) = told.now() {
                tracing::warn!(
                    %job, jobs = refused, %error, more,
                    "the database refuses to lock jobs; they are skipped until the next pass. Fix \
                     the cause named in the error, or delete the jobs"
                );
            }
            Ok((count, after))
        }
        None => Ok((count, after)),
    }
}
