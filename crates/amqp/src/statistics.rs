//! Metrics of the broker: its round trip time, and the messages that wait in the lanes.
//!
//! Every [`statistics_interval`](crate::AmqpOptions::statistics_interval) the task times an empty
//! request on each connection. It then reads the length of the queue of each lane that this process
//! uses, by a passive declaration, which needs no right, changes nothing and costs the broker some
//! microseconds. Both use channels that carry no hints. Each node asks at its own random time; a
//! broker answers thousands of such requests a second.
//!
//! An unknown value is NaN, never an old number. The values of a lane are unknown while the broker
//! is away, and when this process no longer uses the lane.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use jobwire_core::job::Lane;
use jobwire_core::runtime::supervisor::survived;
use jobwire_core::telemetry::metrics::{
    BROKER_ROUND_TRIP, BROKER_UNCONFIRMED, LANE_CONSUMERS, LANE_UNSETTLED, LANE_WAITING,
};
use jobwire_core::transport::TransportError;
use lapin::Channel;
use lapin::options::BasicQosOptions;
use rand::Rng;
use tokio::time::Instant;

use crate::connection::{Direction, Link};
use crate::publisher::LanePublishers;
use crate::session::Session;
use crate::topology::Topology;

/// The longest wait before the first round, so that a new process has values soon.
const FIRST: Duration = Duration::from_secs(1);

/// The number of received and unsettled messages of each lane, over all receivers of this process.
#[derive(Clone, Default)]
pub(crate) struct Unsettled(Arc<Mutex<BTreeMap<Lane, Weak<AtomicUsize>>>>);

impl Unsettled {
    /// Returns a new receiver's share of its lane's count.
    pub(crate) fn share(&self, lane: &Lane) -> Share {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total = lanes.get(lane).and_then(Weak::upgrade).unwrap_or_default();
        lanes.insert(lane.clone(), Arc::downgrade(&total));
        Share { total, counted: 0 }
    }

    /// Returns the count of each lane, `None` for a lane that has lost its last receiver since the
    /// last call. Such a lane is then removed.
    fn counts(&self) -> Vec<(Lane, Option<usize>)> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = lanes
            .iter()
            .map(|(lane, total)| {
                let total = total.upgrade();
                (
                    lane.clone(),
                    total.map(|total| total.load(Ordering::Relaxed)),
                )
            })
            .collect();
        lanes.retain(|_, total| total.strong_count() > 0);
        counts
    }
}

/// One receiver's part of its lane's count. Subtracts itself on drop.
pub(crate) struct Share {
    total: Arc<AtomicUsize>,
    counted: usize,
}

impl Share {
    /// Sets the receiver's number of unsettled messages.
    pub(crate) fn set(&mut self, now: usize) {
        if now >= self.counted {
            self.total.fetch_add(now - self.counted, Ordering::Relaxed);
        } else {
            self.total.fetch_sub(self.counted - now, Ordering::Relaxed);
        }
        self.counted = now;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The task that updates the metrics. See the [module](self).
pub(crate) struct Statistics {
    pub(crate) interval: Duration,
    pub(crate) topology: Topology,
    pub(crate) publishers: Arc<LanePublishers>,
    pub(crate) receive: Link,
    pub(crate) unsettled: Unsettled,
}

/// A channel for requests, kept as long as its session lives.
#[derive(Default)]
struct Line(Option<(u64, Channel)>);

impl Line {
    async fn channel(&mut self, session: &Session) -> Result<Channel, TransportError> {
        if let Some((number, channel)) = &self.0
            && *number == session.number
            && channel.status().connected()
        {
            return Ok(channel.clone());
        }
        let channel = session.channel().await?;
        self.0 = Some((session.number, channel.clone()));
        Ok(channel)
    }

    /// Records the time that the broker takes to answer a request that concerns no queue.
    async fn round_trip(
        &mut self,
        session: &Session,
        direction: Direction,
    ) -> Result<(), TransportError> {
        let channel = self.channel(session).await?;
        let asked = Instant::now();
        session
            .answer(async {
                let nothing = channel.basic_qos(1, BasicQosOptions { global: false });
                let answered = nothing.await;
                answered.map_err(|e| TransportError::Unreachable(e.to_string()))
            })
            .await?;
        metrics::histogram!(BROKER_ROUND_TRIP, "direction" => direction.as_str())
            .record(asked.elapsed().as_secs_f64());
        Ok(())
    }
}

impl Statistics {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let (mut publishing, mut receiving) = (Line::default(), Line::default());
        let mut shown = Vec::new();
        let mut wait = self.interval.min(FIRST);
        loop {
            // A quarter more or less, so that the nodes of a fleet do not ask at the same time.
            let pause = wait.mul_f64(rand::rng().random_range(0.75..=1.25));
            tokio::time::sleep(pause).await;
            wait = self.interval;
            let lanes = self.count();
            for lane in shown.iter().filter(|lane| !lanes.contains(lane)) {
                unknown(lane);
            }
            let asking = async {
                self.ask_for_nothing(&mut publishing).await;
                self.ask_for_lanes(&mut receiving, &lanes).await;
            };
            if survived("amqp statistics", asking).await.is_none() {
                (publishing, receiving) = (Line::default(), Line::default());
            }
            shown = lanes;
        }
    }

    /// Updates the metrics that need no broker. Returns the lanes that this process uses.
    fn count(&self) -> Vec<Lane> {
        let mut lanes = Vec::new();
        for (lane, count) in self.unsettled.counts() {
            set(LANE_UNSETTLED, &lane, count.map_or(0.0, as_number));
            if count.is_some() {
                lanes.push(lane);
            }
        }
        let (unconfirmed, published) = self.publishers.now();
        metrics::gauge!(BROKER_UNCONFIRMED).set(as_number(unconfirmed));
        lanes.extend(published);
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    }

    /// Times a round trip on the publishing connection. Skips it while the broker blocks: it then
    /// does not read from this connection and would not answer.
    async fn ask_for_nothing(&self, line: &mut Line) {
        if let Ok(session) = self.publishers.link.session()
            && session.blocked().is_none()
            && let Err(problem) = line.round_trip(&session, Direction::Publish).await
        {
            tracing::debug!(%problem, "could not measure the round trip to the broker");
            line.0 = None;
        }
    }

    async fn ask_for_lanes(&self, line: &mut Line, lanes: &[Lane]) {
        let mut answers = async || -> Result<(), TransportError> {
            let session = self.receive.session()?;
            line.round_trip(&session, Direction::Receive).await?;
            for lane in lanes {
                match self.ask(line, &session, lane).await {
                    Ok(()) => {}
                    // The broker would not answer the next request either.
                    Err(problem @ TransportError::Timeout(_)) => return Err(problem),
                    Err(problem) if session.is_over() => return Err(problem),
                    // The queue was deleted, or the broker's node that holds it is down. The next
                    // publish to the lane checks the queue again.
                    Err(problem) => {
                        tracing::debug!(
                            %lane,
                            %problem,
                            "could not read the length of a lane's queue"
                        );
                        line.0 = None;
                        unknown(lane);
                        self.publishers.queue_is_gone(lane);
                    }
                }
            }
            Ok(())
        };
        if let Err(problem) = answers().await {
            tracing::debug!(%problem, "could not read the lengths of the lanes' queues");
            line.0 = None;
            lanes.iter().for_each(unknown);
        }
    }

    async fn ask(
        &self,
        line: &mut Line,
        session: &Session,
        lane: &Lane,
    ) -> Result<(), TransportError> {
        let channel = line.channel(session).await?;
        let queue = self.topology.look(&channel, lane);
        let queue = session.answer(queue).await?;
        set(LANE_WAITING, lane, f64::from(queue.message_count()));
        set(LANE_CONSUMERS, lane, f64::from(queue.consumer_count()));
        Ok(())
    }
}

fn unknown(lane: &Lane) {
    set(LANE_WAITING, lane, f64::NAN);
    set(LANE_CONSUMERS, lane, f64::NAN);
}

fn set(name: &'static str, lane: &Lane, value: f64) {
    metrics::gauge!(name, "lane" => lane.to_string()).set(value);
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a count of messages needs no 53 bits"
)]
fn as_number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_of_a_lane_share_its_count() {
        let unsettled = Unsettled::default();
        let lane = Lane::default();
        let mut one = unsettled.share(&lane);
        let mut other = unsettled.share(&lane);
        one.set(3);
        other.set(2);
        one.set(1);
        assert_eq!(unsettled.counts(), [(lane.clone(), Some(3))]);
        drop(other);
        assert_eq!(unsettled.counts(), [(lane.clone(), Some(1))]);
        drop(one);
        // Reported once more, without a count, and then removed.
        assert_eq!(unsettled.counts(), [(lane, None)]);
        assert_eq!(unsettled.counts(), []);
    }
}
