//! The messages that wait to be sent: the wakes of a moment, joined by lane, the earliest new timer, and
//! other control messages.

use chrono::{DateTime, Utc};
use tokio::sync::watch;

use super::{Lanes, message};
use crate::job::Lane;
use crate::store::created::earliest;
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
    /// The earliest due date of the timers that the leader has not been told of. It outlasts a lost session:
    /// nothing else tells a leader in another process.
    timer: Option<DateTime<Utc>>,
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
    timer: Option<DateTime<Utc>>,
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
        if let Control::TimerSet { due } = control {
            self.timer = earliest(self.timer, Some(*due));
            return true;
        }
        let Some(parts) = self.parts(from, control) else {
            return false;
        };
        let fits = self.texts.len() + parts.len() <= MOST_TEXTS;
        if fits {
            self.texts.extend(parts);
        }
        fits
    }

    fn parts(&mut self, from: u64, control: &Control) -> Option<Vec<String>> {
        let text = String::from_utf8(control.write().ok()?).ok()?;
        self.message += 1;
        Some(message::parts(from, self.message, &text))
    }

    pub(super) fn is_filled(&self) -> bool {
        !self.lanes.is_empty() || self.timer.is_some() || !self.texts.is_empty()
    }

    /// Returns whether messages wait, or are being sent.
    pub(super) fn is_busy(&self) -> bool {
        self.is_filled() || self.is_sending
    }

    /// Records that the batch is sent, or lost.
    pub(super) fn sent(&mut self, batch: &Batch, result: &Result<(), String>) {
        self.is_sending = false;
        if result.is_err() {
            self.timer = earliest(self.timer, batch.timer);
        }
    }

    /// Takes everything that waits.
    pub(super) fn take(&mut self, from: u64) -> Batch {
        self.is_sending = true;
        let lanes = std::mem::take(&mut self.lanes);
        let mut texts = message::wakes(from, rand::random(), &lanes);
        let timer = self.timer.take();
        let set = timer.and_then(|due| self.parts(from, &Control::TimerSet { due }));
        texts.extend(set.into_iter().flatten());
        texts.append(&mut self.texts);
        Batch {
            texts,
            timer,
            sent: self.sent.take(),
        }
    }

    /// Drops what waits, but for the earliest timer, because the session is lost. Those who wait for the
    /// result see that.
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
        outbox.sent(&batch, &Ok(()));
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
    fn the_earliest_timer_is_told_until_it_is_sent() {
        let mut outbox = Outbox::default();
        let now = Utc::now();
        let tell = |outbox: &mut Outbox, seconds| {
            let due = now + chrono::Duration::seconds(seconds);
            assert!(outbox.tell(1, &Control::TimerSet { due }));
        };
        for seconds in [7, 5, 6] {
            tell(&mut outbox, seconds);
        }
        let first = outbox.take(1);
        assert_eq!((first.texts.len(), outbox.is_filled()), (1, false));
        tell(&mut outbox, 9);
        outbox.sent(&first, &Err("the session is lost".to_owned()));
        outbox.clear();
        let second = outbox.take(1);
        assert_eq!(second.timer, first.timer, "the earliest");
        outbox.sent(&second, &Ok(()));
        assert!(!outbox.is_busy());
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
