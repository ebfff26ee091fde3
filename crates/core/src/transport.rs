//! The transport: what carries hints from whoever commits to whoever works.
//!
//! One small contract serves every broker. What a transport may do is lose, double, delay and reorder
//! hints: the store and the sweeper keep the promises. What it must do:
//!
//! 1. Say of each published message whether the broker has it ([`Publisher::publish`]).
//! 2. Give a message to one receiver at a time, and again to another if the first goes away before it
//!    settled ([`Receiver`]).
//! 3. Hold back what a receiver has not asked for: at most `prefetch` messages are unsettled.
//! 4. Come back by itself after the broker was away; until then fail fast, never hang.
//! 5. Carry [`Control`] messages to every node, best effort.

mod control;
pub mod in_process;
mod own_lanes;
mod portions;
pub mod routed;
mod security;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use crate::hint::{Body, Hint, Marker};
use crate::job::Lane;

pub use control::{BadControl, Control, SPOKEN};
pub use own_lanes::OwnLanes;
pub(crate) use portions::portions;
pub use security::{BadSetting, BrokerSecurity, Plaintext, is_loopback};

/// The largest control message that is read, in bytes as it travels. A larger one is dropped before it is decoded.
pub const MAX_CONTROL_BYTES: usize = 64 * 1024;
/// Control messages that a slow listener may be behind. Together with [`MAX_CONTROL_BYTES`] and the limits of
/// [`Control::read`] it bounds what listeners hold: about 30 MB.
pub const CONTROL_BUFFER: usize = 256;
/// Types that one node may say that it serves; more are left out.
pub const MAX_MEMBER_TYPES: usize = 1_024;
/// Lanes that one node may say that it receives; more are left out.
pub const MAX_MEMBER_LANES: usize = 64;
/// Jobs that one part of an answer to [`Control::WhichHeld`] names; more are left out.
pub const MAX_HELD_IN_MESSAGE: usize = 1_000;

/// Why a transport could not do something.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The broker can't be reached, or the connection broke. Comes back by itself.
    #[error("the broker is unreachable: {0}")]
    Unreachable(String),
    /// The broker has stopped taking messages (memory or disk alarm).
    #[error("the broker takes no messages for now: {0}")]
    Blocked(String),
    /// The broker did not answer in time; whether it has the message is unknown.
    #[error("the broker did not confirm within {0:?}")]
    Timeout(Duration),
    /// The broker refuses: rights, a queue declared otherwise, a bad name. Needs an operator.
    #[error("the broker refuses: {problem}; {remedy}")]
    Refused {
        /// What the broker said.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// A setting can't work, or the broker is not the one that the settings describe: nothing was
    /// sent. Needs an operator.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// The lane has no queue or topic, and this process does not make it: its first receiver does. The sweeper
    /// publishes the hint again when the lane has a receiver.
    #[error("the lane '{0}' has no queue or topic: no node has received it yet")]
    NoReceiver(Lane),
    /// The message did not fit into the transport's own bound.
    #[error("the transport is full")]
    Full,
    /// The transport was closed.
    #[error("the transport is closed")]
    Closed,
}

impl TransportError {
    /// Goes away by itself, without an operator.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(
            self,
            Self::Refused { .. } | Self::Setting(_) | Self::NoReceiver(_) | Self::Closed
        )
    }
}

/// The state of a transport, for health checks and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportHealth {
    /// Messages can be published.
    pub publishing: bool,
    /// Messages can be received.
    pub receiving: bool,
    /// The broker has said that it takes no messages for now.
    pub blocked: bool,
    /// Nothing is wrong: the broker is letting this node in, and gives it nothing to receive yet.
    /// Then [`receiving`](Self::receiving) is false. Told of single lanes only.
    pub joining: bool,
    /// What is wrong, for people.
    pub problem: Option<String>,
}

impl TransportHealth {
    /// Would a message leave now?
    #[must_use]
    pub fn can_publish(&self) -> bool {
        self.publishing && !self.blocked
    }

    /// What keeps messages from coming or going; `None` while both is possible.
    #[must_use]
    pub fn trouble(self) -> Option<String> {
        if self.can_publish() && self.receiving {
            return None;
        }
        let unnamed = || "the broker is not reachable".to_owned();
        Some(self.problem.unwrap_or_else(unnamed))
    }
}

/// Publishes. Cheap to share; used by the commit hook, the timers, the sweeper and the hand-over.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Publish hints to a lane, packed into as few messages as the transport sees fit, and wait until
    /// the broker has confirmed them or has failed to. Many calls may be under way at once; order is
    /// kept between calls that do not overlap.
    ///
    /// # Errors
    /// The first failure; some of the hints may have been published all the same.
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError>;

    /// Publish a marker behind everything that was confirmed before on this lane.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError>;

    /// How long [`publish`](Self::publish) may wait for the broker's confirm: so much younger than its commit a hint
    /// may arrive.
    fn confirm_timeout(&self) -> Duration {
        Duration::ZERO
    }

    /// Tell every node, best effort, without waiting for the broker. False where it is known already that no other node
    /// will hear it.
    fn tell(&self, control: Control) -> bool;

    /// How the transport is.
    fn health(&self) -> TransportHealth;

    /// How the transport is for one lane, where it carries lanes over several brokers, or is let in
    /// to each lane by itself.
    fn health_of(&self, lane: &Lane) -> TransportHealth {
        let _ = lane;
        self.health()
    }
}

/// A message taken from a lane and not settled yet.
#[derive(Debug)]
pub struct Delivery {
    /// The lane it came on.
    pub lane: Lane,
    /// What it says.
    pub body: Body,
    /// When it was published, by the publisher's clock.
    pub published_at: Option<DateTime<Utc>>,
    /// When it arrived here.
    pub received_at: DateTime<Utc>,
    /// The broker says that somebody had it before.
    pub redelivered: bool,
    /// Names the delivery to the transport.
    pub ticket: Ticket,
}

/// Names a delivery to the transport that made it. A ticket of a connection that is gone is
/// harmless: the broker gives the message to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Which connection (or assignment) the delivery belongs to.
    pub epoch: u64,
    /// The delivery within it.
    pub number: u64,
}

/// What a receiver wants from the broker.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The lanes to receive.
    pub lanes: Vec<Lane>,
    /// The most messages that may be unsettled at once, over all lanes.
    pub prefetch: u16,
}

/// Receives messages for one node. Unreadable messages never get here: the transport settles, counts
/// and logs them.
#[async_trait]
pub trait Receiver: Send {
    /// Wait for a message; then return it with whatever else is there already, `max` messages at most.
    /// Cancel-safe: a message is either returned or still the transport's.
    ///
    /// # Errors
    /// While the broker is away. The caller waits a moment and calls again; the transport reconnects.
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError>;

    /// These messages have been decided: forget them. A ticket of an old connection is ignored.
    async fn settle(&mut self, tickets: &[Ticket]);

    /// Give these undecided messages back, for another node.
    async fn requeue(&mut self, tickets: &[Ticket]);

    /// Take nothing more from the broker for now; what was delivered but not returned goes back.
    async fn pause(&mut self);

    /// Take messages again.
    async fn resume(&mut self);
}

/// A way to carry hints. See the [module](self) for what it must and may do.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// A word for logs, metrics and the leader's record: `in-process`, `rabbitmq`, `kafka`.
    fn name(&self) -> &'static str;

    /// Serves only one node: a second one on the same database is refused.
    fn is_single_node(&self) -> bool {
        false
    }

    /// The shared publisher.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Start to receive. The broker may be away: then [`Receiver::receive`] fails until it is back.
    ///
    /// # Errors
    /// [`TransportError::Refused`] where an operator is needed.
    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError>;

    /// Hear what other nodes (and this one) [`tell`](Publisher::tell). Slow listeners lose the oldest.
    fn listen(&self) -> tokio::sync::broadcast::Receiver<Control>;

    /// Flush and close, within the given time.
    async fn close(&self, within: Duration);
}
