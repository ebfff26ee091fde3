//! Receiving from several brokers at once.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select_all;
use tokio::time::Instant;

use crate::transport::{Delivery, Receiver, Ticket, TransportError};

/// Maximum number of brokers, limited by the tag in a ticket.
pub(super) const MOST: usize = 16;
/// The position of the broker's number in the epoch of a ticket.
const SHIFT: u32 = 59;
/// The pause after a broker failed to receive.
const AGAIN: Duration = Duration::from_millis(500);

/// The receiver of one broker.
pub(super) struct Source {
    tag: u64,
    receiver: Box<dyn Receiver>,
    /// The number of lanes that it receives.
    lanes: usize,
    /// The end of the pause after a failure.
    not_before: Option<Instant>,
}

impl Source {
    /// Creates the source of the broker with this index in the map.
    pub(super) fn new(at: usize, receiver: Box<dyn Receiver>, lanes: usize) -> Self {
        Self {
            tag: (at as u64) << SHIFT,
            receiver,
            lanes,
            not_before: None,
        }
    }

    fn own(&self, tickets: &[Ticket]) -> Vec<Ticket> {
        let own = tickets
            .iter()
            .filter(|t| t.epoch >> SHIFT == self.tag >> SHIFT);
        own.map(|ticket| Ticket {
            epoch: ticket.epoch ^ self.tag,
            number: ticket.number,
        })
        .collect()
    }

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        if let Some(at) = self.not_before {
            tokio::time::sleep_until(at).await;
            self.not_before = None;
        }
        let received = self.receiver.receive(max).await;
        if received.is_err() {
            self.not_before = Some(Instant::now() + AGAIN);
        }
        let mut deliveries = received?;
        for delivery in &mut deliveries {
            delivery.ticket.epoch |= self.tag;
        }
        Ok(deliveries)
    }
}

/// Returns the part of the prefetch for a broker with `lanes` of `total` lanes.
pub(super) fn part(prefetch: u16, lanes: usize, total: usize) -> u16 {
    let part = usize::from(prefetch) * lanes / total.max(1);
    u16::try_from(part.max(1)).unwrap_or(u16::MAX)
}

/// A receiver over all sources.
pub(super) struct RoutedReceiver {
    sources: Vec<Source>,
    turn: usize,
}

impl RoutedReceiver {
    pub(super) fn new(sources: Vec<Source>) -> Self {
        Self { sources, turn: 0 }
    }
}

#[async_trait]
impl Receiver for RoutedReceiver {
    /// Fails only while all brokers fail, or with an error that needs an operator.
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        loop {
            // The first ready source wins, so the order changes with each call.
            self.turn = self.turn.wrapping_add(1);
            let count = self.sources.len();
            let (turn, mut waiting) = (self.turn, Vec::with_capacity(count));
            for source in &mut self.sources {
                waiting.push(Box::pin(source.receive(max)));
            }
            if waiting.is_empty() {
                return std::future::pending().await;
            }
            waiting.rotate_left(turn % count);
            let (received, ..) = select_all(waiting).await;
            match received {
                Ok(deliveries) => return Ok(deliveries),
                Err(problem) => {
                    let failing = |source: &Source| source.not_before.is_some();
                    if self.sources.iter().all(failing) || !problem.is_transient() {
                        return Err(problem);
                    }
                    tracing::debug!(
                        %problem,
                        "cannot receive from one of several brokers; it is tried again"
                    );
                }
            }
        }
    }

    async fn settle(&mut self, tickets: &[Ticket]) {
        for source in &mut self.sources {
            let own = source.own(tickets);
            if !own.is_empty() {
                source.receiver.settle(&own).await;
            }
        }
    }

    async fn requeue(&mut self, tickets: &[Ticket]) {
        for source in &mut self.sources {
            let own = source.own(tickets);
            if !own.is_empty() {
                source.receiver.requeue(&own).await;
            }
        }
    }

    fn set_prefetch(&mut self, prefetch: u16) {
        let total = self.sources.iter().map(|source| source.lanes).sum();
        for source in &mut self.sources {
            source
                .receiver
                .set_prefetch(part(prefetch, source.lanes, total));
        }
    }

    async fn pause(&mut self) {
        for source in &mut self.sources {
            source.receiver.pause().await;
        }
    }

    async fn resume(&mut self) {
        for source in &mut self.sources {
            source.receiver.resume().await;
        }
    }
}
