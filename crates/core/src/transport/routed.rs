//! Several brokers for one database: by lane, and during a move from one broker to another.
//!
//! ```text
//!                       ┌── lane "bulk" ─────────► Kafka
//!   publish, receive ───┤
//!                       └── every other lane ────► RabbitMQ
//!
//!   receive only ────────── every lane ◄────────── the former broker, until it is empty
//! ```
//! * A lane is published to one broker. Give every program of a fleet the same map, including
//!   programs that receive only some of the lanes: the leader hints jobs of any lane.
//! * A **former** broker is received from and never published to. To move a live fleet, restart the
//!   nodes one after the other with the new broker and the old one as former, then the producers,
//!   and, when the old queues are empty, the nodes once more without it. Every hint has a receiver
//!   throughout.
//! * Control messages go over all brokers, so that nodes with different maps receive them.
//! * The sweeper's marker travels the lane's broker and the former ones. It is back when every
//!   broker that took it has brought it back. A former broker that is away is skipped: its hints
//!   come late or never, and the jobs are hinted again.

mod markers;
mod receiver;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::markers::Markers;
use self::receiver::{MOST, RoutedReceiver, Source};
use super::{
    Control, EventPublisher, Publisher, Receiver, Subscription, Transport, TransportError,
    TransportHealth,
};
use crate::hint::{Hint, Marker};
use crate::job::Lane;

/// Maximum number of messages that a slow listener may be behind.
const LISTEN_BUFFER: usize = 1024;

/// A transport over several brokers. See the [module](self).
///
/// ```no_run
/// # use std::sync::Arc;
/// # use jobwire_core::{Lane, Transport};
/// # use jobwire_core::transport::routed::RoutedTransport;
/// # fn example(rabbitmq: Arc<dyn Transport>, kafka: Arc<dyn Transport>) -> Result<(), jobwire_core::BadLane> {
/// // Some lanes over another broker:
/// let by_lane = RoutedTransport::builder(rabbitmq.clone())
///     .lanes([Lane::new("bulk")?], kafka.clone())
///     .build();
/// // Moving from RabbitMQ to Kafka:
/// let moving = RoutedTransport::builder(kafka).former(rabbitmq).build();
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RoutedTransport(Arc<Shared>);

/// The builder of a [`RoutedTransport`].
pub struct Builder {
    all: Vec<Arc<dyn Transport>>,
    by_lane: HashMap<Lane, usize>,
    former: Vec<usize>,
}

impl Builder {
    /// Routes these lanes over the given broker.
    #[must_use]
    pub fn lanes(
        mut self,
        lanes: impl IntoIterator<Item = Lane>,
        over: Arc<dyn Transport>,
    ) -> Self {
        let at = self.add(over);
        self.by_lane
            .extend(lanes.into_iter().map(|lane| (lane, at)));
        self
    }

    /// Adds a former broker. Its hints are still received, but none are published to it.
    #[must_use]
    pub fn former(mut self, broker: Arc<dyn Transport>) -> Self {
        let at = self.add(broker);
        self.former.push(at);
        self
    }

    fn add(&mut self, transport: Arc<dyn Transport>) -> usize {
        self.all.push(transport);
        self.all.len() - 1
    }

    /// Builds the transport. Needs a tokio runtime. Receives from the first 16 brokers only.
    #[must_use]
    pub fn build(self) -> RoutedTransport {
        let stop = CancellationToken::new();
        let heard = broadcast::Sender::new(LISTEN_BUFFER);
        let markers = Arc::new(Markers::default());
        for transport in &self.all {
            let listening = hear(transport.listen(), heard.clone(), markers.clone());
            let stop = stop.clone();
            tokio::spawn(async move { stop.run_until_cancelled(listening).await });
        }
        let publishers = self.all.iter().map(|t| t.publisher()).collect();
        RoutedTransport(Arc::new(Shared {
            all: self.all,
            publishers,
            by_lane: self.by_lane,
            former: self.former,
            heard,
            markers,
            _stop: stop.drop_guard(),
        }))
    }
}

struct Shared {
    /// The first transport carries every lane that is not in `by_lane`.
    all: Vec<Arc<dyn Transport>>,
    publishers: Vec<Arc<dyn Publisher>>,
    by_lane: HashMap<Lane, usize>,
    former: Vec<usize>,
    heard: broadcast::Sender<Control>,
    markers: Arc<Markers>,
    _stop: DropGuard,
}

async fn hear(
    mut from: broadcast::Receiver<Control>,
    heard: broadcast::Sender<Control>,
    markers: Arc<Markers>,
) {
    loop {
        let control = match from.recv().await {
            Ok(Control::MarkerBack { lane, marker }) => {
                let Some(marker) = markers.back(marker) else {
                    continue;
                };
                Control::MarkerBack { lane, marker }
            }
            Ok(control) => control,
            Err(broadcast::error::RecvError::Lagged(_)) => Control::Missed,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        // Without listeners the message is not needed.
        let _ = heard.send(control);
    }
}

impl RoutedTransport {
    /// Returns a builder with the broker of all lanes that are not routed elsewhere.
    #[must_use]
    pub fn builder(default: Arc<dyn Transport>) -> Builder {
        Builder {
            all: vec![default],
            by_lane: HashMap::new(),
            former: Vec::new(),
        }
    }

    fn publisher_of(&self, lane: &Lane) -> &Arc<dyn Publisher> {
        let at = self.0.by_lane.get(lane).copied().unwrap_or(0);
        &self.0.publishers[at]
    }
}

#[async_trait]
impl Publisher for RoutedTransport {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        self.publisher_of(lane).publish(lane, hints).await
    }

    fn confirm_timeout(&self) -> Duration {
        let all = self.0.publishers.iter();
        all.map(|publisher| publisher.confirm_timeout())
            .max()
            .unwrap_or_default()
    }

    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        if self.0.former.is_empty() {
            return self.publisher_of(lane).publish_marker(lane, marker).await;
        }
        let Shared {
            former, markers, ..
        } = &*self.0;
        let others = markers.split(marker, former.len());
        let sending = former.iter().zip(others).map(|(at, other)| {
            let publisher = &self.0.publishers[*at];
            async move { (other, publisher.publish_marker(lane, other).await) }
        });
        for (other, sent) in join_all(sending).await {
            if let Err(problem) = sent {
                tracing::debug!(
                    %lane,
                    %problem,
                    "a former broker did not take the marker; the marker does not wait for it"
                );
                markers.forget(other);
            }
        }
        let sent = self.publisher_of(lane).publish_marker(lane, marker).await;
        if sent.is_err() {
            markers.remove(marker);
        }
        sent
    }

    fn tell(&self, control: Control) -> bool {
        let mut told = false;
        for publisher in &self.0.publishers {
            told |= publisher.tell(control.clone());
        }
        told
    }

    fn health(&self) -> TransportHealth {
        let mut health = TransportHealth {
            publishing: true,
            receiving: true,
            ..TransportHealth::default()
        };
        let mut problems = Vec::new();
        for (at, publisher) in self.0.publishers.iter().enumerate() {
            let one = publisher.health();
            if !self.0.former.contains(&at) {
                health.publishing &= one.publishing;
                health.receiving &= one.receiving;
                health.blocked |= one.blocked;
            }
            if let Some(problem) = one.problem {
                problems.push(format!("{}: {problem}", self.0.all[at].name()));
            }
        }
        health.problem = (!problems.is_empty()).then(|| problems.join("; "));
        health
    }

    fn health_of(&self, lane: &Lane) -> TransportHealth {
        self.publisher_of(lane).health_of(lane)
    }
}

#[async_trait]
impl Transport for RoutedTransport {
    /// Returns the publisher of the broker that carries all lanes that are not routed elsewhere.
    fn events(&self) -> Option<Arc<dyn EventPublisher>> {
        self.0.all[0].events()
    }

    fn name(&self) -> &'static str {
        // The transport that a node without former brokers or routed lanes would use.
        self.0.all[0].name()
    }

    fn is_single_node(&self) -> bool {
        self.0
            .all
            .iter()
            .any(|transport| transport.is_single_node())
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.clone())
    }

    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        let mut sources = Vec::new();
        let lanes_of = |at: usize| -> Vec<Lane> {
            let carries = |lane: &&Lane| {
                self.0.former.contains(&at) || self.0.by_lane.get(*lane).copied().unwrap_or(0) == at
            };
            subscription.lanes.iter().filter(carries).cloned().collect()
        };
        let wanted: Vec<(usize, Vec<Lane>)> = (0..self.0.all.len().min(MOST))
            .map(|at| (at, lanes_of(at)))
            .filter(|(_, lanes)| !lanes.is_empty())
            .collect();
        let total: usize = wanted.iter().map(|(_, lanes)| lanes.len()).sum();
        for (at, lanes) in wanted {
            let count = lanes.len();
            let part = Subscription {
                lanes,
                prefetch: receiver::part(subscription.prefetch, count, total),
            };
            let receiver = self.0.all[at].subscribe(part).await?;
            sources.push(Source::new(at, receiver, count));
        }
        Ok(Box::new(RoutedReceiver::new(sources)))
    }

    fn listen(&self) -> broadcast::Receiver<Control> {
        self.0.heard.subscribe()
    }

    async fn close(&self, within: Duration) {
        join_all(self.0.all.iter().map(|transport| transport.close(within))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Body;
    use crate::job::{JobId, NodeId};
    use crate::transport::in_process::InProcessTransport;
    use crate::transport::{Delivery, Ticket};

    fn lane(name: &str) -> Lane {
        Lane(name.to_owned())
    }

    fn broker() -> Arc<dyn Transport> {
        Arc::new(InProcessTransport::new())
    }

    async fn publish(transport: &dyn Transport, name: &str) -> JobId {
        let hint = Hint::new(JobId::generate());
        let publisher = transport.publisher();
        publisher
            .publish(&lane(name), vec![hint.clone()])
            .await
            .unwrap();
        hint.id
    }

    async fn subscribe(transport: &dyn Transport, names: &[&str]) -> Box<dyn Receiver> {
        let subscription = Subscription {
            lanes: names.iter().map(|name| lane(name)).collect(),
            prefetch: 8,
        };
        transport.subscribe(subscription).await.unwrap()
    }

    async fn take(receiver: &mut Box<dyn Receiver>, count: usize) -> Vec<Delivery> {
        let mut taken = Vec::new();
        while taken.len() < count {
            taken.extend(receiver.receive(8).await.unwrap());
        }
        taken
    }

    fn ids(deliveries: &[Delivery]) -> Vec<JobId> {
        let mut ids: Vec<JobId> = deliveries
            .iter()
            .flat_map(|delivery| match &delivery.body {
                Body::Hints(hints) => hints.iter().map(|hint| hint.id).collect(),
                Body::Marker(_) => Vec::new(),
            })
            .collect();
        ids.sort_unstable();
        ids
    }

    #[tokio::test]
    async fn a_lane_goes_over_its_broker_and_all_are_received() {
        let (main, second) = (broker(), broker());
        let routed = RoutedTransport::builder(main.clone())
            .lanes([lane("bulk")], second.clone())
            .build();
        let mut sent = vec![
            publish(&routed, "default").await,
            publish(&routed, "bulk").await,
        ];
        let mut there = subscribe(&*second, &["bulk", "default"]).await;
        let bulk = take(&mut there, 1).await;
        assert_eq!(ids(&bulk), sent[1..]);
        drop(there);
        let mut receiver = subscribe(&routed, &["default", "bulk"]).await;
        let deliveries = take(&mut receiver, 2).await;
        sent.sort_unstable();
        assert_eq!(ids(&deliveries), sent);
        // Both brokers recognize their tickets: a settled message does not come back, a requeued
        // one does.
        let tickets: Vec<Ticket> = deliveries.iter().map(|d| d.ticket).collect();
        receiver.settle(&tickets[..1]).await;
        receiver.requeue(&tickets[1..]).await;
        let again = take(&mut receiver, 1).await;
        assert_eq!(ids(&again), ids(&deliveries[1..]));
    }

    #[tokio::test]
    async fn a_former_broker_is_received_from_and_never_published_to() {
        let (old, new) = (broker(), broker());
        let left = publish(&*old, "default").await;
        let routed = RoutedTransport::builder(new.clone())
            .former(old.clone())
            .build();
        let mut receiver = subscribe(&routed, &["default"]).await;
        assert_eq!(ids(&take(&mut receiver, 1).await), [left]);
        let fresh = publish(&routed, "default").await;
        drop(receiver);
        let mut receiver = subscribe(&*new, &["default"]).await;
        assert_eq!(ids(&take(&mut receiver, 1).await), [fresh]);
    }

    #[tokio::test]
    async fn a_marker_is_back_when_the_former_broker_brought_its_own_back() {
        let (old, new) = (broker(), broker());
        let routed = RoutedTransport::builder(new).former(old).build();
        let mut heard = routed.listen();
        let marker = Marker {
            number: 7,
            node: NodeId::generate(),
        };
        let sent = routed.publish_marker(&lane("default"), marker).await;
        sent.unwrap();
        let mut receiver = subscribe(&routed, &["default"]).await;
        let mut markers = Vec::new();
        for delivery in take(&mut receiver, 2).await {
            match delivery.body {
                Body::Marker(marker) => markers.push(marker),
                Body::Hints(_) => panic!("no hint was published"),
            }
        }
        // First the marker of the lane's own broker, which proves nothing about the former broker.
        markers.sort_unstable_by_key(|m| m.number);
        assert_eq!(markers[0], marker);
        routed.tell(Control::MarkerBack {
            lane: lane("default"),
            marker: markers[0],
        });
        routed.tell(Control::Look);
        while heard.recv().await.unwrap() != Control::Look {}
        let lane = lane("default");
        routed.tell(Control::MarkerBack {
            lane: lane.clone(),
            marker: markers[1],
        });
        let back = Control::MarkerBack { lane, marker };
        let mut next = heard.recv().await.unwrap();
        while next == Control::Look {
            next = heard.recv().await.unwrap();
        }
        assert_eq!(next, back);
    }

    #[tokio::test]
    async fn a_former_broker_that_is_away_is_not_waited_for() {
        let (old, new) = (broker(), broker());
        old.close(Duration::ZERO).await;
        let routed = RoutedTransport::builder(new).former(old).build();
        let mut heard = routed.listen();
        let (lane, number) = (lane("default"), 1);
        let node = NodeId::generate();
        let marker = Marker { number, node };
        routed.publish_marker(&lane, marker).await.unwrap();
        let back = Control::MarkerBack { lane, marker };
        routed.tell(back.clone());
        assert_eq!(heard.recv().await.unwrap(), back);
        assert!(routed.health().publishing && routed.health().problem.is_some());
    }
}
