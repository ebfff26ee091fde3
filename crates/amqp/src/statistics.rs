//! What the broker tells of itself, for metrics: how far away it is, and what waits in the lanes.
//!
//! Every [`statistics_interval`](crate::AmqpOptions::statistics_interval) the task asks for nothing on
//! each connection and takes the time, and asks the queue of each lane that this process uses for its
//! length, by a passive declaration: that needs no right, changes nothing and costs the broker some
//! microseconds. Both go over channels of their own, which no hint is on. Every node asks, each at a
//! moment of its own, since no node knows who else is there to ask; a broker answers thousands of such
//! questions a second.
//!
//! What is not known is shown as NaN, never as an old number: a lane while the broker is away, or that
//! this process has left.

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

/// The first look comes no later: a process that just started is looked at, too.
const FIRST: Duration = Duration::from_secs(1);

/// How many messages of each lane were taken and not settled yet, over all receivers of this process.
#[derive(Clone, Default)]
pub(crate) struct Unsettled(Arc<Mutex<BTreeMap<Lane, Weak<AtomicUsize>>>>);

impl Unsettled {
    /// A receiver's share of its lane's count.
    pub(crate) fn share(&self, lane: &Lane) -> Share {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total = lanes.get(lane).and_then(Weak::upgrade).unwrap_or_default();
        lanes.insert(lane.clone(), Arc::downgrade(&total));
        Share { total, counted: 0 }
    }

    /// Of each lane that is received or just was: the count, `None` for one that nobody receives any
    /// more; that one is forgotten.
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

/// Adds one receiver's messages to its lane's count, and takes them off when it goes.
pub(crate) struct Share {
    total: Arc<AtomicUsize>,
    counted: usize,
}

impl Share {
    /// So many it is now.
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

/// The task. See the [module](self).
pub(crate) struct Statistics {
    pub(crate) interval: Duration,
    pub(crate) topology: Topology,
    pub(crate) publishers: Arc<LanePublishers>,
    pub(crate) receive: Link,
    pub(crate) unsettled: Unsettled,
}

/// A channel for questions, for as long as its session lives.
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

    /// How long the broker takes to answer when nothing is asked of any queue.
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
            // A quarter more or less, so that a fleet does not ask in step.
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

    /// What this process knows by itself. Returns the lanes that it uses.
    fn count(&self) -> Vec<Lane> {
        let mut lanes = Vec::new();
        for (lane, count) in self.unsettled.counts() {
            set(LANE_UNSETTLED, &lane, count.map_or(0.0, as_number));
            if count.is_some() {
                lanes.push(lane);
            }
        }
        if let Some((unconfirmed, published)) = self.publishers.now() {
            metrics::gauge!(BROKER_UNCONFIRMED).set(as_number(unconfirmed));
            lanes.extend(published);
        }
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    }

    /// A blocked broker does not read from a connection that publishes; it would not answer.
    async fn ask_for_nothing(&self, line: &mut Line) {
        if let Ok(session) = self.publishers.link.session()
            && session.blocked().is_none()
            && let Err(problem) = line.round_trip(&session, Direction::Publish).await
        {
            tracing::debug!(%problem, "no round trip to the broker");
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
                    // It would not answer the next question either.
                    Err(problem @ TransportError::Timeout(_)) => return Err(problem),
                    Err(problem) if session.is_over() => return Err(problem),
                    // Its queue was deleted: no need to ask again before it is declared again. Or the
                    // node of the broker that it is on is down.
                    Err(problem) => {
                        tracing::debug!(%lane, %problem, "nothing is known of this lane");
                        line.0 = None;
                        unknown(lane);
                        self.publishers.queue_is_gone(lane);
                    }
                }
            }
            Ok(())
        };
        if let Err(problem) = answers().await {
            tracing::debug!(%problem, "the broker does not tell of the lanes");
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
    metrics::gauge!(name, "lane" => lane.0.clone()).set(value);
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
        // Said once more, to be shown as gone, and then forgotten.
        assert_eq!(unsettled.counts(), [(lane, None)]);
        assert_eq!(unsettled.counts(), []);
    }
}
