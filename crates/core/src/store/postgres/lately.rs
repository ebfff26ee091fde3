//! Whether something was seen a short while ago.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When something was seen last. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Lately(Arc<Mutex<Option<Instant>>>);

impl Lately {
    /// It is seen now.
    pub(super) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// It was seen within this time.
    pub(super) fn within(&self, time: Duration) -> bool {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_some_and(|seen| seen.elapsed() < time)
    }
}
