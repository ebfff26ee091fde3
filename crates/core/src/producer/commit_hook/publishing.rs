//! The task that publishes waiting hints and awaits the result of each publication under way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::publication::{Publication, account, start_publication};
use super::{Entry, Inner};
use crate::runtime::supervisor;

/// The pause after a failure, before the next attempt.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause before the task is restarted, if it dies repeatedly.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The state of the task. It outlives a panic, so a panic loses no hints.
struct Work {
    queue: mpsc::Receiver<Entry>,
    begun: mpsc::Receiver<Publication>,
    waiting: Vec<Entry>,
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
            && self.queue.is_empty()
            && self.begun.is_empty()
    }

    async fn publish_all(&mut self, inner: &Arc<Inner>) {
        let mut not_before: Option<Instant> = None;
        let mut arrived = Vec::new();
        let in_flight = inner.options.in_flight.max(1);
        loop {
            inner.show_buffered();
            let paused = not_before.is_some();
            let room = in_flight.saturating_sub(self.under_way.len());
            if room > 0 && !paused {
                self.publish_some(inner, room);
            }
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
                        self.waiting.push(entry);
                        not_before = Some(Instant::now() + PAUSE);
                    }
                }
                Some(publication) = self.begun.recv() => self.under_way.push(publication),
                () = async { tokio::time::sleep_until(not_before.unwrap_or_else(Instant::now)).await }, if paused => {
                    not_before = None;
                }
                _ = self.queue.recv_many(&mut arrived, 256), if room > 0 && !paused && self.waiting.is_empty() && !self.queue.is_closed() => {
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

    /// Publishes all waiting hints in as few publications as possible, at most `room`.
    fn publish_some(&mut self, inner: &Arc<Inner>, room: usize) {
        while let Ok(entry) = self.queue.try_recv() {
            self.waiting.push(entry);
        }
        // Drops all stale hints first. If hints remain, a publication is under way, and only its
        // end wakes this task.
        self.waiting.retain(|entry| {
            let stale = entry.since.elapsed() > inner.options.max_age;
            if stale {
                inner.drop_stale(entry);
            }
            !stale
        });
        let batch = inner.options.batch.max(1);
        for entry in gather(&mut self.waiting, batch, room) {
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
