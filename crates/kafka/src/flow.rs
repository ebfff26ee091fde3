//! Decides when a lane's client polls, pauses its partitions, and gives them up.
//!
//! ```text
//!            share held                     held for 200 ms
//!   polling ────────────► waiting for room ────────────────► partitions paused, polling events only
//!      ▲                     │ room                             │ half of the share is free
//!      └─────────────────────┴──────────────────────────────────┘
//! ```
//! A short wait does not pause, because a pause discards prefetched messages. When the caller
//! pauses the receiver (the node is saturated), the partitions are paused at once, and given up to
//! the group after [`release_after`](crate::KafkaOptions::release_after) (protocol rule 18).
//!
//! librdkafka (2.12) may report success and still drop an operation. Without these two rules a
//! client could wait for ever:
//! - **A pause and a resume are repeated.** A pause, a resume and the start of a fetch each take
//!   a version of the partition and then queue an operation, on different threads. An operation
//!   that is queued behind a newer one is dropped (`rd_kafka_toppar_op_serve`). A resume of a
//!   partition that is not paused does nothing.
//! - **A client that left its group does not join again.** A new client replaces it, without the
//!   partitions, positions and pauses of the first one.

use std::time::Duration;

use rdkafka::consumer::{Consumer as _, ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use crate::lane_client::LaneState;

/// The time for which the share is held before the partitions are paused.
const HOLD_AFTER: Duration = Duration::from_millis(200);
/// The wait before a failed resume or seek is repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// The interval at which a pause or a resume is repeated.
const REPEAT_EVERY: Duration = Duration::from_secs(1);
/// The longest wait until the state is checked again.
const LOOK_RARELY: Duration = Duration::from_secs(30);
/// The timeout of a seek.
const SEEK: Duration = Duration::from_millis(100);

/// The operations of a client that the flow needs.
pub(crate) trait Client {
    fn pause(&self, partitions: &TopicPartitionList) -> KafkaResult<()>;
    fn resume(&self, partitions: &TopicPartitionList) -> KafkaResult<()>;
    fn seek(&self, topic: &str, partition: i32, offset: i64) -> KafkaResult<()>;
    fn leave(&self);
}

impl<C: ConsumerContext + 'static> Client for StreamConsumer<C> {
    fn pause(&self, partitions: &TopicPartitionList) -> KafkaResult<()> {
        rdkafka::consumer::Consumer::pause(self, partitions)
    }

    fn resume(&self, partitions: &TopicPartitionList) -> KafkaResult<()> {
        rdkafka::consumer::Consumer::resume(self, partitions)
    }

    fn seek(&self, topic: &str, partition: i32, offset: i64) -> Result<(), KafkaError> {
        rdkafka::consumer::Consumer::seek(self, topic, partition, Offset::Offset(offset), SEEK)
    }

    fn leave(&self) {
        self.unsubscribe();
    }
}

/// See the [module](self).
pub(crate) struct Flow {
    release_after: Duration,
    full_since: Option<Instant>,
    paused_since: Option<Instant>,
    resumed_at: Option<Instant>,
    held_at: Option<Instant>,
    released: bool,
}

impl Flow {
    pub(crate) fn new(release_after: Duration) -> Self {
        Self {
            release_after,
            full_since: None,
            paused_since: None,
            resumed_at: None,
            held_at: None,
            released: false,
        }
    }

    /// Pauses, resumes, rewinds or leaves according to the assignment. Returns whether to poll and
    /// when to call again, or `None` if another client must replace this one.
    pub(crate) fn steer(
        &mut self,
        state: &LaneState,
        client: &impl Client,
        now: Instant,
    ) -> Option<(bool, Instant)> {
        let mut look_again = now + LOOK_RARELY;
        let (held, paused) = {
            let assignment = state.assignment();
            (assignment.held(), assignment.paused)
        };
        let full = held >= state.share();
        self.full_since = full.then(|| self.full_since.unwrap_or(now));
        self.paused_since = paused.then(|| self.paused_since.unwrap_or(now));

        if !paused {
            let mut assignment = state.assignment();
            let topic = assignment.topic.clone();
            if !assignment.rewind(|at, offset| client.seek(&topic, at, offset)) {
                look_again = look_again.min(now + AGAIN);
            }
        }
        let held_long = self.full_since.is_some_and(|at| now >= at + HOLD_AFTER);
        let forgotten = {
            let assignment = state.assignment();
            assignment.holding && assignment.leaks && held > state.share() / 2
        };
        if paused || held_long || forgotten {
            self.hold(state, client, now);
        } else if held <= state.share() / 2 {
            if self.released {
                return None;
            }
            look_again = look_again.min(self.let_flow(state, client, now));
        }
        if let Some(full_since) = self.full_since
            && !held_long
        {
            look_again = look_again.min(full_since + HOLD_AFTER);
        }
        if let Some(paused_since) = self.paused_since
            && !self.released
        {
            if now >= paused_since + self.release_after {
                tracing::info!(
                    lane = %state.lane,
                    "no slot was free for `KafkaOptions::release_after` (setting \
                     `kafka_release_after`); this node gives its partitions of the lane to other \
                     nodes"
                );
                client.leave();
                self.released = true;
            } else {
                look_again = look_again.min(paused_since + self.release_after);
            }
        }
        // Paused partitions deliver no messages, so the client is polled for its events.
        let holding = state.assignment().holding;
        Some((
            !full || holding,
            look_again.max(now + Duration::from_millis(1)),
        ))
    }

    /// Pauses the partitions. Repeats a pause after which messages still arrive.
    fn hold(&mut self, state: &LaneState, client: &impl Client, now: Instant) {
        let mut assignment = state.assignment();
        let was_forgotten =
            assignment.leaks && self.held_at.is_none_or(|at| now >= at + REPEAT_EVERY);
        if assignment.holding && !was_forgotten {
            return;
        }
        // Set before the call: messages that arrive from now on are requeued.
        assignment.holding = true;
        assignment.leaks = false;
        self.held_at = Some(now);
        let paused = assignment.all().and_then(|all| client.pause(&all));
        if let Err(error) = paused {
            tracing::debug!(lane = %state.lane, %error, "partitions could not be paused");
            assignment.leaks = true;
        }
    }

    /// Resumes the partitions. Returns the time to resume again.
    fn let_flow(&mut self, state: &LaneState, client: &impl Client, now: Instant) -> Instant {
        let mut assignment = state.assignment();
        if let Some(at) = self.resumed_at
            && !assignment.holding
            && now < at + REPEAT_EVERY
        {
            return at + REPEAT_EVERY;
        }
        match assignment.all().and_then(|all| client.resume(&all)) {
            Ok(()) => {
                assignment.holding = false;
                self.resumed_at = Some(now);
                now + REPEAT_EVERY
            }
            Err(error) => {
                tracing::debug!(lane = %state.lane, %error, "partitions could not be resumed yet");
                now + AGAIN
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use jobwire_core::job::Lane;
    use tokio::sync::Notify;

    use super::*;

    const RELEASE: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    /// A client that records the calls.
    #[derive(Default)]
    struct Noted(RefCell<Vec<&'static str>>);

    impl Noted {
        fn note(&self, what: &'static str) -> KafkaResult<()> {
            self.0.borrow_mut().push(what);
            Ok(())
        }

        fn take(&self) -> Vec<&'static str> {
            self.0.take()
        }
    }

    impl Client for Noted {
        fn pause(&self, _: &TopicPartitionList) -> KafkaResult<()> {
            self.note("pause")
        }

        fn resume(&self, _: &TopicPartitionList) -> KafkaResult<()> {
            self.note("resume")
        }

        fn seek(&self, _: &str, _: i32, _: i64) -> KafkaResult<()> {
            self.note("seek")
        }

        fn leave(&self) {
            let _ = self.note("leave");
        }
    }

    fn lane() -> LaneState {
        let epochs = Arc::new(AtomicU64::new(1));
        let arrived = Arc::new(Notify::new());
        LaneState::new(Lane::default(), 4, "topic".to_owned(), epochs, arrived)
    }

    #[test]
    fn a_resume_is_repeated_since_the_client_may_have_dropped_it() {
        let (state, client, now) = (lane(), Noted::default(), Instant::now());
        let mut flow = Flow::new(RELEASE);
        state.assignment().paused = true;
        assert!(flow.steer(&state, &client, now).is_some());
        assert_eq!(client.take(), ["pause"]);
        state.assignment().paused = false;
        let (_, look_again) = flow.steer(&state, &client, now).unwrap();
        assert_eq!((client.take(), look_again), (vec!["resume"], now + SECOND));
        assert!(flow.steer(&state, &client, now + SECOND / 2).is_some());
        assert!(client.take().is_empty());
        assert!(flow.steer(&state, &client, now + SECOND).is_some());
        assert_eq!(client.take(), ["resume"]);
    }

    #[test]
    fn a_pause_is_repeated_while_messages_arrive() {
        let (state, client, now) = (lane(), Noted::default(), Instant::now());
        let mut flow = Flow::new(RELEASE);
        let mut asked = |leaks: bool, since: Duration| {
            state.assignment().leaks |= leaks;
            assert!(flow.steer(&state, &client, now + since).is_some());
            client.take().len()
        };
        state.assignment().paused = true;
        assert_eq!(asked(false, Duration::ZERO), 1);
        assert_eq!(asked(true, SECOND / 2), 0, "not so soon");
        assert_eq!(asked(false, SECOND), 1);
        assert_eq!(asked(false, SECOND * 3), 0, "nothing arrives");
    }

    #[test]
    fn a_client_that_left_its_group_is_replaced_when_there_is_room() {
        let (state, client, now) = (lane(), Noted::default(), Instant::now());
        let mut flow = Flow::new(RELEASE);
        state.assignment().paused = true;
        assert!(flow.steer(&state, &client, now).is_some());
        assert!(flow.steer(&state, &client, now + RELEASE).is_some());
        assert_eq!(client.take(), ["pause", "leave"]);
        state.assignment().paused = false;
        assert!(flow.steer(&state, &client, now + RELEASE * 2).is_none());
        assert!(client.take().is_empty());
    }
}
