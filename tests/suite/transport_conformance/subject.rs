//! A transport that no other test uses, and short helpers for the cases.

use std::sync::Arc;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport, QueueType};
use jobwire_core::hint::Body;
use jobwire_core::transport::{
    Delivery, Receiver, Subscription, Ticket, Transport, TransportError,
};
use jobwire_core::{Hint, InProcessTransport, JobId, Lane};
use jobwire_kafka::{KafkaOptions, KafkaTransport};
use jobwire_tests::wait::patience;
use jobwire_tests::{eventually, shared};

/// The deadline of a failing test. A passing test is much faster.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A transport on which only the test publishes.
pub(crate) struct Subject {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) lane: Lane,
    /// A log stores how far it was read, and has one reader at a time. A message that was decided
    /// behind an undecided one comes again, without the mark of a redelivery, and no marker
    /// travels.
    pub(crate) is_log: bool,
}

impl Subject {
    pub(crate) async fn in_process() -> Self {
        Self::of(Arc::new(InProcessTransport::new()))
    }

    pub(crate) async fn rabbitmq() -> Self {
        Self::rabbitmq_with(QueueType::Classic).await
    }

    pub(crate) async fn rabbitmq_quorum() -> Self {
        Self::rabbitmq_with(QueueType::Quorum).await
    }

    async fn rabbitmq_with(queue_type: QueueType) -> Self {
        let space = shared::rabbitmq().await.space().await;
        let options = AmqpOptions::default()
            .prefix(space.prefix)
            .queue_type(queue_type)
            .confirm_timeout(patience(SOON));
        let transport = AmqpTransport::connect(&space.url, options).await.unwrap();
        Self::of(Arc::new(transport))
    }

    /// Connects with one partition, so that there is one order.
    pub(crate) async fn kafka() -> Self {
        let space = shared::kafka().await.space();
        let options = KafkaOptions::default()
            .partitions(1)
            .commit_interval(Duration::from_millis(100))
            .release_after(Duration::from_secs(2))
            .confirm_timeout(patience(SOON))
            .session_timeout(Duration::from_secs(30));
        let url = format!("{}/{}", space.url, space.prefix);
        let transport = KafkaTransport::connect(&url, options).await.unwrap();
        Self {
            is_log: true,
            ..Self::of(Arc::new(transport))
        }
    }

    fn of(transport: Arc<dyn Transport>) -> Self {
        Self {
            transport,
            lane: Lane::default(),
            is_log: false,
        }
    }

    /// Returns what the next receiver gets after these of `sent` have been settled.
    pub(crate) fn left(&self, sent: &[JobId], settled: &[usize]) -> Vec<JobId> {
        let low = (0..sent.len()).find(|n| !settled.contains(n));
        let comes = |n: usize| {
            if self.is_log {
                low.is_some_and(|low| n >= low)
            } else {
                !settled.contains(&n)
            }
        };
        let left = sent.iter().enumerate().filter(|(n, _)| comes(*n));
        sorted(left.map(|(_, id)| *id).collect())
    }

    /// Asserts that these messages are marked as redelivered.
    pub(crate) fn assert_redelivered(&self, deliveries: &[Delivery]) {
        if !self.is_log {
            assert!(deliveries.iter().all(|delivery| delivery.redelivered));
        }
    }

    /// Returns a receiver of the lane.
    pub(crate) async fn receiver(&self, prefetch: u16) -> Box<dyn Receiver> {
        self.receiver_of(std::slice::from_ref(&self.lane), prefetch)
            .await
    }

    pub(crate) async fn receiver_of(&self, lanes: &[Lane], prefetch: u16) -> Box<dyn Receiver> {
        let subscription = Subscription {
            lanes: lanes.to_vec(),
            prefetch,
        };
        soon("subscribing", self.transport.subscribe(subscription))
            .await
            .unwrap()
    }

    /// Publishes hints, each in its own message.
    pub(crate) async fn publish(&self, count: usize) -> Vec<JobId> {
        self.publish_to(&self.lane, count).await
    }

    pub(crate) async fn publish_to(&self, lane: &Lane, count: usize) -> Vec<JobId> {
        let publisher = self.transport.publisher();
        let mut ids = Vec::new();
        for _ in 0..count {
            let id = JobId::generate();
            eventually("a hint to be published", SOON, || async {
                answer(publisher.publish(lane, vec![Hint::new(id)]).await)
            })
            .await;
            ids.push(id);
        }
        ids
    }
}

/// Waits for a result, and fails instead of hanging when it does not come.
pub(crate) async fn soon<T>(what: &str, coming: impl Future<Output = T>) -> T {
    match tokio::time::timeout(patience(SOON), coming).await {
        Ok(came) => came,
        Err(_) => panic!("{what} took longer than {SOON:?}"),
    }
}

/// Returns the answer, or `None` for a broker that counts as away since it did not answer for
/// seconds; the caller then asks again.
fn answer<T>(answered: Result<T, TransportError>) -> Option<T> {
    match answered {
        Ok(answer) => Some(answer),
        Err(problem) if problem.is_transient() => None,
        Err(problem) => panic!("{problem}"),
    }
}

/// Receives once, and waits until something has come.
pub(crate) async fn receive(receiver: &mut Box<dyn Receiver>, most: usize) -> Vec<Delivery> {
    let receiving = async {
        loop {
            if let Some(deliveries) = answer(receiver.receive(most).await) {
                return deliveries;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon("receiving", receiving).await
}

/// Receives until this many messages have come.
pub(crate) async fn take(receiver: &mut Box<dyn Receiver>, messages: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < messages {
        taken.extend(receive(receiver, messages - taken.len()).await);
    }
    taken
}

/// Receives and settles until hints for this many jobs have come.
pub(crate) async fn drain(receiver: &mut Box<dyn Receiver>, hints: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    while ids.len() < hints {
        let deliveries = receive(receiver, 256).await;
        receiver.settle(&tickets(&deliveries)).await;
        ids.extend(deliveries.iter().flat_map(ids_of));
    }
    ids
}

pub(crate) fn ids_of(delivery: &Delivery) -> Vec<JobId> {
    match &delivery.body {
        Body::Hints(hints) => hints.iter().map(|hint| hint.id).collect(),
        Body::Marker(_) => Vec::new(),
    }
}

pub(crate) fn ids(deliveries: &[Delivery]) -> Vec<JobId> {
    deliveries.iter().flat_map(ids_of).collect()
}

/// Sorts ids, for comparisons in which the order does not matter.
pub(crate) fn sorted(mut ids: Vec<JobId>) -> Vec<JobId> {
    ids.sort_unstable();
    ids
}

pub(crate) fn tickets(deliveries: &[Delivery]) -> Vec<Ticket> {
    deliveries.iter().map(|delivery| delivery.ticket).collect()
}
