//! The stages that a job passes before it starts.

use chrono::{DateTime, Utc};

/// The times at which a job passed its stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    pub(crate) committed_at: Option<DateTime<Utc>>,
    pub(crate) locked_at: DateTime<Utc>,
}
