//! Throttled log lines: a flood of bad input does not become a flood of lines.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum time between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// Decides when a line is written.
#[derive(Debug, Default)]
pub struct LogThrottle {
    last: Option<Instant>,
    held_back: u64,
}

impl LogThrottle {
    /// Returns the number of lines that were held back since the last one, or `None` if this one is
    /// held back too.
    pub fn now(&mut self) -> Option<u64> {
        if self.last.is_some_and(|last| last.elapsed() < EVERY) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.held_back))
    }
}

/// The throttled lines of one node, each under its own name.
#[derive(Debug, Default)]
pub(crate) struct ThrottledLines(Mutex<HashMap<&'static str, LogThrottle>>);

impl ThrottledLines {
    /// Returns the number of lines of this name that were held back since the last one, or `None`
    /// if this one is held back too.
    pub(crate) fn now(&self, line: &'static str) -> Option<u64> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.entry(line).or_default().now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_written_and_the_rest_counted() {
        let mut throttle = LogThrottle::default();
        assert_eq!(throttle.now(), Some(0));
        assert_eq!(throttle.now(), None);
        throttle.last = Instant::now().checked_sub(EVERY);
        assert_eq!(throttle.now(), Some(1));
    }

    #[test]
    fn each_line_is_held_back_for_itself() {
        let lines = ThrottledLines::default();
        assert_eq!(lines.now("a"), Some(0));
        assert_eq!(lines.now("a"), None);
        assert_eq!(lines.now("b"), Some(0));
    }
}
