//! # The Kafka transport of Jobwire
//!
//! Carries hints from whoever commits a job to whoever runs it, through Apache Kafka (2.4 and newer) or
//! what speaks its protocol. It keeps the contract of [`jobwire_core::transport`]: it may lose, double
//! or delay a hint, it says honestly whether the brokers have a message, and it never hangs on brokers
//! that are slow or away.
//!
//! ```no_run
//! use jobwire_core::transport::{Subscription, Transport};
//! use jobwire_core::{Hint, JobId, Lane};
//! use jobwire_kafka::{KafkaOptions, KafkaTransport};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = KafkaOptions {
//!     partitions: 24,
//!     ..KafkaOptions::default()
//! };
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
//! | module | what it does |
//! | --- | --- |
//! | `connection` | whether the brokers are there, what clients have in common |
//! | `endpoint` | the URL |
//! | `security` | TLS and SASL |
//! | `topology` | topics: made, checked; the rights they need |
//! | `publisher`, `producers`, `keys`, `partitioner` | packing by partition, confirms; the producer and its successors |
//! | `receiver`, `lane`, `assignment`, `partition` | consuming, rebalances, settling by a low watermark |
//! | `settled` | up to when a lane has been settled, by offsets |
//! | `crowd` | whether a lane has more nodes than partitions |
//! | `control` | what nodes tell each other |
//! | `statistics` | librdkafka's own, as metrics |
//! | `error` | what the brokers say, and what to do about it |
//! | `supervised`, `ending` | tasks that die; clients that end |
//!
//! # Differences to RabbitMQ
//! * A partition has one receiver at a time, so a lane can be shared by as many nodes as its topic has
//!   partitions.
//! * Kafka does not say that somebody had a message before; only what is given back here and comes
//!   again is marked as redelivered.
//! * What is given back is fetched again, here or by the partition's next owner, together with what
//!   was not settled below and above it.
//! * The sweeper's question is answered by offsets; no marker travels.
//!
//! # Built with
//! librdkafka, compiled from its C sources (gcc, make) and linked statically; OpenSSL and zlib are the
//! system's (`libssl-dev`, `zlib1g-dev`). Without: GSSAPI, and OpenID Connect inside librdkafka (tokens
//! come from a [`TokenSource`] instead).
//!
//! # Errors
//! A URL or setting that can't be right, a wrong password, a missing right are
//! [`TransportError::Refused`], with a remedy. All else passes by itself. No error, log line or `Debug`
//! text of this crate shows the password.
//!
//! # Metrics
//! `jobwire_broker_up{direction}`, `jobwire_broker_reconnects_total{direction}`,
//! `jobwire_hints_unreadable_total{lane}`, and those of `statistics`. Directions are `publish` and
//! `receive`.

mod assignment;
mod connection;
mod control;
mod crowd;
mod ending;
mod endpoint;
mod error;
mod flow;
mod keys;
mod lane;
mod memory;
mod options;
mod partition;
mod partitioner;
mod producers;
mod publisher;
mod receiver;
mod security;
mod settled;
mod statistics;
mod supervised;
mod topology;
mod transport;

#[cfg(doc)]
use jobwire_core::transport::TransportError;

pub use options::KafkaOptions;
pub use security::{Mechanism, Token, TokenFile, TokenSource};
pub use transport::KafkaTransport;
