//! The commit hook: what was committed leaves as hints, and nobody waits for the broker.
//!
//! The committing caller hands its hints over and goes on ([`CommitHook::committed`]). A task of its own
//! gathers what has come together meanwhile and publishes it, several publications under way at once: at
//! low load a hint leaves at once, at high load many leave in one message.
//!
//! What it promises: it never blocks and never fails a commit, and its buffer is bounded. What it leaves
//! to the sweeper: hints that found the buffer full, that the broker did not take, or that grew older
//! than [`HookOptions::max_age`] while the broker was away (protocol rule 16: the sweeper has begun to
//! suspect those, and two would go out for one job). Each of them is counted by reason.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use metrics::{counter, gauge, histogram};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::created::Created;
use crate::hint::{Hint, Ready};
use crate::job::Lane;
use crate::metrics as m;
use crate::supervisor;
use crate::transport::{Control, Publisher, TransportError};

/// Why a hint is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Its creating transaction committed.
    Commit,
    /// Its timer was due.
    Timer,
    /// Its instance was released.
    HandOver,
    /// The sweeper found it.
    Sweep,
    /// A node gave it back.
    GiveBack,
    /// An operator asked for it.
    Operator,
}

impl Cause {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Timer => "timer",
            Self::HandOver => "hand-over",
            Self::Sweep => "sweep",
            Self::GiveBack => "give-back",
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
    entries: mpsc::Sender<Entry>,
    buffered: AtomicUsize,
    limit: usize,
    publisher: Arc<dyn Publisher>,
    stop: CancellationToken,
    stopped: CancellationToken,
    earlier_timer: Notify,
    /// Hints that left the buffer's queue and are not decided.
    under_way: AtomicUsize,
    /// The task that publishes has panicked, and is not up again.
    died: AtomicBool,
    /// Since when nothing could be published, by lane.
    failing: Mutex<BTreeMap<Lane, Instant>>,
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
        let (entries, queue) = mpsc::channel(8_192);
        let inner = Arc::new(Inner {
            entries,
            buffered: AtomicUsize::new(0),
            limit: options.buffer,
            publisher,
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
            earlier_timer: Notify::new(),
            under_way: AtomicUsize::new(0),
            died: AtomicBool::new(false),
            failing: Mutex::default(),
            offered: watch::Sender::new(0),
        });
        tokio::spawn(keep_publishing(inner.clone(), queue, options));
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
            counter!(m::JOBS_CREATED, "lane" => lane.0.clone()).increment(count);
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
            let count = hints.len();
            if inner.buffered.fetch_add(count, Ordering::Relaxed) + count > inner.limit {
                inner.forget(&lane, count, "full");
                continue;
            }
            let entry = Entry {
                cause,
                since: Instant::now(),
                lane,
                hints,
            };
            match inner.entries.try_send(entry) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(e)) => inner.forget(&e.lane, count, "full"),
                Err(mpsc::error::TrySendError::Closed(e)) => inner.forget(&e.lane, count, "closed"),
            }
        }
    }

    /// The task that publishes has died, and is about to be started again.
    pub(crate) fn is_down(&self) -> bool {
        let inner = self.0.as_ref();
        inner.is_some_and(|inner| inner.died.load(Ordering::Relaxed))
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

    /// Tell the nodes something.
    pub(crate) fn tell(&self, control: Control) {
        if let Some(inner) = &self.0 {
            inner.publisher.tell(control);
        }
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
        self.buffered.fetch_sub(count, Ordering::Relaxed);
        counter!(m::HINTS_DROPPED, "lane" => lane.0.clone(), "reason" => reason)
            .increment(count as u64);
    }
}

/// So many lanes that can't be published to are remembered.
const MOST_LANES: usize = 1_024;
/// After a failure, wait this long before the next attempt.
const PAUSE: Duration = Duration::from_millis(250);
/// When the task keeps dying, wait at most so long.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Publish until the hook is closed. A panic costs what was under way; the sweeper hints that.
async fn keep_publishing(
    inner: Arc<Inner>,
    mut queue: mpsc::Receiver<Entry>,
    options: HookOptions,
) {
    let mut waiting = Vec::new();
    let mut pause = PAUSE;
    loop {
        let publishing = publish_all(&inner, &mut queue, &mut waiting, &options);
        if supervisor::survived("hook", publishing).await.is_some() {
            break;
        }
        let lost = inner.under_way.swap(0, Ordering::Relaxed);
        inner.buffered.fetch_sub(lost, Ordering::Relaxed);
        tracing::warn!(
            lost,
            "hints were lost with the task that published; the sweeper finds their jobs"
        );
        inner.died.store(true, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        inner.died.store(false, Ordering::Relaxed);
    }
    inner.stopped.cancel();
}

async fn publish_all(
    inner: &Arc<Inner>,
    queue: &mut mpsc::Receiver<Entry>,
    waiting: &mut Vec<Entry>,
    options: &HookOptions,
) {
    let mut under_way = FuturesUnordered::new();
    let mut not_before: Option<Instant> = None;
    let mut arrived = Vec::new();
    let (in_flight, batch) = (options.in_flight.max(1), options.batch.max(1));
    loop {
        gauge!(m::HINTS_BUFFERED).set(inner.buffered.load(Ordering::Relaxed) as f64);
        let room = under_way.len() < in_flight;
        let paused = not_before.is_some();
        if room && !paused {
            // Everything that came together meanwhile leaves in as few publications as possible.
            while let Ok(entry) = queue.try_recv() {
                waiting.push(entry);
            }
            // All that grew too old goes first. So where something is left there is something under way, whose end
            // wakes this task: nothing else would.
            waiting.retain(|entry| {
                let stale = entry.since.elapsed() > options.max_age;
                if stale {
                    inner.forget(&entry.lane, entry.hints.len(), "stale");
                }
                !stale
            });
            for entry in gather(waiting, batch, in_flight - under_way.len()) {
                inner
                    .under_way
                    .fetch_add(entry.hints.len(), Ordering::Relaxed);
                under_way.push(publish_one(inner.clone(), entry));
            }
        }
        if under_way.is_empty()
            && waiting.is_empty()
            && queue.is_empty()
            && inner.stop.is_cancelled()
        {
            break;
        }
        tokio::select! {
            biased;
            Some((mut entry, result)) = under_way.next(), if !under_way.is_empty() => {
                inner.under_way.fetch_sub(entry.hints.len(), Ordering::Relaxed);
                match result {
                Ok(()) => confirmed(inner, &entry),
                Err(error) if error.is_transient() && !inner.stop.is_cancelled() => {
                    tracing::debug!(lane = %entry.lane, hints = entry.hints.len(), %error, "hints were not confirmed; trying again");
                    entry.hints.shrink_to_fit();
                    waiting.push(entry);
                    not_before = Some(Instant::now() + PAUSE);
                }
                Err(error) => {
                    tracing::warn!(lane = %entry.lane, hints = entry.hints.len(), %error, "hints could not be published; the sweeper will");
                    inner.forget(&entry.lane, entry.hints.len(), "failed");
                }
            }
            }
            () = async { tokio::time::sleep_until(not_before.unwrap_or_else(Instant::now)).await }, if paused => {
                not_before = None;
            }
            count = queue.recv_many(&mut arrived, 256), if room && !paused && waiting.is_empty() => {
                waiting.append(&mut arrived);
                if count == 0 {
                    break;
                }
            }
            () = inner.stop.cancelled(), if under_way.is_empty() && !inner.stop.is_cancelled() => {}
        }
    }
}

/// Join what goes to the same lane for the same cause, oldest first, into at most `count` publications.
fn gather(waiting: &mut Vec<Entry>, batch: usize, count: usize) -> Vec<Entry> {
    let mut publications: Vec<Entry> = Vec::new();
    let mut left = Vec::new();
    for mut entry in waiting.drain(..) {
        let fits = publications.iter().rposition(|p| {
            p.lane == entry.lane
                && p.cause == entry.cause
                && p.hints.len() + entry.hints.len() <= batch
        });
        match fits {
            Some(at) => {
                let publication = &mut publications[at];
                publication.since = publication.since.min(entry.since);
                publication.hints.append(&mut entry.hints);
            }
            None if publications.len() < count => {
                let rest = entry.hints.split_off(entry.hints.len().min(batch));
                if !rest.is_empty() {
                    left.push(Entry {
                        lane: entry.lane.clone(),
                        hints: rest,
                        ..entry
                    });
                }
                publications.push(entry);
            }
            None => left.push(entry),
        }
    }
    *waiting = left;
    publications
}

async fn publish_one(inner: Arc<Inner>, entry: Entry) -> (Entry, Result<(), TransportError>) {
    let began = Instant::now();
    let publishing = inner.publisher.publish(&entry.lane, entry.hints.clone());
    let result = publishing.await;
    inner.noted(&entry.lane, began, &result);
    (entry, result)
}

fn confirmed(inner: &Inner, entry: &Entry) {
    crash_point!("hints-confirmed");
    let count = entry.hints.len();
    inner.buffered.fetch_sub(count, Ordering::Relaxed);
    counter!(m::HINTS_PUBLISHED, "lane" => entry.lane.0.clone(), "cause" => entry.cause.as_str())
        .increment(count as u64);
    let now = Utc::now();
    let latency = histogram!(m::COMMIT_TO_PUBLISH, "lane" => entry.lane.0.clone());
    for committed in entry.hints.iter().filter_map(|h| h.committed_at) {
        m::latency(&latency, "commit_to_publish", committed, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;

    /// A broker that is away for the first so many publications.
    struct Away(AtomicUsize, std::sync::Mutex<Vec<JobId>>);

    #[async_trait::async_trait]
    impl Publisher for Away {
        async fn publish(&self, _: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
            let left = self.0.load(Ordering::SeqCst);
            if left > 0 {
                self.0.store(left - 1, Ordering::SeqCst);
                return Err(TransportError::Unreachable("away".to_owned()));
            }
            self.1.lock().unwrap().extend(hints.iter().map(|h| h.id));
            Ok(())
        }
        async fn publish_marker(
            &self,
            _: &Lane,
            _: crate::hint::Marker,
        ) -> Result<(), TransportError> {
            Ok(())
        }
        fn tell(&self, _: Control) {}
        fn health(&self) -> crate::transport::TransportHealth {
            crate::transport::TransportHealth::default()
        }
    }

    fn ready() -> Ready {
        Ready {
            lane: Lane::default(),
            hint: Hint::new(JobId::generate()),
        }
    }

    async fn drained(hook: &CommitHook) {
        for _ in 0..1_000 {
            if hook.buffered() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} hints are still buffered", hook.buffered());
    }

    /// Protocol rule 16: the sweeper has begun to suspect what is older.
    #[tokio::test(start_paused = true)]
    async fn a_hint_that_grew_too_old_is_dropped_and_a_younger_one_is_published() {
        let publisher = Arc::new(Away(AtomicUsize::new(3), std::sync::Mutex::default()));
        let options = HookOptions {
            max_age: Duration::from_millis(600),
            ..HookOptions::default()
        };
        let hook = CommitHook::start(publisher.clone(), options);
        let (old, young) = (ready(), ready());
        hook.publish(Cause::Commit, vec![old]);
        tokio::time::sleep(Duration::from_millis(600)).await;
        hook.publish(Cause::Timer, vec![young.clone()]);
        drained(&hook).await;
        assert_eq!(*publisher.1.lock().unwrap(), [young.hint.id]);
    }

    /// More than what may be under way at once grows too old, and nothing is left that could wake the task.
    #[tokio::test(start_paused = true)]
    async fn however_many_hints_grew_too_old_the_next_one_is_published() {
        let publisher = Arc::new(Away(AtomicUsize::new(6), std::sync::Mutex::default()));
        let options = HookOptions {
            max_age: Duration::from_millis(600),
            in_flight: 2,
            batch: 2,
            ..HookOptions::default()
        };
        let hook = CommitHook::start(publisher.clone(), options);
        hook.publish(Cause::Commit, (0..50).map(|_| ready()).collect());
        tokio::time::sleep(Duration::from_millis(800)).await;
        let young = ready();
        hook.publish(Cause::Timer, vec![young.clone()]);
        drained(&hook).await;
        assert_eq!(*publisher.1.lock().unwrap(), [young.hint.id]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_outage_drops_nothing() {
        let publisher = Arc::new(Away(AtomicUsize::new(2), std::sync::Mutex::default()));
        let hook = CommitHook::start(publisher.clone(), HookOptions::default());
        let all: Vec<Ready> = (0..10).map(|_| ready()).collect();
        hook.publish(Cause::Commit, all.clone());
        drained(&hook).await;
        assert_eq!(publisher.1.lock().unwrap().len(), all.len());
    }

    #[tokio::test]
    async fn a_full_buffer_drops_and_never_waits() {
        let publisher = Arc::new(Away(
            AtomicUsize::new(usize::MAX),
            std::sync::Mutex::default(),
        ));
        let options = HookOptions {
            buffer: 5,
            ..HookOptions::default()
        };
        let hook = CommitHook::start(publisher, options);
        for _ in 0..50 {
            hook.publish(Cause::Commit, vec![ready()]);
        }
        assert_eq!(hook.buffered(), 5);
    }

    fn entry(lane: &str, hints: usize) -> Entry {
        Entry {
            cause: Cause::Commit,
            since: Instant::now(),
            lane: Lane(lane.to_owned()),
            hints: (0..hints).map(|_| Hint::new(JobId::generate())).collect(),
        }
    }

    #[test]
    fn what_came_together_leaves_together() {
        let mut waiting = vec![entry("a", 3), entry("b", 2), entry("a", 4)];
        let publications = gather(&mut waiting, 10, 4);
        let sizes: Vec<_> = publications
            .iter()
            .map(|p| (&*p.lane.0, p.hints.len()))
            .collect();
        assert_eq!(sizes, [("a", 7), ("b", 2)]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_large_commit_is_cut_and_nothing_is_lost() {
        let mut waiting = vec![entry("a", 25)];
        let mut sent = 0;
        while !waiting.is_empty() {
            for publication in gather(&mut waiting, 10, 1) {
                assert!(publication.hints.len() <= 10);
                sent += publication.hints.len();
            }
        }
        assert_eq!(sent, 25);
    }
}
