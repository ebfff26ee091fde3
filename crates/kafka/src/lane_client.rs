//! The client of one lane, its rebalance callbacks, and the state that both share with the receiver.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use jobwire_core::job::Lane;
use rdkafka::TopicPartitionList;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::statistics::Statistics;
use tokio::sync::Notify;

use crate::assignment::{Assignment, Offsets};
use crate::connection::Context;
use crate::ending::Elsewhere;

pub(crate) type LaneConsumer = StreamConsumer<LaneContext>;
pub(crate) type LaneClient = Arc<Elsewhere<LaneConsumer>>;

/// The state that a lane's receiver and its task share.
pub(crate) struct LaneState {
    pub(crate) lane: Lane,
    share: AtomicUsize,
    assignment: Mutex<Assignment>,
    /// Wakes the task.
    pub(crate) wake: Notify,
    /// Wakes the receiver. Shared by all lanes.
    pub(crate) arrived: Arc<Notify>,
}

impl LaneState {
    pub(crate) fn new(
        lane: Lane,
        share: usize,
        topic: String,
        epochs: Arc<AtomicU64>,
        arrived: Arc<Notify>,
    ) -> Self {
        Self {
            lane,
            share: AtomicUsize::new(share.max(1)),
            assignment: Mutex::new(Assignment::new(topic, epochs)),
            wake: Notify::new(),
            arrived,
        }
    }

    /// Returns the lane's share of the prefetch.
    pub(crate) fn share(&self) -> usize {
        self.share.load(Ordering::Relaxed)
    }

    /// Sets the lane's share of the prefetch, and wakes the task.
    pub(crate) fn set_share(&self, share: usize) {
        self.share.store(share.max(1), Ordering::Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn assignment(&self) -> MutexGuard<'_, Assignment> {
        self.assignment
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rebalance callbacks, which run while the task polls.
pub(crate) struct LaneContext {
    context: Context,
    state: Weak<LaneState>,
    /// The number of this client.
    client: u64,
}

impl LaneContext {
    /// Creates the context of the lane's next client.
    pub(crate) fn new(context: Context, state: &Arc<LaneState>) -> Self {
        Self {
            context,
            state: Arc::downgrade(state),
            client: state.assignment().next_client(),
        }
    }

    /// Returns the assignment, or `None` if another client has replaced this one.
    fn is_of<'a>(&self, state: &'a LaneState) -> Option<MutexGuard<'a, Assignment>> {
        let assignment = state.assignment();
        assignment.is_of(self.client).then_some(assignment)
    }
}

impl ClientContext for LaneContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.context.log(level, facility, line);
    }

    fn stats(&self, statistics: Statistics) {
        self.context.stats(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }

    fn generate_oauth_token(
        &self,
        config: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.context.generate_oauth_token(config)
    }
}

impl ConsumerContext for LaneContext {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Some(state) = self.state.upgrade() else {
            return;
        };
        let Some(mut assignment) = self.is_of(&state) else {
            return;
        };
        match rebalance {
            Rebalance::Revoke(list) => {
                tracing::debug!(
                    lane = %state.lane,
                    partitions = list.count(),
                    "partitions were revoked from this node"
                );
                assignment.revoked(numbers(list).into_iter());
            }
            Rebalance::Error(error) => {
                tracing::warn!(
                    lane = %state.lane,
                    %error,
                    "a rebalance failed; this node has no partition of the lane until the next one"
                );
                assignment.revoke_all();
            }
            Rebalance::Assign(_) => {}
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let (Some(state), Rebalance::Assign(list)) = (self.state.upgrade(), rebalance) else {
            return;
        };
        let Some(mut assignment) = self.is_of(&state) else {
            return;
        };
        tracing::debug!(
            lane = %state.lane,
            partitions = list.count(),
            "partitions were assigned to this node"
        );
        assignment.place(numbers(list).into_iter());
        // A client keeps a partition paused when it is assigned again.
        let told = if assignment.holding {
            consumer.pause(list)
        } else {
            consumer.resume(list)
        };
        if let Err(error) = told {
            tracing::debug!(
                lane = %state.lane,
                %error,
                "partitions could not be paused or resumed"
            );
        }
    }
}

fn numbers(list: &TopicPartitionList) -> Vec<i32> {
    list.elements().iter().map(|e| e.partition()).collect()
}

impl Offsets for Elsewhere<LaneConsumer> {
    fn store(&self, offsets: &TopicPartitionList) -> KafkaResult<()> {
        self.store_offsets(offsets)
    }
}
