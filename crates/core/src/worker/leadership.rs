//! What the tasks of a node that may lead tell each other.

use tokio::sync::watch;

use crate::worker::next_timer::NextTimer;

/// Whether the node leads, and when its timer task wakes.
pub(crate) struct Leadership {
    pub(crate) leads: watch::Sender<bool>,
    pub(crate) next_timer: NextTimer,
}

impl Leadership {
    /// Returns the state of a node that does not lead.
    pub(crate) fn none() -> Self {
        Self {
            leads: watch::Sender::new(false),
            next_timer: NextTimer::new(),
        }
    }
}
