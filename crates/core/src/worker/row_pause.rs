//! The pause of row locks after a [batch](crate::worker::row_batch) was lost.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time for which only leases are used after a batch was lost.
const PAUSE: Duration = Duration::from_secs(30);

/// A pause of row locks after a lost batch.
#[derive(Default)]
pub(crate) struct RowPause(Mutex<Option<Instant>>);

impl RowPause {
    /// Returns whether row locks may be used.
    pub(crate) fn is_over(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_none_or(|until| Instant::now() >= until)
    }

    /// Begins the pause, or extends it.
    pub(crate) fn begin(&self) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Some(Instant::now() + PAUSE);
    }
}
