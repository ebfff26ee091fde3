//! The inbox of the consumer: the hints and questions that reach it without the broker.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::hint::Ready;
use crate::worker::held_hints::Questions;
use crate::worker::own_hints::{OWN_HINTS, OwnHint};

/// The hints and questions that reach the consumer without the broker.
pub(crate) struct Inbox {
    own_hints: mpsc::Sender<OwnHint>,
    /// The questions for the hints that the consumer holds.
    pub(crate) questions: Arc<Questions>,
}

impl Inbox {
    /// Returns an inbox, and the other end of its channel of own hints.
    pub(crate) fn open() -> (Self, mpsc::Receiver<OwnHint>) {
        let (own_hints, hints) = mpsc::channel(OWN_HINTS);
        let inbox = Self {
            own_hints,
            questions: Arc::default(),
        };
        (inbox, hints)
    }

    /// Tries a hint on this node first. Returns the hint if there is no room.
    pub(crate) fn try_here(&self, ready: Ready) -> Option<Ready> {
        self.put(OwnHint::InTurn(ready))
    }

    /// Tries a hint on this node, before the other hints of its lane. Returns the hint if there is
    /// no room.
    pub(crate) fn rescue_here(&self, ready: Ready) -> Option<Ready> {
        self.put(OwnHint::Rescued(ready))
    }

    /// Takes the hint of a job that another node does not serve. Returns it if there is no room.
    pub(crate) fn forwarded_here(&self, ready: Ready) -> Option<Ready> {
        // Half of the room is for rescued jobs.
        if self.own_hints.capacity() < OWN_HINTS / 2 {
            return Some(ready);
        }
        self.put(OwnHint::Forwarded(ready))
    }

    fn put(&self, hint: OwnHint) -> Option<Ready> {
        let sent = self.own_hints.try_send(hint);
        sent.err().map(|error| error.into_inner().into_ready())
    }
}
