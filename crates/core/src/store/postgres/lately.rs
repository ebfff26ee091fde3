//! Remembers whether an event happened recently.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time of the last event. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Lately(Arc<Mutex<Option<Instant>>>);

impl Lately {
    /// Notes that the event happens now.
    pub(super) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns whether the event happened within this time.
    pub(super) fn within(&self, time: Duration) -> bool {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_some_and(|seen| seen.elapsed() < time)
    }
}
