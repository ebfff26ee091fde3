//! Jobs that the tap reported before their rows were visible.
//!
//! PostgreSQL streams a commit when its record is in the WAL, and shows its rows to other sessions
//! a moment later, usually within a millisecond (measured in prototypes: 11.7 ms at worst). Such a
//! job is tried again at growing intervals. If its row stays invisible, it was perhaps deleted, or
//! its commit waits for a standby. The leader cycle then finds it.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::counter;
use tokio::time::Instant;

use crate::job::JobId;
use crate::telemetry::metrics as m;

/// The waits before the tries.
const WAITS: [Duration; 6] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
];
/// Maximum number of jobs that wait. The leader cycle finds the others.
const MOST: usize = 10_000;

/// A job that the tap reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) id: JobId,
    /// The time of its commit.
    pub(super) at: DateTime<Utc>,
    /// Number of tries at which its row was not visible.
    pub(super) tries: usize,
}

/// The jobs that wait, one queue for each number of tries. Within a queue all wait equally long, so
/// the first one is due first.
#[derive(Debug, Default)]
pub(super) struct Early {
    queues: [VecDeque<(Instant, Reported)>; WAITS.len()],
    waiting: usize,
}

impl Early {
    /// Adds jobs whose rows were not visible once more.
    pub(super) fn add(&mut self, jobs: impl Iterator<Item = Reported>) {
        let now = Instant::now();
        let mut left = 0;
        for mut job in jobs {
            let place = self.queues.get_mut(job.tries).zip(WAITS.get(job.tries));
            match place {
                Some((queue, wait)) if self.waiting < MOST => {
                    job.tries += 1;
                    self.waiting += 1;
                    queue.push_back((now + *wait, job));
                }
                _ => left += 1,
            }
        }
        if left > 0 {
            counter!(m::TAP_EARLY, "outcome" => "left").increment(left);
        }
    }

    /// Returns the time at which the next job is tried again.
    pub(super) fn next(&self) -> Option<Instant> {
        let firsts = self.queues.iter().filter_map(VecDeque::front);
        firsts.map(|(due, _)| *due).min()
    }

    /// Takes the jobs that are due.
    pub(super) fn take_due(&mut self) -> Vec<Reported> {
        let now = Instant::now();
        let mut due = Vec::new();
        for queue in &mut self.queues {
            while queue.front().is_some_and(|(at, _)| *at <= now) {
                due.extend(queue.pop_front().map(|(_, job)| job));
            }
        }
        self.waiting -= due.len();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Reported {
        Reported {
            id: JobId::generate(),
            at: Utc::now(),
            tries: 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_is_not_visible_is_tried_again_six_times_and_then_left() {
        let mut early = Early::default();
        let began = Instant::now();
        let mut times = Vec::new();
        early.add(std::iter::once(job()));
        while let Some(next) = early.next() {
            tokio::time::sleep_until(next).await;
            times.push(began.elapsed().as_millis());
            let due = early.take_due();
            early.add(due.into_iter());
        }
        assert_eq!(times.len(), 6, "{times:?}");
        assert!(
            times.last().is_some_and(|last| (31..60).contains(last)),
            "{times:?}"
        );
        assert_eq!(early.waiting, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_jobs_that_wait_is_limited() {
        let mut early = Early::default();
        early.add((0..MOST + 5).map(|_| job()));
        assert_eq!(early.waiting, MOST);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(early.take_due().len(), MOST);
        assert_eq!(early.next(), None);
    }
}
