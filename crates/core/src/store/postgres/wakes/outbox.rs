//! The messages that wait to be sent: the wakes of a moment, joined by lane, and control messages.

use tokio::sync::watch;

use super::{Lanes, message};
use crate::job::Lane;
use crate::transport::{Control, TransportError};

/// Maximum number of lanes in one batch. Further ones are left to the leader.
const MOST_LANES: usize = 4_096;
/// Maximum number of texts of control messages that wait. Further messages are dropped.
const MOST_TEXTS: usize = 1_024;

/// The result of sending a batch, once it is known.
pub(super) type Sent = watch::Sender<Option<Result<(), TransportError>>>;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Outbox {
    lanes: Lanes,
    sent: Option<Sent>,
    texts: Vec<String>,
    /// The number of the last control message.
    message: u64,
    /// Whether a batch was taken and is not sent yet.
    is_sending: bool,
}

/// The messages of one statement.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) texts: Vec<String>,
    sent: Option<Sent>,
}

impl Batch {
    /// Passes the result on to those who wait for it.
    pub(super) fn ended(self, result: &Result<(), TransportError>) {
        if let Some(sent) = self.sent {
            sent.send_replace(Some(result.clone()));
        }
    }
}

impl Outbox {
    /// Adds ready jobs. Returns the result of their batch.
    pub(super) fn wake(
        &mut self,
        lane: &Lane,
        jobs: u64,
    ) -> watch::Receiver<Option<Result<(), TransportError>>> {
        if let Some(before) = self.add(lane) {
            *before = before.saturating_add(jobs);
        }
        let sent = self.sent.get_or_insert_with(|| watch::Sender::new(None));
        sent.subscribe()
    }

    /// Adds a lane in which jobs wait.
    pub(super) fn waits(&mut self, lane: &Lane) {
        self.add(lane);
    }

    fn add(&mut self, lane: &Lane) -> Option<&mut u64> {
        if self.lanes.len() >= MOST_LANES && !self.lanes.contains_key(lane) {
            return None;
        }
        Some(self.lanes.entry(lane.clone()).or_default())
    }

    /// Adds a control message. Returns false if it is dropped.
    pub(super) fn tell(&mut self, from: u64, control: &Control) -> bool {
        let Ok(written) = control.write() else {
            return false;
        };
        let Ok(text) = String::from_utf8(written) else {
            return false;
        };
        self.message += 1;
        let parts = message::parts(from, self.message, &text);
        let fits = self.texts.len() + parts.len() <= MOST_TEXTS;
        if fits {
            self.texts.extend(parts);
        }
        fits
    }

    pub(super) fn is_filled(&self) -> bool {
        !self.lanes.is_empty() || !self.texts.is_empty()
    }

    /// Returns whether messages wait, or are being sent.
    pub(super) fn is_busy(&self) -> bool {
        self.is_filled() || self.is_sending
    }

    /// Records that the batch is sent, or lost.
    pub(super) fn sent(&mut self) {
        self.is_sending = false;
    }

    /// Takes everything that waits.
    pub(super) fn take(&mut self, from: u64) -> Batch {
        self.is_sending = true;
        let lanes = std::mem::take(&mut self.lanes);
        let mut texts = message::wakes(from, rand::random(), &lanes);
        texts.append(&mut self.texts);
        Batch {
            texts,
            sent: self.sent.take(),
        }
    }

    /// Drops everything that waits, because the session is lost. Those who wait for the result see
    /// that.
    pub(super) fn clear(&mut self) {
        self.lanes.clear();
        self.texts.clear();
        self.sent = None;
        self.is_sending = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_of_a_moment_are_joined_and_share_their_result() {
        let mut outbox = Outbox::default();
        let lane = Lane("mail".to_owned());
        let first = outbox.wake(&lane, 2);
        let second = outbox.wake(&lane, 3);
        assert!(outbox.is_filled());
        let batch = outbox.take(1);
        assert!(batch.texts.len() == 1 && batch.texts[0].ends_with(" mail=5"));
        assert!(!outbox.is_filled() && outbox.is_busy());
        outbox.sent();
        assert!(!outbox.is_busy());
        batch.ended(&Ok(()));
        for result in [first, second] {
            assert!(matches!(*result.borrow(), Some(Ok(()))));
        }
        // Another batch has another result.
        let third = outbox.wake(&lane, 1);
        assert!(third.borrow().is_none());
        outbox.clear();
        assert!(third.has_changed().is_err(), "the session was lost");
    }

    #[test]
    fn a_flood_of_control_messages_and_lanes_is_bounded() {
        let mut outbox = Outbox::default();
        let told = (0..2 * MOST_TEXTS).filter(|_| outbox.tell(1, &Control::Look));
        assert_eq!(told.count(), MOST_TEXTS);
        for n in 0..2 * MOST_LANES {
            outbox.waits(&Lane(n.to_string()));
        }
        assert_eq!(outbox.lanes.len(), MOST_LANES);
    }
}
