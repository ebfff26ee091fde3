//! # The Kafka transport of Jobwire
//!
//! Carries hints from the process that commits a job to the node that runs it, through Apache Kafka
//! (2.4 and newer) or a broker with the same protocol. It keeps the contract of
//! [`jobwire_core::transport`]: it may lose, duplicate or delay a hint, it reports for each message
//! whether the brokers have it, and it does not hang on brokers that are slow or away.
//!
//! ```no_run
//! use jobwire_core::transport::{Subscription, Transport};
//! use jobwire_core::{Hint, JobId, Lane};
//! use jobwire_kafka::{KafkaOptions, KafkaTransport};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = KafkaOptions::default().partitions(24);
//! let url = "kafka://user:password@k1:9092,k2:9092/billing?tls=true";
//! let transport = KafkaTransport::connect(url, options).await?;
//! let lane = Lane::default();
//! let mut receiver = transport
//!     .subscribe(Subscription { lanes: vec![lane.clone()], prefetch: 32 })
//!     .await?;
//! transport.publisher().publish(&lane, vec![Hint::new(JobId::generate())]).await?;
//! for delivery in receiver.receive(32).await? {
//!     receiver.settle(&[delivery.ticket]).await;
//! }
//! # Ok(()) }
//! ```
//!
//! # Parts
//! | module | purpose |
//! | --- | --- |
//! | `connection`, `configuration` | the state of the brokers, the configuration that all clients share |
//! | `endpoint` | the URL |
//! | `security`, `mechanism` | TLS and SASL |
//! | `topology` | creates and checks topics; the rights that this needs |
//! | `publisher`, `producers`, `delivery`, `keys`, `partitioner` | packing by partition, confirms; the producer and its replacement; delivery reports |
//! | `receiver`, `lane`, `lane_client`, `assignment`, `partition` | consuming, rebalances, settling by a low watermark |
//! | `settled`, `askers` | answers markers by offsets; the clients that read them |
//! | `crowd` | warns when a lane has more nodes than partitions |
//! | `control` | control messages between nodes |
//! | `statistics` | librdkafka's statistics and the lanes' backlogs, as metrics |
//! | `error` | errors of the brokers, with remedies |
//! | `blocking`, `ending` | calls that block; the drop of clients |
//!
//! # Differences from RabbitMQ
//! * A partition has one receiver at a time, so at most as many nodes share a lane as its topic has
//!   partitions.
//! * Kafka does not report an earlier delivery of a message. Only a message that this node requeued
//!   and received again is marked as redelivered.
//! * A requeued message is fetched again, by this node or by the partition's next owner, together
//!   with the unsettled messages below and above it.
//! * Offsets answer the sweeper's markers; no marker message is sent.
//!
//! # Build
//! librdkafka is compiled from its C sources (gcc, make) and linked statically. OpenSSL and zlib
//! are the system's (`libssl-dev`, `zlib1g-dev`). GSSAPI and librdkafka's own OpenID Connect are
//! not included; tokens come from a [`TokenSource`].
//!
//! # Errors
//! [`TransportError::Setting`] reports an invalid URL or setting. [`TransportError::Refused`]
//! reports a wrong password and a missing right. Both have a remedy. Other errors need no operator.
//! No error, log line or `Debug` text of this crate shows the password.
//!
//! # Metrics
//! `jobwire_broker_up{direction}`, `jobwire_broker_reconnects_total{direction}`,
//! `jobwire_hints_unreadable_total{lane}`, and the metrics of `statistics`. Directions are
//! `publish` and `receive`.

mod askers;
mod assignment;
mod blocking;
mod configuration;
mod connection;
mod control;
mod crowd;
mod delivery;
mod ending;
mod endpoint;
mod error;
mod events;
mod flow;
mod keys;
mod lane;
mod lane_client;
mod mechanism;
mod memory;
mod offsets;
mod options;
mod partition;
mod partitioner;
mod patience;
mod producers;
mod publisher;
mod receiver;
mod security;
mod settled;
mod stall;
mod statistics;
mod topology;
mod transport;

#[cfg(doc)]
use jobwire_core::transport::TransportError;

pub use mechanism::Mechanism;
pub use options::KafkaOptions;
pub use security::{Token, TokenFile, TokenSource};
pub use transport::KafkaTransport;
