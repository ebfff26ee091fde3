//! The order and times in which jobs are created.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::starts::Record;

/// Gives the numbers of jobs to several clients, a batch at a time.
pub(super) struct Plan {
    first: u32,
    next: AtomicU32,
    end: u32,
    batch: u32,
    until: Option<Instant>,
    ahead: Option<(u32, Arc<Record>)>,
}

impl Plan {
    /// Plans these jobs, `batch` in a transaction.
    pub(super) fn of(jobs: Range<u32>, batch: u32) -> Self {
        Self {
            first: jobs.start,
            next: AtomicU32::new(jobs.start),
            end: jobs.end,
            batch: batch.max(1),
            until: None,
            ahead: None,
        }
    }

    /// Gives no batch after `end`, except the first: a run needs jobs.
    pub(super) fn until(mut self, end: Instant) -> Self {
        self.until = Some(end);
        self
    }

    /// Gives no batch while `most` jobs wait to start.
    pub(super) fn ahead(mut self, most: u32, record: Arc<Record>) -> Self {
        self.ahead = Some((most, record));
        self
    }

    /// Returns the number after the last job that was given to a client.
    pub(super) fn reached(&self) -> u32 {
        self.next.load(Ordering::SeqCst)
    }

    /// Returns the next batch; `None` after the last one.
    pub(super) async fn next(&self) -> Option<Range<u32>> {
        loop {
            let over = self.until.is_some_and(|until| Instant::now() >= until);
            if over && self.reached() > self.first {
                return None;
            }
            match &self.ahead {
                Some((most, record))
                    if self.reached().saturating_sub(record.started()) >= *most =>
                {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                _ => break,
            }
        }
        let end = |start: u32| start.saturating_add(self.batch).min(self.end);
        let take = |start: u32| (start < self.end).then(|| end(start));
        let start = self
            .next
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .ok()?;
        Some(start..end(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_job_is_handed_out_once_and_the_last_batch_is_what_is_left() {
        let plan = Plan::of(3..10, 3);
        let mut batches = Vec::new();
        while let Some(batch) = plan.next().await {
            batches.push(batch);
        }
        assert_eq!(batches, [3..6, 6..9, 9..10]);
        assert_eq!(plan.reached(), 10);
        let over = Plan::of(0..10, 3).until(Instant::now());
        assert_eq!((over.next().await, over.next().await), (Some(0..3), None));
    }
}
