//! The world of [`jobwire_harness`], and what needs a broker or a proxy.

use std::sync::Arc;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::{PgStore, Transport};
use jobwire_kafka::{KafkaOptions, KafkaTransport};
use jobwire_tests::shared::Space;
use jobwire_tests::{Proxy, eventually};

pub(crate) use jobwire_harness::world::*;

/// Starts a proxy in front of the server of this database.
pub(crate) async fn proxy_before(url: &str) -> Proxy {
    let server = url::Url::parse(url).unwrap();
    let (host, port) = (server.host_str().unwrap(), server.port().unwrap());
    Proxy::start(&format!("{host}:{port}")).await
}

/// Waits until a node leads.
pub(crate) async fn until_led(store: &PgStore) {
    let led = "SELECT EXISTS (SELECT FROM jobwire.leader WHERE expires_at > clock_timestamp())";
    eventually("a node to lead", SOON, async || {
        let led: bool = sqlx::query_scalar(led).fetch_one(store.pool()).await.ok()?;
        led.then_some(())
    })
    .await;
}

/// Returns a transport to a space on RabbitMQ or Kafka; on Kafka a topic has this number of
/// partitions.
pub(crate) async fn connect(space: &Space, partitions: i32) -> Arc<dyn Transport> {
    if space.url.starts_with("kafka://") {
        let url = format!("{}/{}", space.url, space.prefix);
        let options = KafkaOptions::default().partitions(partitions);
        return Arc::new(KafkaTransport::connect(&url, options).await.unwrap());
    }
    let mut options = AmqpOptions::default();
    options.prefix.clone_from(&space.prefix);
    Arc::new(AmqpTransport::connect(&space.url, options).await.unwrap())
}
