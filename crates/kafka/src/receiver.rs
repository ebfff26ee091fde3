//! The receiver of one node: its lanes, each polled by a separate task ([`crate::lane`]).
//!
//! The receiver returns the messages that have arrived, and passes decisions to the tasks. When it
//! is dropped, the tasks stop and leave their groups; unsettled messages go to the next owners of
//! the partitions. Kafka does not redeliver a single message: requeued messages are fetched again
//! from the lowest of their offsets in the partition, by this node or by the next owner.

use std::sync::Arc;

use async_trait::async_trait;
use jobwire_core::transport::{Delivery, Receiver, Ticket, TransportError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::connection::Link;
use crate::lane_client::LaneState;

/// See the [module](self).
pub(crate) struct KafkaReceiver {
    pub(crate) lanes: Vec<Arc<LaneState>>,
    pub(crate) link: Link,
    pub(crate) arrived: Arc<Notify>,
    /// Stops the lanes' tasks.
    pub(crate) stop: CancellationToken,
    pub(crate) closing: CancellationToken,
    /// The lane at which the next call starts, so that no lane is always last.
    pub(crate) turn: usize,
}

impl KafkaReceiver {
    fn take(&mut self, max: usize) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        let count = self.lanes.len();
        self.turn = self.turn.wrapping_add(1);
        for n in 0..count {
            let lane = &self.lanes[(self.turn + n) % count];
            let mut assignment = lane.assignment();
            let some = assignment.ready.len().min(max - deliveries.len());
            deliveries.extend(assignment.ready.drain(..some));
        }
        deliveries
    }

    /// Returns a problem that needs an operator, once.
    fn problem(&self) -> Option<TransportError> {
        self.lanes
            .iter()
            .find_map(|lane| lane.assignment().problem.take())
    }
}

#[async_trait]
impl Receiver for KafkaReceiver {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        loop {
            if self.closing.is_cancelled() {
                return Err(TransportError::Closed);
            }
            let deliveries = self.take(max);
            if !deliveries.is_empty() || max == 0 {
                return Ok(deliveries);
            }
            if let Some(problem) = self.problem() {
                return Err(problem);
            }
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return Err(TransportError::Closed),
                () = self.arrived.notified() => {}
                problem = self.link.goes_down() => return Err(problem),
            }
        }
    }

    async fn settle(&mut self, tickets: &[Ticket]) {
        for lane in &self.lanes {
            lane.assignment().settle(tickets);
            lane.wake.notify_one();
        }
    }

    async fn requeue(&mut self, tickets: &[Ticket]) {
        for lane in &self.lanes {
            lane.assignment().requeue(tickets);
            lane.wake.notify_one();
        }
    }

    fn set_prefetch(&mut self, prefetch: u16) {
        let share = usize::from(prefetch) / self.lanes.len().max(1);
        for lane in &self.lanes {
            lane.set_share(share);
        }
    }

    async fn pause(&mut self) {
        for lane in &self.lanes {
            let mut assignment = lane.assignment();
            assignment.paused = true;
            assignment.give_back_ready();
            drop(assignment);
            lane.wake.notify_one();
        }
    }

    async fn resume(&mut self) {
        for lane in &self.lanes {
            lane.assignment().paused = false;
            lane.wake.notify_one();
        }
    }
}

impl Drop for KafkaReceiver {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
