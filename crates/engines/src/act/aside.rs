//! Timers whose move the database refused. They are set aside for a minute, so that they delay no
//! timer behind them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The pause before such a timer is tried again.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of timers that are set aside at a time.
const MOST: usize = 1_000;

/// The ids of these timers, each with the time of its next try.
#[derive(Debug, Default)]
pub(super) struct Aside(Mutex<HashMap<String, Instant>>);

impl Aside {
    /// A poisoned lock means that a thread panicked between whole operations.
    fn timers(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a timer aside.
    pub(super) fn put(&self, timer: String) {
        let mut timers = self.timers();
        if timers.len() < MOST {
            timers.insert(timer, Instant::now() + PAUSE);
        }
    }

    /// Returns the timers that are set aside now.
    pub(super) fn ids(&self) -> Vec<String> {
        let mut timers = self.timers();
        let now = Instant::now();
        timers.retain(|_, until| *until > now);
        timers.keys().cloned().collect()
    }

    /// Returns the time until one of them is tried again; `None` if there is none.
    pub(super) fn wait(&self) -> Option<Duration> {
        let first = self.timers().values().min().copied();
        first.map(|first| first.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_is_set_aside_for_a_minute() {
        let aside = Aside::default();
        assert_eq!((aside.ids(), aside.wait()), (Vec::new(), None));
        aside.put("a".to_owned());
        tokio::time::advance(PAUSE / 2).await;
        aside.put("b".to_owned());
        assert_eq!(aside.ids().len(), 2);
        assert_eq!(aside.wait(), Some(PAUSE / 2));
        tokio::time::advance(PAUSE / 2).await;
        assert_eq!(aside.ids(), ["b"]);
    }

    #[test]
    fn their_number_is_bounded() {
        let aside = Aside::default();
        for timer in 0..=MOST {
            aside.put(timer.to_string());
        }
        assert_eq!(aside.ids().len(), MOST);
    }
}
