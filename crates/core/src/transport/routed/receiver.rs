//! Receiving from several brokers at once.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select_all;
use tokio::time::Instant;

use crate::transport::{Delivery, Receiver, Ticket, TransportError};

/// Brokers whose tickets can be told apart.
pub(super) const MOST: usize = 16;
/// Where a ticket says which broker it is of.
const SHIFT: u32 = 59;
/// A broker that can't be received from is tried again after this.
const AGAIN: Duration = Duration::from_millis(500);

/// One of the brokers.
pub(super) struct Source {
    tag: u64,
    receiver: Box<dyn Receiver>,
    /// It failed, and is left alone for a moment.
    not_before: Option<Instant>,
}

impl Source {
    /// The broker of this number in the map.
    pub(super) fn new(at: usize, receiver: Box<dyn Receiver>) -> Self {
        Self {
            tag: (at as u64) << SHIFT,
            receiver,
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

/// All of them.
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
    /// Fails only while no broker can be received from.
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        loop {
            // The first of those that are ready wins: let it be another one each time.
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
                    tracing::debug!(%problem, "one of several brokers can't be received from");
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
