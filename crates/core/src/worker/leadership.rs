//! The state that the leading tasks of a node share.

use tokio::sync::watch;

use crate::worker::next_timer::NextTimer;

/// The lead of a node, and the next wake of its timer task.
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
