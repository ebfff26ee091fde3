//! The commit hook: what was committed leaves as hints, and nobody waits for the broker.
//!
//! * **Nothing waits before them**: the hints leave where their transaction has committed. The caller gives the
//!   publication its first turn, in which a transport writes what it has to say (`publication.rs`), and goes on; a
//!   task sees to the answer. So no hint waits for a task to be woken.
//! * **Something waits**, or much is under way: the task gathers what has come together meanwhile and publishes it,
//!   several publications under way at once (`publishing.rs`). So under load many hints leave in one message.
//!
//! What it promises: it never blocks and never fails a commit, and its buffer is bounded. What it leaves
//! to the sweeper: hints that found the buffer full, that the broker did not take, or that grew older
//! than [`HookOptions::max_age`] while the broker was away (protocol rule 16: the sweeper has begun to
//! suspect those, and two would go out for one job). Each of them is counted by reason.

mod publication;
mod publishing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, gauge};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::hint::{Hint, Ready};
use crate::job::Lane;
use crate::store::Created;
use crate::store::transaction::AfterCommit;
use crate::telemetry::label;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;
use crate::transport::{Control, Publisher, TransportError};
use publication::Publication;

/// Why a hint is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Its creating transaction committed.
    Commit,
    /// Its timer was due.
    Timer,
    /// Its instance was released.
    Handoff,
    /// The sweeper found it.
    Sweep,
    /// A node gave it back.
    Requeue,
    /// An operator asked for it.
    Operator,
}

impl Cause {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Timer => "timer",
            Self::Handoff => "hand-over",
            Self::Sweep => "sweep",
            Self::Requeue => "give-back",
            Self::Operator => "operator",
        }
    }
}

/// Options of the hook, with their defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookOptions {
    /// Hints that may wait. One more is dropped to the sweeper. Default 100,000 (about 10 MB).
    pub buffer: usize,
    /// Drop a hint that could not be published for so long. Default 10 s.
    pub max_age: Duration,
    /// Publications under way at once. Default 16.
    pub in_flight: usize,
    /// The most hints in one publication. Default 512.
    pub batch: usize,
}

impl Default for HookOptions {
    fn default() -> Self {
        Self {
            buffer: 100_000,
            max_age: Duration::from_secs(10),
            in_flight: 16,
            batch: 512,
        }
    }
}

struct Entry {
    cause: Cause,
    since: Instant,
    lane: Lane,
    hints: Vec<Hint>,
}

struct Inner {
    /// What waits to be published.
    entries: mpsc::Sender<Entry>,
    /// Publications that have had their first turn.
    publications: mpsc::Sender<Publication>,
    /// Hints that wait or are under way.
    buffered: AtomicUsize,
    /// Those of them that are under way.
    under_way: AtomicUsize,
    /// When hints last left the buffer, whatever became of them, or came into an empty one.
    moved: Mutex<Instant>,
    options: HookOptions,
    publisher: Arc<dyn Publisher>,
    /// Where publications find their timers, whoever begins them.
    runtime: Handle,
    stop: CancellationToken,
    stopped: CancellationToken,
    earlier_timer: Notify,
    /// The task that publishes has panicked, and is not up again.
    died: AtomicBool,
    /// Since when nothing could be published, by lane.
    failing: Mutex<BTreeMap<Lane, Instant>>,
    /// Hints may name any lane: giving them up is told rarely.
    given_up: Mutex<LogThrottle>,
    /// Grows with whatever is to be hinted.
    offered: watch::Sender<u64>,
}

/// The sending side. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct CommitHook(Option<Arc<Inner>>);

impl CommitHook {
    /// Start the task that publishes. Needs a tokio runtime.
    #[must_use]
    pub fn start(publisher: Arc<dyn Publisher>, options: HookOptions) -> Self {
        let (entries, waiting) = mpsc::channel(8_192);
        let (publications, departed) = mpsc::channel(1_024);
        let inner = Arc::new(Inner {
            entries,
            publications,
            buffered: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            moved: Mutex::new(Instant::now()),
            options,
            publisher,
            runtime: Handle::current(),
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
            earlier_timer: Notify::new(),
            died: AtomicBool::new(false),
            failing: Mutex::default(),
            given_up: Mutex::default(),
            offered: watch::Sender::new(0),
        });
        tokio::spawn(publishing::keep_publishing(
            inner.clone(),
            waiting,
            departed,
        ));
        Self(Some(inner))
    }

    /// A hook without a transport: the sweeper hints everything.
    #[must_use]
    pub fn disconnected() -> Self {
        Self(None)
    }

    /// Do hints leave at all?
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.is_some()
    }

    /// A transaction has committed: let its hints leave. Never waits.
    pub fn committed(&self, created: Created) {
        let now = Utc::now();
        let mut ready = created.ready;
        let mut counts: BTreeMap<&Lane, u64> = BTreeMap::new();
        for job in &mut ready {
            job.hint.committed_at = Some(now);
            *counts.entry(&job.lane).or_default() += 1;
        }
        for (lane, count) in counts {
            counter!(m::JOBS_CREATED, "lane" => label::lane(lane)).increment(count);
        }
        self.publish(Cause::Commit, ready);
        self.timer_set(created.timer);
    }

    /// A timer with this due date was written.
    pub fn timer_set(&self, due: Option<DateTime<Utc>>) {
        if let (Some(inner), Some(due)) = (&self.0, due) {
            inner.publisher.tell(Control::TimerSet { due });
            inner.earlier_timer.notify_waiters();
        }
    }

    /// Let hints leave. Never waits; what does not fit is left to the sweeper.
    pub fn publish(&self, cause: Cause, ready: Vec<Ready>) {
        if ready.is_empty() {
            return;
        }
        let Some(inner) = &self.0 else {
            return;
        };
        let mut by_lane: BTreeMap<Lane, Vec<Hint>> = BTreeMap::new();
        for Ready { lane, hint } in ready {
            by_lane.entry(lane).or_default().push(hint);
        }
        inner.offered.send_modify(|count| *count += 1);
        for (lane, hints) in by_lane {
            inner.offer(Entry {
                cause,
                since: Instant::now(),
                lane,
                hints,
            });
        }
    }

    /// The task that publishes has died, and is about to be started again.
    pub(crate) fn is_down(&self) -> bool {
        let inner = self.0.as_ref();
        inner.is_some_and(|inner| inner.died.load(Ordering::Relaxed))
    }

    /// How long hints have waited without any of them having been published or given up, where that is longer than it
    /// may take.
    pub(crate) fn is_stuck(&self) -> Option<Duration> {
        let inner = self.0.as_ref()?;
        if inner.buffered.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let still = inner.moved().elapsed();
        let limit = (inner.options.max_age * STUCK).max(STUCK_AT_LEAST);
        (still > limit).then_some(still)
    }

    /// Hints that wait to be published.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.0
            .as_ref()
            .map_or(0, |i| i.buffered.load(Ordering::Relaxed))
    }

    /// Tells that jobs became ready in this process, whether or not their hints can leave.
    pub(crate) fn offered(&self) -> Option<watch::Receiver<u64>> {
        self.0.as_ref().map(|inner| inner.offered.subscribe())
    }

    /// Since when every publication to this lane has failed.
    pub(crate) fn failing_since(&self, lane: &Lane) -> Option<Instant> {
        let inner = self.0.as_ref()?;
        inner.failing().get(lane).copied()
    }

    /// The broker took something for this lane, from here or from elsewhere in this process.
    pub(crate) fn published(&self, lane: &Lane) {
        if let Some(inner) = &self.0 {
            inner.failing().remove(lane);
        }
    }

    /// Tell the nodes something. False where it is known already that no other node will hear it.
    pub(crate) fn tell(&self, control: Control) -> bool {
        let inner = self.0.as_ref();
        inner.is_some_and(|inner| inner.publisher.tell(control))
    }

    /// Publish what waits, at most for the given time; then take nothing more.
    pub async fn close(&self, within: Duration) {
        if let Some(inner) = &self.0 {
            inner.stop.cancel();
            if tokio::time::timeout(within, inner.stopped.cancelled())
                .await
                .is_err()
            {
                tracing::warn!(
                    left = inner.buffered.load(Ordering::Relaxed),
                    "hints could not be published before shutdown; the sweeper will"
                );
            }
        }
    }
}

impl Inner {
    /// A poisoned lock only means that a thread panicked elsewhere; the map is still whole.
    fn failing(&self) -> MutexGuard<'_, BTreeMap<Lane, Instant>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given_up(&self) -> MutexGuard<'_, LogThrottle> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self) -> MutexGuard<'_, Instant> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hints are to leave: now where nothing waits before them, else with what waits.
    fn offer(self: &Arc<Self>, entry: Entry) {
        let count = entry.hints.len();
        if self.buffered.load(Ordering::Relaxed) == 0 {
            *self.moved() = entry.since;
        }
        let before = self.buffered.fetch_add(count, Ordering::Relaxed);
        if before + count > self.options.buffer {
            return self.refuse(&entry.lane, count, "full");
        }
        let under_way = self.under_way.load(Ordering::Relaxed);
        let nothing_waits = before == under_way && under_way < self.options.in_flight;
        if nothing_waits
            && count <= self.options.batch
            && !self.died.load(Ordering::Relaxed)
            && let Ok(place) = self.publications.try_reserve()
        {
            return publication::begin(self, entry, place);
        }
        match self.entries.try_send(entry) {
            Ok(()) => {}
            Err(TrySendError::Full(e)) => self.refuse(&e.lane, count, "full"),
            Err(TrySendError::Closed(e)) => self.refuse(&e.lane, count, "closed"),
        }
    }

    fn show_buffered(&self) {
        gauge!(m::HINTS_BUFFERED).set(self.buffered.load(Ordering::Relaxed) as f64);
    }

    /// How a publication that began then went. A transport's own bound says nothing of the broker.
    fn noted(&self, lane: &Lane, began: Instant, result: &Result<(), TransportError>) {
        match result {
            Ok(()) => drop(self.failing().remove(lane)),
            Err(TransportError::Full) => {}
            Err(_) => {
                let mut failing = self.failing();
                if failing.len() < MOST_LANES {
                    failing.entry(lane.clone()).or_insert(began);
                }
            }
        }
    }

    /// These hints leave the buffer without having been published.
    fn forget(&self, lane: &Lane, count: usize, reason: &'static str) {
        *self.moved() = Instant::now();
        self.refuse(lane, count, reason);
    }

    /// The same for hints that have never been in it.
    fn refuse(&self, lane: &Lane, count: usize, reason: &'static str) {
        self.buffered.fetch_sub(count, Ordering::Relaxed);
        counter!(m::HINTS_DROPPED, "lane" => label::lane(lane), "reason" => reason)
            .increment(count as u64);
    }
}

/// Hints older than [`HookOptions::max_age`] are given up, and each attempt to publish ends in its own time. A buffer
/// in which nothing has moved for so many times that long, and this long, is not about to.
const STUCK: u32 = 3;
const STUCK_AT_LEAST: Duration = Duration::from_secs(120);
/// So many lanes that can't be published to are remembered.
const MOST_LANES: usize = 1_024;

impl AfterCommit for CommitHook {
    fn committed(&self, created: Created) {
        CommitHook::committed(self, created);
    }
}
