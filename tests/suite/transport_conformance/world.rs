//! A transport alone with itself, and short ways to say what a case needs.

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

/// A failing test ends after this; a passing one never gets near it.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A transport on which nobody else publishes.
pub(crate) struct World {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) lane: Lane,
    /// A log remembers how far it was read, and has one reader at a time: a message that was decided
    /// behind one that was not comes again, nobody says that it does, and no marker travels.
    pub(crate) is_log: bool,
}

impl World {
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

    /// With one partition, so that there is one order.
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

    /// What comes to the next receiver after these of `sent` have been settled.
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

    /// Of messages that somebody had before.
    pub(crate) fn assert_redelivered(&self, deliveries: &[Delivery]) {
        if !self.is_log {
            assert!(deliveries.iter().all(|delivery| delivery.redelivered));
        }
    }

    /// A receiver of the lane.
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

    /// Publish hints, each in a message of its own.
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

/// Fail, rather than hang, when something does not come.
pub(crate) async fn soon<T>(what: &str, coming: impl Future<Output = T>) -> T {
    match tokio::time::timeout(patience(SOON), coming).await {
        Ok(came) => came,
        Err(_) => panic!("{what} took longer than {SOON:?}"),
    }
}

/// A broker that does not answer for seconds counts as away, and is asked again.
fn answer<T>(answered: Result<T, TransportError>) -> Option<T> {
    match answered {
        Ok(answer) => Some(answer),
        Err(problem) if problem.is_transient() => None,
        Err(problem) => panic!("{problem}"),
    }
}

/// What has come, once something has.
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

/// Receive until this many messages have come.
pub(crate) async fn take(receiver: &mut Box<dyn Receiver>, messages: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < messages {
        taken.extend(receive(receiver, messages - taken.len()).await);
    }
    taken
}

/// Receive and settle until hints for this many jobs have come.
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

/// The ids in order, for comparing where the order does not matter.
pub(crate) fn sorted(mut ids: Vec<JobId>) -> Vec<JobId> {
    ids.sort_unstable();
    ids
}

pub(crate) fn tickets(deliveries: &[Delivery]) -> Vec<Ticket> {
    deliveries.iter().map(|delivery| delivery.ticket).collect()
}
