//! One PostgreSQL, one RabbitMQ and one Kafka for all tests of a process.
//!
//! Started when the first test asks. Tests keep out of each other's way by a
//! database, a virtual host or a prefix of topics of their own. A test that stops or
//! kills a server starts its own with [`crate::Postgres::start`],
//! [`crate::RabbitMq::start`] or [`crate::Kafka::start`].

use crate::{Kafka, KafkaAdmin, Postgres, RabbitMq, RabbitMqCtl, database};
use tokio::sync::OnceCell;
use url::Url;
use uuid::Uuid;

/// A superuser's URL of a PostgreSQL server that already runs.
pub const POSTGRES_URL: &str = "JOBWIRE_TEST_POSTGRES_URL";

/// The URL of a RabbitMQ that already runs.
pub const AMQP_URL: &str = "JOBWIRE_TEST_AMQP_URL";

/// The URL of a Kafka that already runs, without a prefix of topics.
pub const KAFKA_URL: &str = "JOBWIRE_TEST_KAFKA_URL";

/// How the program `servers` tells tests the way to `rabbitmqctl`: with it, they make
/// virtual hosts on the node that `servers` started.
pub const RABBITMQCTL: &str = "JOBWIRE_TEST_RABBITMQCTL";

/// The PostgreSQL server that tests share.
#[derive(Debug)]
pub struct SharedPostgres {
    url: String,
    _server: Option<Postgres>,
}

impl SharedPostgres {
    /// The superuser's URL of the server's own database.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of a fresh, empty database.
    pub async fn create_database(&self) -> String {
        database::create(&self.url).await
    }
}

/// The RabbitMQ node that tests share.
#[derive(Debug)]
pub struct SharedRabbitMq {
    url: String,
    ctl: Option<RabbitMqCtl>,
    _node: Option<RabbitMq>,
}

/// A part of a broker in which a test is alone.
#[derive(Clone, Debug)]
pub struct Space {
    /// On RabbitMQ a virtual host of its own, if this broker lets us make one.
    pub url: String,
    /// Begins the names of the test's queues or topics: they are then alone in any
    /// case.
    pub prefix: String,
}

impl SharedRabbitMq {
    /// The URL of the default virtual host.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `rabbitmqctl`; `None` on a node that the environment names.
    #[must_use]
    pub fn ctl(&self) -> Option<&RabbitMqCtl> {
        self.ctl.as_ref()
    }

    /// The URL of a fresh virtual host; `None` where there is no `rabbitmqctl`.
    pub async fn create_vhost(&self) -> Option<String> {
        let vhost = self.ctl.as_ref()?.create_vhost().await;
        Some(database::with_name(&self.url, &vhost))
    }

    /// A place where a test is alone, on any broker.
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
    /// The URL, without a prefix of topics.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its administrator.
    #[must_use]
    pub fn admin(&self) -> KafkaAdmin {
        KafkaAdmin::of(&self.url)
    }

    /// A place where a test is alone.
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

/// The shared PostgreSQL, started if it is not there yet.
pub async fn postgres() -> &'static SharedPostgres {
    static SHARED: OnceCell<SharedPostgres> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            if let Some(url) = variable(POSTGRES_URL) {
                return SharedPostgres { url, _server: None };
            }
            let server = Postgres::start().await;
            SharedPostgres {
                url: server.url("postgres"),
                _server: Some(server),
            }
        })
        .await
}

/// The shared RabbitMQ, started if it is not there yet.
pub async fn rabbitmq() -> &'static SharedRabbitMq {
    static SHARED: OnceCell<SharedRabbitMq> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            if let Some(url) = variable(AMQP_URL) {
                let ctl = variable(RABBITMQCTL).and_then(|address| RabbitMqCtl::at(&address));
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

/// The shared Kafka, started if it is not there yet.
pub async fn kafka() -> &'static SharedKafka {
    static SHARED: OnceCell<SharedKafka> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            if let Some(url) = variable(KAFKA_URL) {
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

/// An empty variable counts as none. A URL is checked here, where its name is known.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    if name != RABBITMQCTL
        && let Err(error) = Url::parse(&value)
    {
        panic!("{name} is not a URL: {error}");
    }
    Some(value)
}
