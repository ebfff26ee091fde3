//! The signs of life of a running handler: its heartbeats and its progress.
//!
//! They belong to the lock of the job and are created when they are first used, so a job whose
//! handler gives none, and whose type asks for none, pays nothing. The
//! [renewal](crate::worker::renewal) writes the progress of all jobs of the node by one statement at
//! a time, so a handler may report as often as it likes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::job::progress::Progress;

/// The signs of life of one handler.
pub(crate) struct LifeSigns {
    since: Instant,
    /// The microseconds from `since` to the last sign.
    last: AtomicU64,
    unwritten: Mutex<Option<Progress>>,
    /// Whether the database may have a row with the progress or the checkpoint of the job.
    has_row: AtomicBool,
}

impl LifeSigns {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            last: AtomicU64::new(0),
            unwritten: Mutex::default(),
            has_row: AtomicBool::new(false),
        }
    }

    /// Notes that the handler lives.
    pub(crate) fn give(&self) {
        let now = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns the time of the last sign.
    fn last(&self) -> Instant {
        self.since + Duration::from_micros(self.last.load(Ordering::Relaxed))
    }

    /// Waits until the handler has given no sign for this time.
    pub(crate) async fn silence(&self, limit: Duration) {
        loop {
            let Some(until) = self.last().checked_add(limit) else {
                return std::future::pending().await;
            };
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Locks the progress. A poisoned lock means that a thread panicked between whole operations.
    fn unwritten(&self) -> MutexGuard<'_, Option<Progress>> {
        self.unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the progress, which is written soon unless another one follows.
    pub(crate) fn report(&self, progress: Progress) {
        self.give();
        *self.unwritten() = Some(progress);
    }

    /// Takes the progress that is not written yet, to write it.
    pub(crate) fn take_unwritten(&self) -> Option<Progress> {
        let progress = self.unwritten().take()?;
        self.note_row();
        Some(progress)
    }

    /// Gives a progress back that could not be written, unless the handler has reported another one.
    pub(crate) fn not_written(&self, progress: Progress) {
        self.unwritten().get_or_insert(progress);
    }

    /// Records that the database may have a row of the job, which its end has to delete.
    pub(crate) fn note_row(&self) {
        self.has_row.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_row(&self) -> bool {
        self.has_row.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_begins_with_the_last_sign() {
        let signs = LifeSigns::new();
        let limit = Duration::from_secs(10);
        let began = Instant::now();
        let gives = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(6)).await;
                signs.give();
            }
        };
        tokio::join!(gives, signs.silence(limit));
        let took = began.elapsed();
        let expected = Duration::from_secs(28);
        let late = took.checked_sub(expected).expect("not before");
        assert!(late < Duration::from_millis(10), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_beyond_all_times_never_ends() {
        let signs = LifeSigns::new();
        let silence = signs.silence(Duration::MAX);
        let waited = tokio::time::timeout(Duration::from_secs(86_400), silence).await;
        assert!(waited.is_err());
    }

    #[test]
    fn the_latest_progress_is_written_and_again_if_it_could_not_be() {
        let signs = LifeSigns::new();
        assert!(signs.take_unwritten().is_none() && !signs.has_row());
        signs.report(Progress::percent(1));
        signs.report(Progress::percent(2));
        let taken = signs.take_unwritten().expect("reported");
        assert_eq!(taken, Progress::percent(2));
        assert!(signs.take_unwritten().is_none() && signs.has_row());
        signs.not_written(taken.clone());
        assert_eq!(signs.take_unwritten(), Some(taken.clone()));
        signs.report(Progress::percent(3));
        signs.not_written(taken);
        assert_eq!(signs.take_unwritten(), Some(Progress::percent(3)));
    }
}
