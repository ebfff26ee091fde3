//! Hints within one process: no broker, one node.
//!
//! For embedded nodes (the default) and for tests. Lanes are bounded queues. Unsettled messages of
//! a receiver that ends return to the front of their lanes. A full lane refuses hints
//! ([`TransportError::Full`]), and the sweeper publishes them when the lane has room again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use tokio::sync::{Notify, broadcast};

use super::{
    Control, Delivery, Listeners, Publisher, Receiver, Subscription, Ticket, Transport,
    TransportError, TransportHealth, shares,
};
use crate::hint::{Body, Hint, Marker};
use crate::job::Lane;

/// Maximum number of messages in one lane.
const LANE_CAPACITY: usize = 100_000;

struct Queued {
    body: Body,
    published_at: DateTime<Utc>,
    redelivered: bool,
}

#[derive(Default)]
struct State {
    lanes: HashMap<Lane, VecDeque<Queued>>,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    arrived: Notify,
    control: Listeners,
    epochs: AtomicU64,
}

impl Shared {
    /// Locks the queues. A poisoned lock only means that a thread panicked elsewhere; the queues
    /// are still valid.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(
        &self,
        lane: &Lane,
        bodies: impl ExactSizeIterator<Item = Body>,
    ) -> Result<(), TransportError> {
        let mut state = self.state();
        if state.closed {
            return Err(TransportError::Closed);
        }
        let queue = state.lanes.entry(lane.clone()).or_default();
        if queue.len() + bodies.len() > LANE_CAPACITY {
            return Err(TransportError::Full);
        }
        let published_at = Utc::now();
        queue.extend(bodies.map(|body| Queued {
            body,
            published_at,
            redelivered: false,
        }));
        drop(state);
        self.arrived.notify_waiters();
        Ok(())
    }
}

/// The in-process transport. See the [module](self).
#[derive(Clone)]
pub struct InProcessTransport(Arc<Shared>);

impl Default for InProcessTransport {
    fn default() -> Self {
        Self::new()
    }
}

impl InProcessTransport {
    /// Creates a transport with empty lanes.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            arrived: Notify::new(),
            control: Listeners::default(),
            epochs: AtomicU64::new(1),
        }))
    }
}

#[async_trait]
impl Transport for InProcessTransport {
    fn name(&self) -> &'static str {
        "in-process"
    }

    fn is_single_node(&self) -> bool {
        true
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.clone())
    }

    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        Ok(Box::new(InProcessReceiver {
            shared: self.0.clone(),
            epoch: self.0.epochs.fetch_add(1, Ordering::Relaxed),
            next: 0,
            prefetch: usize::from(subscription.prefetch.max(1)),
            lanes: lanes(&subscription),
            first: 0,
            unsettled: BTreeMap::new(),
            paused: false,
        }))
    }

    fn listen(&self) -> broadcast::Receiver<Control> {
        self.0.control.listen()
    }

    async fn close(&self, _within: Duration) {
        self.0.state().closed = true;
        self.0.arrived.notify_waiters();
    }
}

#[async_trait]
impl Publisher for InProcessTransport {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        // One hint per message: no message travels, so packing would only make the prefetch
        // coarser.
        self.0
            .push(lane, hints.into_iter().map(|h| Body::Hints(vec![h])))
    }

    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        self.0.push(lane, std::iter::once(Body::Marker(marker)))
    }

    fn tell(&self, control: Control) -> bool {
        self.0.control.tell(control)
    }

    fn health(&self) -> TransportHealth {
        let open = !self.0.state().closed;
        TransportHealth {
            publishing: open,
            receiving: open,
            blocked: false,
            joining: false,
            problem: (!open).then(|| "the transport is closed".to_owned()),
        }
    }
}

/// A lane of a receiver, with its own share of the prefetch, so that other lanes do not delay its
/// messages.
struct ReceivedLane {
    lane: Lane,
    share: usize,
    unsettled: usize,
}

fn lanes(subscription: &Subscription) -> Vec<ReceivedLane> {
    let received = |(lane, share): (&Lane, u16)| ReceivedLane {
        lane: lane.clone(),
        share: usize::from(share),
        unsettled: 0,
    };
    subscription.shares().map(received).collect()
}

struct Unsettled {
    /// The index of the lane.
    lane: usize,
    body: Body,
    published_at: DateTime<Utc>,
}

struct InProcessReceiver {
    shared: Arc<Shared>,
    epoch: u64,
    next: u64,
    prefetch: usize,
    lanes: Vec<ReceivedLane>,
    /// The index of the lane that is read first; the lanes take turns.
    first: usize,
    unsettled: BTreeMap<u64, Unsettled>,
    paused: bool,
}

impl InProcessReceiver {
    fn take(&mut self, max: usize) -> Vec<Delivery> {
        let room = self.prefetch.saturating_sub(self.unsettled.len()).min(max);
        let mut deliveries = Vec::new();
        let shared = self.shared.clone();
        let mut state = shared.state();
        for turn in 0..self.lanes.len() {
            let at = (self.first + turn) % self.lanes.len();
            let Some(received) = self.lanes.get_mut(at) else {
                continue;
            };
            let Some(queue) = state.lanes.get_mut(&received.lane) else {
                continue;
            };
            while deliveries.len() < room
                && received.unsettled < received.share
                && let Some(message) = queue.pop_front()
            {
                let number = self.next;
                self.next += 1;
                received.unsettled += 1;
                let unsettled = Unsettled {
                    lane: at,
                    body: message.body.clone(),
                    published_at: message.published_at,
                };
                self.unsettled.insert(number, unsettled);
                deliveries.push(Delivery {
                    lane: received.lane.clone(),
                    body: message.body,
                    published_at: Some(message.published_at),
                    received_at: Utc::now(),
                    redelivered: message.redelivered,
                    ticket: Ticket {
                        epoch: self.epoch,
                        number,
                    },
                });
            }
        }
        self.first = (self.first + 1) % self.lanes.len().max(1);
        deliveries
    }

    fn forget(&mut self, number: u64) -> Option<Unsettled> {
        let unsettled = self.unsettled.remove(&number)?;
        if let Some(received) = self.lanes.get_mut(unsettled.lane) {
            received.unsettled -= 1;
        }
        Some(unsettled)
    }

    /// Returns messages to the front of their lanes, in their old order.
    fn put_back(&mut self, numbers: impl DoubleEndedIterator<Item = u64>) {
        let shared = self.shared.clone();
        let mut state = shared.state();
        for number in numbers.rev() {
            let Some(unsettled) = self.forget(number) else {
                continue;
            };
            let Some(received) = self.lanes.get(unsettled.lane) else {
                continue;
            };
            let queue = state.lanes.entry(received.lane.clone()).or_default();
            queue.push_front(Queued {
                body: unsettled.body,
                published_at: unsettled.published_at,
                redelivered: true,
            });
        }
        drop(state);
        shared.arrived.notify_waiters();
    }
}

#[async_trait]
impl Receiver for InProcessReceiver {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        loop {
            let shared = self.shared.clone();
            let arrived = shared.arrived.notified();
            tokio::pin!(arrived);
            // Registered before the queues are read, so that no message in between is missed.
            arrived.as_mut().enable();
            if shared.state().closed {
                return Err(TransportError::Closed);
            }
            if !self.paused {
                let deliveries = self.take(max);
                if !deliveries.is_empty() {
                    return Ok(deliveries);
                }
            }
            arrived.await;
        }
    }

    async fn settle(&mut self, tickets: &[Ticket]) {
        let epoch = self.epoch;
        for ticket in tickets.iter().filter(|t| t.epoch == epoch) {
            self.forget(ticket.number);
        }
    }

    async fn requeue(&mut self, tickets: &[Ticket]) {
        let mut numbers: Vec<u64> = tickets
            .iter()
            .filter(|t| t.epoch == self.epoch)
            .map(|t| t.number)
            .collect();
        numbers.sort_unstable();
        self.put_back(numbers.into_iter());
    }

    fn set_prefetch(&mut self, prefetch: u16) {
        self.prefetch = usize::from(prefetch.max(1));
        let shares = shares(prefetch, self.lanes.len());
        for (lane, share) in self.lanes.iter_mut().zip(shares) {
            lane.share = usize::from(share);
        }
    }

    async fn pause(&mut self) {
        self.paused = true;
    }

    async fn resume(&mut self) {
        self.paused = false;
        self.shared.arrived.notify_waiters();
    }
}

impl Drop for InProcessReceiver {
    fn drop(&mut self) {
        let all: Vec<u64> = self.unsettled.keys().copied().collect();
        self.put_back(all.into_iter());
    }
}
