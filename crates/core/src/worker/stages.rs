//! The stages that a job passes before it starts.

use chrono::{DateTime, Utc};
use tokio::time::Instant;

/// The times at which a job passed its stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    pub(crate) committed_at: Option<DateTime<Utc>>,
    /// The arrival of the answer to the lock, by the clock of this machine and by the monotonic one.
    pub(crate) locked_at: DateTime<Utc>,
    pub(crate) answered: Instant,
}

impl Stages {
    /// Returns the stages of a job whose lock was answered now, and whose commit is not known.
    pub(crate) fn locked_now() -> Self {
        Self {
            committed_at: None,
            locked_at: Utc::now(),
            answered: Instant::now(),
        }
    }
}
