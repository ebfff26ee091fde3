//! A broker that loses, delays, reorders and doubles messages, and redelivers unsettled ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::DateTime;
use jobwire_core::hint::{Body, Hint, Marker};
use jobwire_core::transport::{
    Control, Delivery, Publisher, Receiver, Subscription, Ticket, TransportError, TransportHealth,
};
use jobwire_core::{Lane, Transport};
use tokio::sync::{Notify, broadcast};
use tokio::time::sleep;

use super::Who;
use super::bug::Bug;
use super::database::Database;
use super::link::Link;
use crate::history::Event;

/// The maximum number of hints in one message.
const PACKED: u64 = 3;
/// The maximum number of messages that a message may overtake.
const OVERTAKES: u64 = 5;

struct Message {
    body: Body,
    redelivered: bool,
}

#[derive(Default)]
struct State {
    lanes: BTreeMap<Lane, VecDeque<Message>>,
    listeners: Vec<(Arc<Link>, broadcast::Sender<Control>)>,
    epochs: u64,
}

/// The broker that all nodes share.
pub(super) struct Broker {
    state: Mutex<State>,
    arrived: Notify,
    database: Arc<Mutex<Database>>,
    bug: Option<Bug>,
    who: Who,
    /// The time after which a marker is confirmed, if that takes long.
    slow_markers: Option<Duration>,
}

impl Broker {
    pub(super) fn new(database: Arc<Mutex<Database>>, bug: Option<Bug>, who: Who) -> Broker {
        Broker {
            state: Mutex::default(),
            arrived: Notify::new(),
            database,
            bug,
            who,
            slow_markers: None,
        }
    }

    pub(super) fn with_slow_markers(self, slow_markers: Option<Duration>) -> Broker {
        Broker {
            slow_markers,
            ..self
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes all waiting messages.
    pub(super) fn purge(&self) {
        self.state().lanes.clear();
    }

    fn push(&self, link: &Link, lane: &Lane, body: &Body) {
        let fault_rates = link.injector().now();
        if link.injector().strikes(fault_rates.lost) {
            link.say(|| format!("lost: {}", describe(link, body)));
            return;
        }
        let copies = 1 + usize::from(link.injector().strikes(fault_rates.doubled));
        for _ in 0..copies {
            let mut state = self.state();
            let queue = state.lanes.entry(lane.clone()).or_default();
            let behind = if link.injector().strikes(fault_rates.reordered) {
                usize::try_from(link.injector().up_to(OVERTAKES)).unwrap_or(0)
            } else {
                0
            };
            let marker = matches!(body, Body::Marker(_));
            let at = if marker && self.bug == Some(Bug::MarkersOvertake) {
                0
            } else {
                queue.len().saturating_sub(behind)
            };
            let message = Message {
                body: body.clone(),
                redelivered: false,
            };
            queue.insert(at, message);
        }
        self.arrived.notify_waiters();
    }

    /// Puts messages back to the front of their lane, in their old order.
    fn put_back(&self, messages: Vec<(Lane, Body)>) {
        let mut state = self.state();
        for (lane, body) in messages.into_iter().rev() {
            let redelivered = true;
            let message = Message { body, redelivered };
            state.lanes.entry(lane).or_default().push_front(message);
        }
        drop(state);
        self.arrived.notify_waiters();
    }
}

fn describe(link: &Link, body: &Body) -> String {
    match body {
        Body::Hints(hints) => {
            let jobs = hints.iter().map(|hint| link.trace().job(hint.id));
            format!("hints {}", jobs.collect::<Vec<_>>().join(" "))
        }
        Body::Marker(marker) => format!("marker {} of {:?}", marker.number, marker.node),
    }
}

/// The broker as one process sees it.
#[derive(Clone)]
pub(super) struct SimTransport {
    broker: Arc<Broker>,
    link: Arc<Link>,
    control: broadcast::Sender<Control>,
}

impl SimTransport {
    pub(super) fn new(broker: Arc<Broker>, link: Arc<Link>) -> SimTransport {
        let (control, _) = broadcast::channel(256);
        let mut state = broker.state();
        state.listeners.retain(|(link, _)| !link.is_dead());
        state.listeners.push((link.clone(), control.clone()));
        drop(state);
        SimTransport {
            broker,
            link,
            control,
        }
    }

    fn away(&self) -> Result<(), TransportError> {
        if self.link.injector().now().broker_away {
            return Err(TransportError::Unreachable("the broker is away".to_owned()));
        }
        Ok(())
    }

    async fn send(&self, lane: &Lane, bodies: Vec<Body>) -> Result<(), TransportError> {
        self.link.gate().await;
        self.link.travel().await;
        self.away()?;
        for body in &bodies {
            self.link
                .say(|| format!("publishes {}", describe(&self.link, body)));
            self.broker.push(&self.link, lane, body);
        }
        self.link.travel().await;
        self.link.gate().await;
        if self
            .link
            .injector()
            .strikes(self.link.injector().now().unconfirmed)
        {
            return Err(TransportError::Timeout(Duration::from_secs(1)));
        }
        Ok(())
    }
}

#[async_trait]
impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.clone())
    }

    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        self.link.gate().await;
        let mut state = self.broker.state();
        state.epochs += 1;
        Ok(Box::new(SimReceiver {
            transport: self.clone(),
            epoch: state.epochs,
            next: 0,
            prefetch: usize::from(subscription.prefetch.max(1)),
            lanes: subscription.lanes,
            unsettled: BTreeMap::new(),
            paused: false,
        }))
    }

    fn is_single_node(&self) -> bool {
        self.broker.who == Who::EmbeddedNode
    }

    fn listen(&self) -> broadcast::Receiver<Control> {
        self.control.subscribe()
    }

    async fn close(&self, _: Duration) {}
}

#[async_trait]
impl Publisher for SimTransport {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        self.link.gate().await;
        {
            let mut database = self.broker.database.lock();
            let database = database.as_mut().map_err(|_| TransportError::Closed)?;
            for hint in &hints {
                database.record(hint.id, Event::Published);
            }
        }
        let mut bodies = Vec::new();
        let mut rest = hints;
        while !rest.is_empty() {
            let count = usize::try_from(1 + self.link.injector().up_to(PACKED - 1)).unwrap_or(1);
            let later = rest.split_off(count.min(rest.len()));
            bodies.push(Body::Hints(std::mem::replace(&mut rest, later)));
        }
        self.send(lane, bodies).await
    }

    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        self.send(lane, vec![Body::Marker(marker)]).await?;
        if let Some(time) = self.broker.slow_markers {
            tokio::time::sleep(time).await;
        }
        Ok(())
    }

    fn tell(&self, control: Control) -> bool {
        if self.link.is_dead() {
            return false;
        }
        let listeners = self.broker.state().listeners.clone();
        let mine = self.link.clone();
        tokio::spawn(async move {
            mine.gate().await;
            mine.travel().await;
            let fault_rates = mine.injector().now();
            for (link, control_of) in listeners {
                let lost = fault_rates.broker_away || mine.injector().strikes(fault_rates.lost);
                if link.is_dead() || lost {
                    continue;
                }
                let copies = 1 + u32::from(mine.injector().strikes(fault_rates.doubled));
                for _ in 0..copies {
                    // An error only means that there is no listener.
                    let _ = control_of.send(control.clone());
                }
            }
        });
        true
    }

    fn health(&self) -> TransportHealth {
        let there = self.away().is_ok();
        TransportHealth {
            publishing: there,
            receiving: there,
            blocked: false,
            joining: false,
            problem: (!there).then(|| "the broker is away".to_owned()),
        }
    }
}

struct SimReceiver {
    transport: SimTransport,
    epoch: u64,
    next: u64,
    prefetch: usize,
    lanes: Vec<Lane>,
    unsettled: BTreeMap<u64, (Lane, Body)>,
    paused: bool,
}

impl SimReceiver {
    fn take(&mut self, max: usize) -> Vec<Delivery> {
        let link = self.transport.link.clone();
        let broker = self.transport.broker.clone();
        let room = self.prefetch.saturating_sub(self.unsettled.len()).min(max);
        let mut deliveries = Vec::new();
        if room == 0 {
            return deliveries;
        }
        let mut state = broker.state();
        for lane in &self.lanes {
            let Some(queue) = state.lanes.get_mut(lane) else {
                continue;
            };
            // Takes at most a random number, so that other nodes get messages too.
            let most = usize::try_from(1 + link.injector().up_to(room as u64 - 1)).unwrap_or(1);
            while deliveries.len() < most
                && let Some(message) = queue.pop_front()
            {
                let number = self.next;
                self.next += 1;
                link.say(|| format!("receives {}", describe(&link, &message.body)));
                if broker.bug != Some(Bug::NeverLooksForOrphans) {
                    let unsettled = (lane.clone(), message.body.clone());
                    self.unsettled.insert(number, unsettled);
                }
                deliveries.push(Delivery {
                    lane: lane.clone(),
                    body: message.body,
                    published_at: None,
                    received_at: DateTime::UNIX_EPOCH,
                    redelivered: message.redelivered,
                    ticket: Ticket {
                        epoch: self.epoch,
                        number,
                    },
                });
            }
        }
        deliveries
    }

    fn forget(&mut self, tickets: &[Ticket]) -> Vec<(Lane, Body)> {
        let mut numbers: Vec<u64> = tickets
            .iter()
            .filter(|ticket| ticket.epoch == self.epoch)
            .map(|ticket| ticket.number)
            .collect();
        numbers.sort_unstable();
        let messages = numbers
            .iter()
            .filter_map(|number| self.unsettled.remove(number));
        messages.collect()
    }
}

#[async_trait]
impl Receiver for SimReceiver {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        loop {
            self.transport.link.gate().await;
            let broker = self.transport.broker.clone();
            let arrived = broker.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            self.transport.away()?;
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
        self.transport.link.gate().await;
        let settled = self.forget(tickets);
        let injector = self.transport.link.injector();
        let fault_rates = injector.now();
        if fault_rates.broker_away || injector.strikes(fault_rates.unsettled) {
            let broker = self.transport.broker.clone();
            let moment = Duration::from_millis(injector.up_to(3_000));
            tokio::spawn(async move {
                sleep(moment).await;
                broker.put_back(settled);
            });
        }
    }

    async fn requeue(&mut self, tickets: &[Ticket]) {
        self.transport.link.gate().await;
        let messages = self.forget(tickets);
        self.transport.broker.put_back(messages);
    }

    async fn pause(&mut self) {
        self.paused = true;
    }

    async fn resume(&mut self) {
        self.paused = false;
        self.transport.broker.arrived.notify_waiters();
    }
}

impl Drop for SimReceiver {
    fn drop(&mut self) {
        let unsettled = std::mem::take(&mut self.unsettled);
        let messages: Vec<(Lane, Body)> = unsettled.into_values().collect();
        let broker = self.transport.broker.clone();
        if !self.transport.link.is_dead() {
            broker.put_back(messages);
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // The broker detects the death after a while.
            let moment = Duration::from_millis(self.transport.link.injector().up_to(2_000));
            runtime.spawn(async move {
                sleep(moment).await;
                broker.put_back(messages);
            });
        }
    }
}
