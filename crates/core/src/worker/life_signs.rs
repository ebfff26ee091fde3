//! The signs of life of a running handler: the time of its last heartbeat.
//!
//! They belong to the lock of the job and are created when they are first used, so a job whose
//! handler gives none, and whose type asks for none, pays nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The signs of life of one handler.
pub(crate) struct LifeSigns {
    since: Instant,
    /// The microseconds from `since` to the last sign.
    last: AtomicU64,
}

impl LifeSigns {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            last: AtomicU64::new(0),
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
}
