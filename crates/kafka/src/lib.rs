//! # Jobwire and Kafka: settings only, so far
//!
//! **There is no Kafka transport yet.** Nothing in this crate connects, publishes or receives, and the
//! `jobwire` program does not take a `kafka:` URL for work. What exists is [`KafkaOptions`]: which
//! settings the transport will have, how they are written in a URL, and what is wrong with a URL that
//! cannot be read. It is here first because a URL is what configuration files fill up with: its form
//! should not change later.
//!
//! ```
//! use jobwire_kafka::KafkaOptions;
//!
//! let options = KafkaOptions::parse("kafka://k1:9092,k2:9092/billing?group=billing-workers")?;
//! assert_eq!(options.topic("default"), "billing.lane.default");
//! assert_eq!(options.group, "billing-workers");
//! # Ok::<(), jobwire_kafka::BadKafkaUrl>(())
//! ```
//!
//! The transport itself will implement `jobwire_core::transport` and pass the same conformance suite as
//! the in-process and the RabbitMQ transport. Until then use one of those.

mod options;

pub use options::{BadKafkaUrl, Broker, Credentials, KafkaOptions};
