//! The number of jobs that a node locks so that the engine always has a next one.
//!
//! A job holds a slot of the node from its lock until the commit of its outcome. The engine runs it
//! only in between. With as many slots as executions at once, the engine would wait for each lock
//! and each commit. So the node has more slots. This part sets their number: it adds as many slots
//! as the engine ends jobs within [`AHEAD`].
//!
//! * **Short jobs** add up to seven times as many slots as there are executions at once. An engine
//!   that takes lists gets some of these jobs early, so that it has its next ones itself.
//! * **Long jobs** add none. A locked job that does not start would wait here, although another
//!   node may be free. Executions that have lasted for [`LONG`] do not count as ending soon.
//! * **A wrong estimate is corrected.** A job that was locked and has waited for an execution for
//!   [`GIVE_BACK`] is released ([`handler`](crate::handlers)).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jobwire_core::SlotLimit;
use tokio::time::Instant;

/// The time of a lock and a commit, with the pause in which outcomes gather, and with room for
/// batches of both.
const AHEAD: Duration = Duration::from_millis(100);
/// The duration from which an execution is long.
const LONG: Duration = Duration::from_millis(250);
/// The time that a locked job waits for its execution.
pub(crate) const GIVE_BACK: Duration = Duration::from_secs(1);
/// The weight of the last execution in the average.
const WEIGHT: f64 = 0.1;
/// The number of slots for each execution at once.
const MOST: usize = 8;
/// The number of jobs within the engine for each execution at once, if it takes lists.
const WITHIN_ENGINE: usize = 3;

/// Sets the slots of a node according to the executions of its jobs.
#[derive(Debug)]
pub(crate) struct Pace {
    at_once: usize,
    limit: SlotLimit,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The average duration, in seconds.
    average: Option<f64>,
    /// The start times of the executions under way.
    running: Vec<Instant>,
}

impl Pace {
    /// Returns the pace of an engine with this number of executions at once.
    pub(crate) fn new(at_once: usize) -> Self {
        let at_once = at_once.max(1);
        Self {
            at_once,
            limit: SlotLimit::new(at_once),
            seen: Mutex::default(),
        }
    }

    /// Returns the slots that the node uses now.
    pub(crate) fn limit(&self) -> &SlotLimit {
        &self.limit
    }

    /// Returns the largest number of slots.
    pub(crate) fn most(&self) -> usize {
        self.at_once.saturating_mul(MOST)
    }

    /// Returns the number of jobs that may be within an engine that takes lists.
    pub(crate) fn within_engine(&self) -> usize {
        let most = self.at_once.saturating_mul(WITHIN_ENGINE);
        self.limit.slots().clamp(self.at_once, most)
    }

    /// Begins an execution. It lasts until the result is dropped.
    pub(crate) fn begin(&self) -> Paced<'_> {
        let began = Instant::now();
        let mut seen = self.seen();
        seen.running.push(began);
        self.set(&seen);
        Paced {
            pace: self,
            began,
            took: None,
        }
    }

    /// Counts again the executions that have become long.
    pub(crate) fn look(&self) {
        self.set(&self.seen());
    }

    /// A poisoned lock means that a thread panicked between whole operations. The numbers are still
    /// right.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, began: Instant, took: Option<Duration>) {
        let mut seen = self.seen();
        if let Some(place) = seen.running.iter().position(|it| *it == began) {
            seen.running.swap_remove(place);
        }
        let took = took.unwrap_or_else(|| began.elapsed()).as_secs_f64();
        let average = seen.average.unwrap_or(took);
        seen.average = Some(average + (took - average) * WEIGHT);
        self.set(&seen);
    }

    fn set(&self, seen: &Seen) {
        let now = Instant::now();
        let running = seen.running.iter();
        let long = running.filter(|it| now.duration_since(**it) >= LONG);
        let flowing = self.at_once.saturating_sub(long.count());
        let more = ahead(flowing, seen.average);
        self.limit.set(self.at_once + more);
    }
}

/// Returns the number of jobs to lock ahead of `flowing` executions that take so many seconds.
fn ahead(flowing: usize, average: Option<f64>) -> usize {
    let most = flowing.saturating_mul(MOST - 1);
    let Some(average) = average else { return 0 };
    let ended = flowing as f64 * AHEAD.as_secs_f64() / average.max(1e-3);
    (ended.min(most as f64)) as usize
}

/// An execution under way.
#[derive(Debug)]
pub(crate) struct Paced<'a> {
    pace: &'a Pace,
    began: Instant,
    took: Option<Duration>,
}

impl Paced<'_> {
    /// Ends the execution. It took this time, without its wait within the engine; `None` for the
    /// time since its beginning.
    pub(crate) fn end(mut self, took: Option<Duration>) {
        self.took = took;
    }
}

impl Drop for Paced<'_> {
    fn drop(&mut self) {
        self.pace.end(self.began, self.took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn execute(pace: &Pace, took: Duration, times: usize) {
        for _ in 0..times {
            let execution = pace.begin();
            tokio::time::advance(took).await;
            drop(execution);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn short_jobs_are_locked_ahead_and_long_ones_are_not() {
        let pace = Pace::new(8);
        assert_eq!((pace.limit().slots(), pace.most()), (8, 64));
        execute(&pace, Duration::from_millis(5), 50).await;
        assert_eq!((pace.limit().slots(), pace.within_engine()), (64, 24));
        execute(&pace, Duration::from_millis(100), 100).await;
        assert!((15..=17).contains(&pace.limit().slots()));
        execute(&pace, Duration::from_secs(60), 100).await;
        assert_eq!((pace.limit().slots(), pace.within_engine()), (8, 8));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_the_engine_tells_counts() {
        let pace = Pace::new(8);
        let execution = pace.begin();
        tokio::time::advance(Duration::from_secs(1)).await;
        execution.end(Some(Duration::from_millis(5)));
        assert_eq!(pace.limit().slots(), 64, "it waited, and was short");
    }

    #[tokio::test(start_paused = true)]
    async fn executions_that_have_become_long_count_no_more() {
        let pace = Pace::new(4);
        execute(&pace, Duration::from_millis(5), 50).await;
        assert_eq!(pace.limit().slots(), 32);
        let long: Vec<_> = (0..3).map(|_| pace.begin()).collect();
        assert_eq!(pace.limit().slots(), 32);
        tokio::time::advance(LONG).await;
        pace.look();
        assert_eq!(pace.limit().slots(), 11, "one of four executions flows");
        drop(long);
    }
}
