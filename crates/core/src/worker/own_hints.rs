//! Own hints: hints that reach the consumer without the broker.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use crate::hint::Ready;

/// The maximum number of waiting own hints; further ones go to the broker. All jobs that one leader
/// cycle rescues fit, so a rescued job does not queue behind a backlog.
pub(crate) const OWN_HINTS: usize = 8_192;
/// The channel of own hints. It stays open while the consumer is restarted.
pub(crate) type OwnHints = Arc<Mutex<mpsc::Receiver<OwnHint>>>;

/// A hint that did not come from the broker.
pub(crate) enum OwnHint {
    /// Waits behind the hints that are already here.
    InTurn(Ready),
    /// The job's holder has died. The hint goes to the front of its lane.
    Rescued(Ready),
    /// The job waited for a permit, which is reserved for a moment. Woken jobs and the other hints of
    /// their lane take turns: the job has waited through the lane before.
    Woken(Ready),
    /// Another node does not serve the job. The hint waits behind the hints that are already here,
    /// until a slot is free.
    Forwarded(Ready),
}

impl OwnHint {
    /// Returns the hint with its lane.
    pub(crate) fn ready(&self) -> &Ready {
        match self {
            Self::InTurn(ready)
            | Self::Rescued(ready)
            | Self::Woken(ready)
            | Self::Forwarded(ready) => ready,
        }
    }

    /// Returns the hint with its lane.
    pub(crate) fn into_ready(self) -> Ready {
        match self {
            Self::InTurn(ready)
            | Self::Rescued(ready)
            | Self::Woken(ready)
            | Self::Forwarded(ready) => ready,
        }
    }
}
