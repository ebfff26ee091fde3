//! One PostgreSQL, one RabbitMQ and one Kafka for all tests of a process.
//!
//! A server starts when the first test asks for it. Each test has its own database, virtual host or
//! prefix of topics. A test that stops or kills a server starts its own with
//! [`crate::Postgres::start`], [`crate::RabbitMq::start`] or [`crate::Kafka::start`].

use crate::{Kafka, KafkaAdmin, RabbitMq, RabbitMqCtl, database};
use jobwire_harness::shared::url_in;
use tokio::sync::OnceCell;
use uuid::Uuid;

pub use jobwire_harness::shared::{POSTGRES_URL, SharedPostgres, postgres};

/// The variable with the URL of a RabbitMQ that already runs.
pub const AMQP_URL: &str = "JOBWIRE_TEST_AMQP_URL";

/// The variable with the URL of a Kafka that already runs, without a prefix of topics.
pub const KAFKA_URL: &str = "JOBWIRE_TEST_KAFKA_URL";

/// The variable in which the program `servers` passes the address for `rabbitmqctl` to tests. With
/// it they create virtual hosts on the node that `servers` started.
pub const RABBITMQCTL: &str = "JOBWIRE_TEST_RABBITMQCTL";

/// The RabbitMQ node that tests share.
#[derive(Debug)]
pub struct SharedRabbitMq {
    url: String,
    ctl: Option<RabbitMqCtl>,
    _node: Option<RabbitMq>,
}

/// A part of a broker that only one test uses.
#[derive(Clone, Debug)]
pub struct Space {
    /// On RabbitMQ, a virtual host of its own if the broker allows one to be created.
    pub url: String,
    /// The prefix of the names of the test's queues or topics, which keeps them apart in any case.
    pub prefix: String,
}

impl SharedRabbitMq {
    /// Returns the URL of the default virtual host.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns `rabbitmqctl`; `None` on a node that the environment names.
    #[must_use]
    pub fn ctl(&self) -> Option<&RabbitMqCtl> {
        self.ctl.as_ref()
    }

    /// Creates a virtual host and returns its URL; `None` without `rabbitmqctl`.
    pub async fn create_vhost(&self) -> Option<String> {
        let vhost = self.ctl.as_ref()?.create_vhost().await;
        Some(database::with_name(&self.url, &vhost))
    }

    /// Returns a space for one test, on any broker.
    pub async fn space(&self) -> Space {
        let url = self
            .create_vhost()
            .await
            .unwrap_or_else(|| self.url.clone());
        let prefix = prefix();
        Space { url, prefix }
    }
}

/// The Kafka broker that tests share.
#[derive(Debug)]
pub struct SharedKafka {
    url: String,
    _broker: Option<Kafka>,
}

impl SharedKafka {
    /// Returns the URL, without a prefix of topics.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns an administrator of the broker.
    #[must_use]
    pub fn admin(&self) -> KafkaAdmin {
        KafkaAdmin::of(&self.url)
    }

    /// Returns a space for one test.
    #[must_use]
    pub fn space(&self) -> Space {
        Space {
            url: self.url.clone(),
            prefix: prefix(),
        }
    }
}

fn prefix() -> String {
    format!("test-{}-", Uuid::new_v4().simple())
}

/// Returns the shared RabbitMQ. The first call starts it, unless the environment names one.
pub async fn rabbitmq() -> &'static SharedRabbitMq {
    static SHARED: OnceCell<SharedRabbitMq> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            if let Some(url) = url_in(AMQP_URL) {
                let address = std::env::var(RABBITMQCTL).ok();
                let ctl = address.and_then(|address| RabbitMqCtl::at(&address));
                return SharedRabbitMq {
                    url,
                    ctl,
                    _node: None,
                };
            }
            let node = RabbitMq::start().await;
            let ctl = Some(node.ctl().clone());
            SharedRabbitMq {
                url: node.url(),
                ctl,
                _node: Some(node),
            }
        })
        .await
}

/// Returns the shared Kafka. The first call starts it, unless the environment names one.
pub async fn kafka() -> &'static SharedKafka {
    static SHARED: OnceCell<SharedKafka> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            if let Some(url) = url_in(KAFKA_URL) {
                return SharedKafka { url, _broker: None };
            }
            let broker = Kafka::start().await;
            SharedKafka {
                url: broker.url(),
                _broker: Some(broker),
            }
        })
        .await
}
