//! The task that publishes waiting hints and awaits the result of each publication under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::publication::{Publication, account, start_publication};
use super::{Entry, Inner};
use crate::job::Lane;
use crate::runtime::supervisor;

/// The pause of a lane after a failure, before its next attempt. The other lanes go on: any creator may
/// name a lane that nobody receives.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause before the task is restarted, if it dies repeatedly.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The state of the task. It outlives a panic, so a panic loses no hints.
struct Work {
    queue: mpsc::Receiver<Entry>,
    begun: mpsc::Receiver<Publication>,
    waiting: Vec<Entry>,
    /// Hints of lanes that pause. They come after the others.
    again: Vec<Entry>,
    /// The ends of the pauses.
    paused: HashMap<Lane, Instant>,
    under_way: FuturesUnordered<Publication>,
}

/// Publishes until the hook is closed.
pub(super) async fn keep_publishing(
    inner: Arc<Inner>,
    queue: mpsc::Receiver<Entry>,
    begun: mpsc::Receiver<Publication>,
) {
    let mut work = Work {
        queue,
        begun,
        waiting: Vec::new(),
        again: Vec::new(),
        paused: HashMap::new(),
        under_way: FuturesUnordered::new(),
    };
    let mut pause = PAUSE;
    while supervisor::survived("hook", work.publish_all(&inner))
        .await
        .is_none()
    {
        inner.died.store(true, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        inner.died.store(false, Ordering::Relaxed);
    }
    inner.stopped.cancel();
}

impl Work {
    fn is_empty(&self) -> bool {
        self.under_way.is_empty()
            && self.waiting.is_empty()
            && self.again.is_empty()
            && self.queue.is_empty()
            && self.begun.is_empty()
    }

    async fn publish_all(&mut self, inner: &Arc<Inner>) {
        let mut arrived = Vec::new();
        let in_flight = inner.options.in_flight.max(1);
        loop {
            inner.show_buffered();
            let room = in_flight.saturating_sub(self.under_way.len());
            if room > 0 {
                self.publish_some(inner, room);
            }
            // Without room the end of a publication comes first.
            let next = self.paused.values().min().copied();
            let next = next.filter(|_| self.under_way.len() < in_flight);
            if self.is_empty() && inner.stop.is_cancelled() {
                self.close().await;
                if self.is_empty() {
                    return;
                }
            }
            tokio::select! {
                biased;
                Some(ended) = self.under_way.next(), if !self.under_way.is_empty() => {
                    if let Some(entry) = account(inner, ended) {
                        self.paused.insert(entry.lane.clone(), Instant::now() + PAUSE);
                        self.again.push(entry);
                    }
                }
                Some(publication) = self.begun.recv() => self.under_way.push(publication),
                () = async { tokio::time::sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {}
                _ = self.queue.recv_many(&mut arrived, 256), if room > 0 && self.waiting.is_empty() && !self.queue.is_closed() => {
                    self.waiting.append(&mut arrived);
                }
                () = inner.stop.cancelled(), if !inner.stop.is_cancelled() => {}
            }
        }
    }

    /// Closes the channels and takes the remaining entries.
    async fn close(&mut self) {
        self.queue.close();
        self.begun.close();
        while let Some(entry) = self.queue.recv().await {
            self.waiting.push(entry);
        }
        while let Some(publication) = self.begun.recv().await {
            self.under_way.push(publication);
        }
    }

    /// Publishes the waiting hints of lanes that do not pause in as few publications as possible, at
    /// most `room`.
    fn publish_some(&mut self, inner: &Arc<Inner>, room: usize) {
        while let Ok(entry) = self.queue.try_recv() {
            self.waiting.push(entry);
        }
        // Drops all stale hints first. If hints remain, a publication is under way, and only its
        // end wakes this task.
        let is_fresh = |entry: &mut Entry| {
            let stale = entry.since.elapsed() > inner.options.max_age;
            if stale {
                inner.drop_stale(entry);
            }
            !stale
        };
        self.waiting.retain_mut(is_fresh);
        self.again.retain_mut(is_fresh);
        let now = Instant::now();
        self.paused.retain(|_, until| *until > now);
        let pauses = |entry: &mut Entry| self.paused.contains_key(&entry.lane);
        self.again.extend(self.waiting.extract_if(.., pauses));
        let batch = inner.options.batch.max(1);
        let mut publications = gather(&mut self.waiting, batch, room);
        let room = room - publications.len();
        if room > 0 && !self.again.is_empty() {
            let open = |entry: &mut Entry| !self.paused.contains_key(&entry.lane);
            let mut open: Vec<Entry> = self.again.extract_if(.., open).collect();
            publications.extend(gather(&mut open, batch, room));
            self.again.append(&mut open);
        }
        for entry in publications {
            self.under_way.push(start_publication(inner, entry));
        }
    }
}

/// Joins hints for the same lane and with the same cause, oldest first, into at most `count`
/// publications.
pub(super) fn gather(waiting: &mut Vec<Entry>, batch: usize, count: usize) -> Vec<Entry> {
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
