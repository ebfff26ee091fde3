//! The transport carries hints from producers to nodes.
//!
//! One small contract serves every broker. A transport may lose, double, delay and reorder hints;
//! the store and the sweeper keep the promises. A transport must:
//!
//! 1. Report for each published message whether the broker has it ([`Publisher::publish`]).
//! 2. Give a message to one receiver at a time, and to another one if the first ends before it
//!    settled the message ([`Receiver`]).
//! 3. Hold back messages that a receiver has not asked for: at most `prefetch` messages are
//!    unsettled.
//! 4. Reconnect by itself after the broker was away. Until then it fails fast and never hangs.
//! 5. Carry [`Control`] messages to every node, best effort.

mod control;
mod host_port;
pub mod in_process;
mod known_lanes;
mod lifetime;
mod listeners;
mod open_lanes;
mod own_lanes;
mod portions;
pub mod routed;
mod security;
pub mod wakes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use crate::event::stream::OutgoingEvent;
use crate::hint::{Body, Hint, Marker};
use crate::job::Lane;

pub use control::{BadControl, Control, SPOKEN};
pub use host_port::HostPort;
pub use lifetime::Lifetime;
pub use listeners::Listeners;
pub use open_lanes::{OpenLane, OpenLanes, is_remembered};
pub use own_lanes::OwnLanes;
pub(crate) use portions::portions;
pub use security::{BadSetting, BrokerSecurity, Plaintext, is_loopback};
pub use wakes::{Wake, Wakes};

/// Maximum size of a control message, in bytes as it travels. A larger one is dropped before it is
/// decoded.
pub const MAX_CONTROL_BYTES: usize = 64 * 1024;
/// Maximum number of control messages that a slow listener may be behind. Together with
/// [`MAX_CONTROL_BYTES`] and the limits of [`Control::read`], it bounds the memory of listeners to
/// about 30 MB.
pub const CONTROL_BUFFER: usize = 256;
/// Maximum number of types in the message of one node. Further types are left out.
pub const MAX_MEMBER_TYPES: usize = 1_024;
/// Maximum number of lanes in the message of one node. Further lanes are left out.
pub const MAX_MEMBER_LANES: usize = 64;
/// Maximum number of jobs in one part of an answer to [`Control::WhichHeld`]. Further jobs are left
/// out.
pub const MAX_HELD_IN_MESSAGE: usize = 1_000;

/// The reason why an operation of a transport failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The broker cannot be reached, or the connection broke. The transport reconnects by itself.
    #[error("the broker is unreachable: {0}")]
    Unreachable(String),
    /// The broker blocks publishers (memory or disk alarm).
    #[error("the broker blocks publishers: {0}")]
    Blocked(String),
    /// The broker did not answer in time. Whether it has the message is unknown.
    #[error("the broker did not confirm within {0:?}")]
    Timeout(Duration),
    /// The broker refuses: permissions, a queue that is declared differently, an invalid name.
    /// Needs an operator.
    #[error("the broker refuses: {problem}; {remedy}")]
    Refused {
        /// The error of the broker.
        problem: String,
        /// The action that solves the problem.
        remedy: String,
    },
    /// A setting is wrong, or the broker is not the one that the settings describe. Nothing was
    /// sent. Needs an operator.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// The lane has no queue or topic, and this process does not create it; the first receiver of
    /// the lane does. The sweeper publishes the hint again when the lane has a receiver.
    #[error(
        "the lane '{0}' has no queue or topic, because no node has received it yet; start a node \
         with this lane in `lanes`"
    )]
    NoReceiver(Lane),
    /// The message exceeds the transport's own limit.
    #[error("the buffer of the transport is full")]
    Full,
    /// The transport was closed.
    #[error("the transport is closed")]
    Closed,
}

impl TransportError {
    /// Returns whether the problem ends by itself, without an operator.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Setting(_) | Self::Closed)
    }
}

/// The state of a transport, for health checks and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportHealth {
    /// Whether messages can be published.
    pub publishing: bool,
    /// Whether messages can be received.
    pub receiving: bool,
    /// Whether the broker blocks publishers.
    pub blocked: bool,
    /// Whether the broker is still admitting this node and gives it no messages yet. This is no
    /// fault; [`receiving`](Self::receiving) is false meanwhile. Set for single lanes only.
    pub joining: bool,
    /// The problem, as text for operators.
    pub problem: Option<String>,
}

impl TransportHealth {
    /// Returns whether a message can be published now.
    #[must_use]
    pub fn can_publish(&self) -> bool {
        self.publishing && !self.blocked
    }

    /// Returns the problem that prevents publishing or receiving, or `None` if both work.
    #[must_use]
    pub fn trouble(self) -> Option<String> {
        if self.can_publish() && self.receiving {
            return None;
        }
        let unnamed = || "the broker is unreachable".to_owned();
        Some(self.problem.unwrap_or_else(unnamed))
    }
}

/// The publishing side. Cheap to share; used by the commit hook, the timers, the sweeper and the
/// handoff.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Publishes hints to a lane and waits until the broker has confirmed them or has failed. The
    /// transport packs the hints into messages. Many calls may be under way at once; order is kept
    /// between calls that do not overlap.
    ///
    /// # Errors
    /// The first failure. Some of the hints may have been published.
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError>;

    /// Publishes a marker behind everything that was confirmed before on this lane.
    ///
    /// # Errors
    /// The same as those of [`publish`](Self::publish).
    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError>;

    /// Wakes the nodes of these lanes, best effort, because jobs wait in them. For transports that
    /// carry wakes ([`Transport::wakes`]); others do nothing.
    fn wake(&self, lanes: &[Lane]) {
        let _ = lanes;
    }

    /// Returns the time that [`publish`](Self::publish) may wait for the broker's confirm. A hint
    /// may arrive this much later than its commit.
    fn confirm_timeout(&self) -> Duration {
        Duration::ZERO
    }

    /// Sends a control message to every node, best effort, without waiting for the broker. Returns
    /// false if it is known already that no other node receives it.
    fn tell(&self, control: Control) -> bool;

    /// Returns the state of the transport.
    fn health(&self) -> TransportHealth;

    /// Returns the state of the transport for one lane. It differs from [`health`](Self::health) if
    /// the lanes have several brokers, or if the broker admits the node to each lane separately.
    fn health_of(&self, lane: &Lane) -> TransportHealth {
        let _ = lane;
        self.health()
    }
}

/// Publishes events of the [event stream](crate::event::stream) to the broker.
#[async_trait]
pub trait EventPublisher: Send + Sync + 'static {
    /// Publishes the events, and waits until the broker has confirmed each of them or has failed.
    /// Returns the result of each, in their order. The events may arrive in another order, so the caller
    /// gives at most one event with the same key.
    async fn publish_events(&self, events: &[OutgoingEvent]) -> Vec<Result<(), TransportError>>;
}

/// A message that was received from a lane and is not settled yet.
#[derive(Debug)]
pub struct Delivery {
    /// The lane that carried it.
    pub lane: Lane,
    /// The content.
    pub body: Body,
    /// The time of publication, by the publisher's clock.
    pub published_at: Option<DateTime<Utc>>,
    /// The time of arrival.
    pub received_at: DateTime<Utc>,
    /// Whether the broker reports that it delivered the message before.
    pub redelivered: bool,
    /// The identity of the delivery.
    pub ticket: Ticket,
}

/// The identity of a delivery within its transport. A ticket of an old connection is harmless: the
/// broker delivers the message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The connection (or assignment) of the delivery.
    pub epoch: u64,
    /// The number of the delivery within the epoch.
    pub number: u64,
}

/// The lanes and the prefetch of a receiver.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The lanes to receive.
    pub lanes: Vec<Lane>,
    /// Maximum number of unsettled messages, over all lanes.
    pub prefetch: u16,
}

impl Subscription {
    /// Splits the prefetch over the lanes, in their order. Each gets at least one message, so that
    /// no lane keeps the messages of another from arriving.
    pub fn shares(&self) -> impl Iterator<Item = (&Lane, u16)> {
        self.lanes
            .iter()
            .zip(shares(self.prefetch, self.lanes.len()))
    }
}

/// Splits a prefetch over this number of lanes, as [`Subscription::shares`] does.
pub fn shares(prefetch: u16, lanes: usize) -> impl Iterator<Item = u16> {
    let count = u16::try_from(lanes.max(1)).unwrap_or(u16::MAX);
    let (each, more) = (prefetch / count, prefetch % count);
    (0..lanes).map(move |at| {
        let is_larger = u16::try_from(at).is_ok_and(|at| at < more);
        (each + u16::from(is_larger)).max(1)
    })
}

/// The receiving side of one node. Unreadable messages are not returned: the transport settles,
/// counts and logs them.
#[async_trait]
pub trait Receiver: Send {
    /// Waits for a message and returns it with all others that have arrived, at most `max`
    /// messages. Cancel-safe: a cancelled call loses no message.
    ///
    /// # Errors
    /// Fails while the broker is away. The caller waits a moment and calls again; the transport
    /// reconnects.
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError>;

    /// Settles messages, which have been decided. A ticket of an old connection is ignored.
    async fn settle(&mut self, tickets: &[Ticket]);

    /// Requeues undecided messages, for another node.
    async fn requeue(&mut self, tickets: &[Ticket]);

    /// Changes the maximum number of unsettled messages, over all lanes, from the next call on.
    /// Messages that were delivered before stay. A transport that can't change it ignores the call.
    fn set_prefetch(&mut self, prefetch: u16) {
        let _ = prefetch;
    }

    /// Stops taking messages from the broker. Messages that were delivered but not returned are
    /// requeued.
    async fn pause(&mut self);

    /// Takes messages from the broker again.
    async fn resume(&mut self);
}

/// A transport for hints. See the [module](self) for its contract.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Returns the name for logs, metrics and the leader's row: `in-process`, `postgres`,
    /// `rabbitmq`, `kafka`.
    fn name(&self) -> &'static str;

    /// Returns whether the transport serves only one node. A second node on the same database is
    /// then refused.
    fn is_single_node(&self) -> bool {
        false
    }

    /// Returns the wakes of this process, if the transport carries wakes instead of hints: it says
    /// that jobs of a lane became ready, and not which. The node then takes its jobs by
    /// [`Store::claim`](crate::Store::claim), and no markers are sent.
    fn wakes(&self) -> Option<Arc<Wakes>> {
        None
    }

    /// Returns the shared publisher.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Returns the publisher of the event stream, if there is a broker that can carry it.
    fn events(&self) -> Option<Arc<dyn EventPublisher>> {
        None
    }

    /// Starts to receive. While the broker is away, [`Receiver::receive`] fails until it is back.
    ///
    /// # Errors
    /// [`TransportError::Refused`] if an operator is needed.
    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError>;

    /// Subscribes to the control messages that nodes (this one included) send with
    /// [`tell`](Publisher::tell). A slow listener loses the oldest.
    fn listen(&self) -> tokio::sync::broadcast::Receiver<Control>;

    /// Flushes and closes the transport, within the given time.
    async fn close(&self, within: Duration);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefetch_is_split_and_no_lane_starves() {
        let shares = |prefetch, lanes: usize| {
            let lanes = (0..lanes).map(|at| Lane(format!("lane-{at}"))).collect();
            let subscription = Subscription { lanes, prefetch };
            let shares = subscription.shares().map(|(_, share)| share);
            shares.collect::<Vec<_>>()
        };
        assert_eq!(shares(32, 3), [11, 11, 10]);
        assert_eq!(shares(1, 3), [1, 1, 1]);
        assert_eq!(shares(0, 1), [1]);
        assert!(shares(5, 0).is_empty());
    }
}
