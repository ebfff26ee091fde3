//! A virtual host on the shared broker, transports in it, and a plain AMQP client.

use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::transport::{
    Delivery, Publisher, Receiver, Subscription, Transport, TransportError,
};
use jobwire_core::{Hint, JobId, Lane};
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{Proxy, eventually};
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

pub(super) use crate::transport_conformance::subject::{SOON, ids, ids_of, soon, take, tickets};

/// A virtual host, or at least a prefix, of this test.
pub(super) struct VirtualHost {
    pub(super) space: Space,
    pub(super) lane: Lane,
}

impl VirtualHost {
    pub(super) async fn new() -> Self {
        Self {
            space: shared::rabbitmq().await.space().await,
            lane: Lane::default(),
        }
    }

    /// Options with short waits before a reconnect.
    pub(super) fn options(&self) -> AmqpOptions {
        options(&self.space.prefix)
    }

    pub(super) async fn transport(&self) -> AmqpTransport {
        connect(&self.space.url, self.options()).await
    }

    /// Returns a transport that reaches the broker through a proxy.
    pub(super) async fn behind_a_proxy(&self) -> (Proxy, AmqpTransport) {
        self.behind_a_proxy_with(self.options()).await
    }

    pub(super) async fn behind_a_proxy_with(&self, options: AmqpOptions) -> (Proxy, AmqpTransport) {
        let url = url::Url::parse(&self.space.url).unwrap();
        let address = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5672));
        let proxy = Proxy::start(&address).await;
        let transport = connect(&proxy.url(&self.space.url), options).await;
        (proxy, transport)
    }

    pub(super) fn queue(&self) -> String {
        format!("{}.lane.{}", self.space.prefix, self.lane)
    }

    /// Returns a plain AMQP client.
    pub(super) async fn stranger(&self) -> Stranger {
        Stranger::connect(&self.space.url).await
    }
}

/// The time limits are for slow machines: a test of a limit sets it.
pub(super) fn options(prefix: &str) -> AmqpOptions {
    AmqpOptions::default()
        .prefix(prefix.to_owned())
        .confirm_timeout(SOON)
        .max_reconnect_wait(Duration::from_millis(200))
        .heartbeat(Duration::from_secs(60))
        .connect_timeout(SOON)
}

/// Returns a transport that is connected in both directions.
pub(super) async fn connect(url: &str, options: AmqpOptions) -> AmqpTransport {
    let transport = begin(url, options).await;
    until_healthy(&transport).await;
    transport
}

/// Returns a transport without waiting for the broker, which may be away.
pub(super) async fn begin(url: &str, options: AmqpOptions) -> AmqpTransport {
    soon("connecting", AmqpTransport::connect(url, options))
        .await
        .unwrap()
}

/// Waits until the broker refuses the connection, and returns the error. A slow broker answers
/// after the time that connecting waits.
pub(super) async fn refused_to_connect(url: &str, options: &AmqpOptions) -> TransportError {
    eventually("a refusal", SOON, || async {
        let connected = AmqpTransport::connect(url, options.clone()).await;
        connected.err()
    })
    .await
}

/// Waits for a refusal to receive. Ignores transient errors.
pub(super) async fn refused_to_subscribe(transport: &AmqpTransport, lane: &Lane) -> TransportError {
    eventually("a refusal to receive", SOON, || async {
        let refused = subscribe(transport, lane, 10).await.err();
        refused.filter(|problem| !problem.is_transient())
    })
    .await
}

/// Waits for a refusal to publish. Ignores transient errors.
pub(super) async fn refused_to_publish(transport: &AmqpTransport, lane: &Lane) -> TransportError {
    eventually("a refusal to publish", SOON, || async {
        let refused = publish(transport, lane).await.err();
        refused.filter(|problem| {
            // It passes when a node receives the lane.
            matches!(problem, TransportError::NoReceiver(_)) || !problem.is_transient()
        })
    })
    .await
}

pub(super) async fn subscribe(
    transport: &AmqpTransport,
    lane: &Lane,
    prefetch: u16,
) -> Result<Box<dyn Receiver>, TransportError> {
    let subscription = Subscription {
        lanes: vec![lane.clone()],
        prefetch,
    };
    soon("subscribing", transport.subscribe(subscription)).await
}

pub(super) async fn publish(
    transport: &AmqpTransport,
    lane: &Lane,
) -> Result<JobId, TransportError> {
    let id = JobId::generate();
    let published = transport
        .publisher()
        .publish(lane, vec![Hint::new(id)])
        .await;
    published.map(|()| id)
}

/// Publishes until the broker has the hint, as the sweeper does.
pub(super) async fn publish_at_last(transport: &AmqpTransport, lane: &Lane) -> JobId {
    eventually("the broker to take a hint", SOON, || async {
        publish(transport, lane).await.ok()
    })
    .await
}

/// Receives until a message comes, as a consumer does. Ignores errors.
pub(super) async fn receive_at_last(receiver: &mut Box<dyn Receiver>) -> Vec<Delivery> {
    soon("a message", async {
        loop {
            if let Ok(deliveries) = receiver.receive(64).await {
                return deliveries;
            }
        }
    })
    .await
}

/// Waits until the receiver gets this hint, perhaps after others.
pub(super) async fn arrives(receiver: &mut Box<dyn Receiver>, id: JobId) {
    loop {
        let deliveries = receive_at_last(receiver).await;
        receiver.settle(&tickets(&deliveries)).await;
        if ids(&deliveries).contains(&id) {
            return;
        }
    }
}

pub(super) async fn until_healthy(transport: &AmqpTransport) {
    eventually("the transport to be healthy", SOON, || async {
        let health = transport.publisher().health();
        (health.publishing && health.receiving && !health.blocked).then_some(())
    })
    .await;
}

pub(super) fn health(transport: &AmqpTransport) -> jobwire_core::transport::TransportHealth {
    Publisher::health(transport)
}

/// Another client of the same broker.
pub(super) struct Stranger {
    _connection: Connection,
    channel: Channel,
}

impl Stranger {
    pub(super) async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default());
        let connection = connection.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        // A sent message is in the queue before any that another connection sends later.
        let confirming = channel.confirm_select(ConfirmSelectOptions::default());
        confirming.await.unwrap();
        Self {
            _connection: connection,
            channel,
        }
    }

    /// Declares a durable queue with these arguments.
    pub(super) async fn declare(&self, queue: &str, arguments: &[(&str, AMQPValue)]) {
        self.try_declare(queue, arguments).await.unwrap();
    }

    pub(super) async fn try_declare(
        &self,
        queue: &str,
        arguments: &[(&str, AMQPValue)],
    ) -> lapin::Result<lapin::Queue> {
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self.channel.queue_declare(queue.into(), options, table);
        declared.await
    }

    /// Consumes a queue that no other consumer may consume beside this one.
    pub(super) async fn consume_alone(&self, queue: &str) -> lapin::Result<lapin::Consumer> {
        let options = BasicConsumeOptions {
            exclusive: true,
            ..BasicConsumeOptions::default()
        };
        let consuming =
            self.channel
                .basic_consume(queue.into(), "".into(), options, FieldTable::default());
        consuming.await
    }

    pub(super) async fn delete(&self, queue: &str) {
        let deleted = self
            .channel
            .queue_delete(queue.into(), QueueDeleteOptions::default());
        deleted.await.unwrap();
    }

    /// Returns whether the queue exists. If it does not, the broker closes the channel.
    pub(super) async fn is_there(&self, queue: &str) -> bool {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let none = FieldTable::default();
        let looked = self.channel.queue_declare(queue.into(), options, none);
        looked.await.is_ok()
    }

    /// Returns the number of messages that wait in a queue.
    pub(super) async fn waiting(&self, queue: &str) -> u32 {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let looked = self
            .channel
            .queue_declare(queue.into(), options, FieldTable::default());
        looked.await.unwrap().message_count()
    }

    /// Publishes to a queue.
    pub(super) async fn send(&self, queue: &str, bytes: &[u8]) {
        self.publish("", queue, bytes).await;
    }

    /// Publishes to all listeners of an exchange.
    pub(super) async fn tell(&self, exchange: &str, bytes: &[u8]) {
        self.publish(exchange, "", bytes).await;
    }

    async fn publish(&self, exchange: &str, key: &str, bytes: &[u8]) {
        let sent = self.channel.basic_publish(
            exchange.into(),
            key.into(),
            BasicPublishOptions::default(),
            bytes,
            BasicProperties::default(),
        );
        sent.await.unwrap().await.unwrap();
    }
}

/// The argument that makes a queue classic or quorum.
pub(super) fn kind(name: &str) -> (&'static str, AMQPValue) {
    ("x-queue-type", AMQPValue::LongString(name.into()))
}

/// An argument that is a number.
pub(super) fn number(name: &str, value: i32) -> (&str, AMQPValue) {
    (name, AMQPValue::LongInt(value))
}
