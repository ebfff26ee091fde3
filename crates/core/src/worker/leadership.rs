//! The state that the leading tasks of a node share.

use tokio::sync::watch;

use crate::worker::next_timer::NextTimer;

/// The lead of a node, and the next wakes of its timer task and of the task of periodic jobs.
pub(crate) struct Leadership {
    pub(crate) leads: watch::Sender<bool>,
    pub(crate) next_timer: NextTimer,
    pub(crate) next_periodic: NextTimer,
}

impl Leadership {
    /// Returns the state of a node that does not lead.
    pub(crate) fn none() -> Self {
        Self {
            leads: watch::Sender::new(false),
            next_timer: NextTimer::new(),
            next_periodic: NextTimer::new(),
        }
    }
}
