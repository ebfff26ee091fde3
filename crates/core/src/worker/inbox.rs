//! The inbox of the consumer: the hints and questions that reach it without the broker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::hint::Ready;
use crate::job::{JobId, Lane};
use crate::worker::held_hints::Questions;
use crate::worker::own_hints::{OWN_HINTS, OwnHint};

/// The hints and questions that reach the consumer without the broker.
pub(crate) struct Inbox {
    own_hints: mpsc::Sender<OwnHint>,
    /// The jobs of the hints in the channel. They count as held by this node.
    in_channel: Mutex<HashMap<JobId, Lane>>,
    /// The questions for the hints that the consumer holds.
    pub(crate) questions: Arc<Questions>,
}

impl Inbox {
    /// Returns an inbox, and the other end of its channel of own hints.
    pub(crate) fn open() -> (Self, mpsc::Receiver<OwnHint>) {
        let (own_hints, hints) = mpsc::channel(OWN_HINTS);
        let inbox = Self {
            own_hints,
            in_channel: Mutex::default(),
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

    /// Tries the hint of a job that has a reserved permit on this node, in turn with the other hints
    /// of its lane. Returns the hint if there is no room.
    pub(crate) fn woken_here(&self, ready: Ready) -> Option<Ready> {
        // Half of the room is for rescued jobs.
        if self.own_hints.capacity() < OWN_HINTS / 2 {
            return Some(ready);
        }
        self.put(OwnHint::Woken(ready))
    }

    /// Takes the hint of a job that another node does not serve. Returns it if there is no room.
    pub(crate) fn forwarded_here(&self, ready: Ready) -> Option<Ready> {
        // Half of the room is for rescued jobs.
        if self.own_hints.capacity() < OWN_HINTS / 2 {
            return Some(ready);
        }
        self.put(OwnHint::Forwarded(ready))
    }

    /// Returns whether the consumer has ended, as in a node that stops.
    pub(crate) fn is_closed(&self) -> bool {
        self.own_hints.is_closed()
    }

    /// Returns the jobs of a lane whose hints the consumer has not taken yet.
    pub(crate) fn waiting(&self, lane: &Lane) -> Vec<JobId> {
        let waiting = self.in_channel();
        let waiting = waiting.iter().filter(|(_, of)| *of == lane);
        waiting.map(|(job, _)| *job).collect()
    }

    /// Records that the consumer has taken the hint of this job.
    pub(crate) fn taken(&self, job: JobId) {
        self.in_channel().remove(&job);
    }

    fn put(&self, hint: OwnHint) -> Option<Ready> {
        let (job, lane) = {
            let ready = hint.ready();
            (ready.hint.id, ready.lane.clone())
        };
        // Entered first, because the consumer may take the hint at once.
        self.in_channel().insert(job, lane);
        let refused = self.own_hints.try_send(hint).err()?;
        self.taken(job);
        Some(refused.into_inner().into_ready())
    }

    fn in_channel(&self) -> MutexGuard<'_, HashMap<JobId, Lane>> {
        self.in_channel
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Hint;

    #[test]
    fn a_hint_counts_as_held_until_the_consumer_has_taken_it() {
        let (inbox, mut hints) = Inbox::open();
        let lane = Lane("mail".to_owned());
        let job = JobId::generate();
        let ready = |job| Ready {
            lane: lane.clone(),
            hint: Hint::new(job),
        };
        assert!(inbox.try_here(ready(job)).is_none());
        assert_eq!(inbox.waiting(&lane), [job]);
        assert!(inbox.waiting(&Lane::default()).is_empty());
        let taken = hints.try_recv().unwrap();
        inbox.taken(taken.ready().hint.id);
        assert!(inbox.waiting(&lane).is_empty());
        drop(hints);
        assert!(inbox.try_here(ready(job)).is_some());
        assert!(inbox.waiting(&lane).is_empty(), "it was refused");
        assert!(inbox.is_closed());
    }
}
