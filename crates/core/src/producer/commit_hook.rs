//! The commit hook publishes the hints of a transaction after its COMMIT. The caller does not wait
//! for the broker.
//!
//! * **If no hint waits**, the caller's thread publishes the hints. It polls the publication once,
//!   so that the transport writes the message (`publication.rs`), and continues. A task awaits the
//!   confirm. So no hint waits until a task is scheduled.
//! * **If hints wait**, or `in_flight` is reached, the task gathers the hints that have arrived
//!   meanwhile and publishes them together, several publications at once (`publishing.rs`). So
//!   under load many hints share a message.
//!
//! The hook never blocks and never fails a commit, and its buffer is bounded. It drops a hint if
//! the buffer is full, if the broker does not accept the hint, or if the hint is older than
//! [`HookOptions::max_age`] because the broker was away. (By then the sweeper suspects the job, and
//! the job would get two hints; protocol rule 16.) Dropped hints are counted by reason, and the
//! sweeper publishes them.

mod publication;
mod publishing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use metrics::{counter, gauge};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::event::{JobListener, Listeners};
use crate::hint::{Hint, Ready};
use crate::job::{JobId, Lane};
use crate::producer::hint_room::room;
use crate::store::transaction::AfterCommit;
use crate::store::transaction::operations::note;
use crate::store::{Created, Store};
use crate::telemetry::label;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;
use crate::transport::{Control, Publisher, TransportError};
use publication::Publication;

/// The reason why a hint is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The creating transaction of the job committed.
    Commit,
    /// The timer was due.
    Timer,
    /// The instance of the job was released.
    Handoff,
    /// The sweeper found the job.
    Sweep,
    /// The commit tap reported the job.
    Tap,
    /// A node released the job.
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
            Self::Tap => "tap",
            Self::Requeue => "give-back",
            Self::Operator => "operator",
        }
    }
}

/// The options of the hook.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookOptions {
    /// Maximum number of hints that wait or are under way. Further hints are dropped, and the
    /// sweeper publishes them. Default 100,000 (about 10 MB).
    pub buffer: usize,
    /// Maximum time for which an unpublished hint is kept. Older hints are dropped. Default 10 s.
    pub max_age: Duration,
    /// Maximum number of publications under way at once. Default 16.
    pub in_flight: usize,
    /// Maximum number of hints in one publication. Default 512.
    pub batch: usize,
}

crate::setters! {
    HookOptions {
        buffer: usize,
        max_age: Duration,
        in_flight: usize,
        batch: usize,
    }
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
    /// Hints that wait to be published.
    entries: mpsc::Sender<Entry>,
    /// Publications that were polled once.
    publications: mpsc::Sender<Publication>,
    /// Hints that wait or are under way.
    buffered: AtomicUsize,
    /// Hints that are under way.
    under_way: AtomicUsize,
    /// The time at which hints last left the buffer, published or not, or entered an empty one.
    moved: Mutex<Instant>,
    options: HookOptions,
    publisher: Arc<dyn Publisher>,
    /// The runtime whose timers publications use, on every calling thread.
    runtime: Handle,
    stop: CancellationToken,
    stopped: CancellationToken,
    earlier_timer: Notify,
    /// Whether the publishing task has panicked and is not restarted yet.
    died: AtomicBool,
    /// The time since which every publication has failed, by lane.
    failing: Mutex<BTreeMap<Lane, Instant>>,
    /// Limits the log lines about dropped hints, since hints may name any lane.
    given_up: Mutex<LogThrottle>,
    /// Grows with each call that offers hints.
    offered: watch::Sender<u64>,
}

/// The time for which the end of a hook waits for its listeners.
const LISTENERS_WITHIN: Duration = Duration::from_secs(1);

/// The sending side of the hook, and the [listeners](crate::event) of its jobs. Cheap to clone. See
/// the [module](self).
#[derive(Clone)]
pub struct CommitHook(Option<Arc<Inner>>, Listeners);

impl CommitHook {
    /// Starts the publishing task. Needs a tokio runtime.
    #[must_use]
    pub fn start(publisher: Arc<dyn Publisher>, options: HookOptions) -> Self {
        let (entries, waiting) = mpsc::channel(8_192);
        let (publications, begun) = mpsc::channel(1_024);
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
        tokio::spawn(publishing::keep_publishing(inner.clone(), waiting, begun));
        Self(Some(inner), Listeners::default())
    }

    /// Returns a hook without a transport. The sweeper publishes all hints.
    #[must_use]
    pub fn disconnected() -> Self {
        Self(None, Listeners::default())
    }

    /// Adds a [listener](crate::event) to this clone of the hook, and to its later clones. It is told
    /// the events of the clients and of the node that use them.
    #[must_use = "the listener belongs to the returned hook"]
    pub fn listener(mut self, listener: impl JobListener) -> Self {
        self.1.add(listener);
        self
    }

    /// Adds the listeners of others.
    pub(crate) fn with_listeners(mut self, others: Listeners) -> Self {
        self.1.extend(others);
        self
    }

    /// Returns the listeners.
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.1
    }

    /// Returns whether hints are published.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.is_some()
    }

    /// Publishes the hints of a committed transaction. Never waits.
    #[doc(hidden)]
    pub fn committed(&self, created: Created) {
        for event in created.events {
            self.1.tell(event);
        }
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
        self.publish(Cause::Operator, created.next);
        self.timer_set(created.timer);
        for job in created.stop {
            self.tell(Control::Cancel { job });
        }
    }

    /// Announces that a timer with this due date was written.
    #[doc(hidden)]
    pub fn timer_set(&self, due: Option<DateTime<Utc>>) {
        if let (Some(inner), Some(due)) = (&self.0, due) {
            inner.publisher.tell(Control::TimerSet { due });
            inner.earlier_timer.notify_waiters();
        }
    }

    /// Publishes hints. Never waits; hints that do not fit into the buffer are left to the sweeper.
    #[doc(hidden)]
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

    /// Publishes the hints of jobs that an operation made ready.
    #[doc(hidden)]
    pub async fn operated(&self, store: &dyn Store, ready: Vec<Ready>) {
        self.announce(store, Cause::Operator, ready).await;
    }

    /// Publishes the hints of jobs that became ready. A hook without a transport reaches no node: it notes
    /// the jobs, so that a leader hints them in its next cycle.
    pub(crate) async fn announce(&self, store: &dyn Store, cause: Cause, ready: Vec<Ready>) {
        if self.is_connected() {
            return self.publish(cause, ready);
        }
        let jobs: Vec<JobId> = ready.iter().map(|ready| ready.hint.id).collect();
        if !jobs.is_empty() {
            note(store, &jobs).await;
        }
    }

    /// Returns whether the publishing task has died and is about to be restarted.
    pub(crate) fn is_down(&self) -> bool {
        let inner = self.0.as_ref();
        inner.is_some_and(|inner| inner.died.load(Ordering::Relaxed))
    }

    /// Returns the time for which no waiting hint was published or dropped, if it exceeds the
    /// limit.
    pub(crate) fn is_stuck(&self) -> Option<Duration> {
        let inner = self.0.as_ref()?;
        if inner.buffered.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let still = inner.moved().elapsed();
        let limit = (inner.options.max_age * STUCK).max(STUCK_AT_LEAST);
        (still > limit).then_some(still)
    }

    /// Returns the number of hints that wait or are under way.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.0
            .as_ref()
            .map_or(0, |i| i.buffered.load(Ordering::Relaxed))
    }

    /// Subscribes to the offers of hints: jobs became ready in this process, whether or not their
    /// hints can be published.
    pub(crate) fn offered(&self) -> Option<watch::Receiver<u64>> {
        self.0.as_ref().map(|inner| inner.offered.subscribe())
    }

    /// Returns the time since which every publication to this lane has failed.
    pub(crate) fn failing_since(&self, lane: &Lane) -> Option<Instant> {
        let inner = self.0.as_ref()?;
        inner.failing().get(lane).copied()
    }

    /// Records that the broker accepted a message for this lane, from the hook or from another part
    /// of this process.
    pub(crate) fn published(&self, lane: &Lane) {
        if let Some(inner) = &self.0 {
            inner.failing().remove(lane);
        }
    }

    /// Sends a control message to the nodes. Returns false if it is known already that no other
    /// node receives it.
    pub(crate) fn tell(&self, control: Control) -> bool {
        let inner = self.0.as_ref();
        inner.is_some_and(|inner| inner.publisher.tell(control))
    }

    /// Publishes the waiting hints, for at most the given time, and then accepts no more. Waits
    /// for up to a second more until the listeners were told what waits.
    pub async fn close(&self, within: Duration) {
        if let Some(inner) = &self.0 {
            inner.stop.cancel();
            if tokio::time::timeout(within, inner.stopped.cancelled())
                .await
                .is_err()
            {
                tracing::warn!(
                    left = inner.buffered.load(Ordering::Relaxed),
                    "hints could not be published before shutdown; the sweeper finds their jobs"
                );
            }
        }
        self.1.until_told(within.min(LISTENERS_WITHIN)).await;
    }
}

impl Inner {
    /// Locks the map. A poisoned lock only means that a thread panicked elsewhere; the map is still
    /// valid.
    fn failing(&self) -> MutexGuard<'_, BTreeMap<Lane, Instant>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given_up(&self) -> MutexGuard<'_, LogThrottle> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self) -> MutexGuard<'_, Instant> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes hints at once if no hint waits before them, and queues them otherwise.
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

    /// Records the result of a publication that started at `began`. The transport's own limit does
    /// not show that the broker fails.
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

    /// Drops hints that were not confirmed within [`HookOptions::max_age`].
    fn drop_stale(&self, entry: &Entry) {
        let hints = entry.hints.len();
        if let Some(more) = self.given_up().now() {
            let lane = entry.lane.0.escape_debug();
            tracing::warn!(
                %lane,
                hints,
                max_age = self.options.max_age.as_secs_f64(),
                more,
                "the broker did not confirm hints within the longest age of a hint; the sweeper \
                 finds their jobs"
            );
        }
        self.forget(&entry.lane, hints, "stale");
    }

    /// Drops hints from the buffer that were not published.
    fn forget(&self, lane: &Lane, count: usize, reason: &'static str) {
        *self.moved() = Instant::now();
        self.refuse(lane, count, reason);
    }

    /// Removes dropped hints from the count and records the reason. Called directly for hints that
    /// were never queued.
    fn refuse(&self, lane: &Lane, count: usize, reason: &'static str) {
        self.buffered.fetch_sub(count, Ordering::Relaxed);
        counter!(m::HINTS_DROPPED, "lane" => label::lane(lane), "reason" => reason)
            .increment(count as u64);
    }
}

/// The hook is stuck if no hint has left the buffer for this many times [`HookOptions::max_age`]
/// and for `STUCK_AT_LEAST`. Older hints are dropped and each attempt to publish has a time limit,
/// so by then the buffer does not recover by itself.
const STUCK: u32 = 3;
const STUCK_AT_LEAST: Duration = Duration::from_secs(120);
/// Maximum number of failing lanes that are remembered.
const MOST_LANES: usize = 1_024;

impl AfterCommit for CommitHook {
    fn listens(&self) -> bool {
        self.1.any()
    }

    fn committed(&self, created: Created) {
        CommitHook::committed(self, created);
    }

    fn room(&self) -> BoxFuture<'_, bool> {
        Box::pin(room(self))
    }
}
