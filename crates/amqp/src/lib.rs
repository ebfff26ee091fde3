//! # The RabbitMQ transport of Jobwire
//!
//! Carries hints from whoever commits a job to whoever runs it, through a RabbitMQ broker (3.10 and
//! newer). It keeps the contract of [`jobwire_core::transport`]: it may lose, double or delay a hint,
//! it says honestly whether the broker has a message, and it never hangs on a broker that is slow,
//! blocked or away.
//!
//! ```no_run
//! use jobwire_amqp::{AmqpOptions, AmqpTransport, QueueType};
//! use jobwire_core::transport::{Subscription, Transport};
//! use jobwire_core::{Hint, JobId, Lane};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = AmqpOptions {
//!     queue_type: QueueType::Quorum,
//!     ..AmqpOptions::default()
//! };
//! let transport = AmqpTransport::connect("amqps://user:password@broker/jobs", options).await?;
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
//! | `connection` | keeps one connection per direction, reconnects |
//! | `session` | one connection, from handshake to end |
//! | `topology` | names, declarations, the rights they need |
//! | `publisher` | packing, window, confirms, returned messages |
//! | `receiver`, `lane` | consuming, settling, giving back, pausing |
//! | `prefetch` | how many messages may be on their way to a node |
//! | `control` | what nodes tell each other |
//! | `tls` | whom we trust, who we are |
//! | `statistics` | what the broker tells of itself |
//! | `error` | what the broker says, and what to do about it |
//!
//! # Options
//! All in [`AmqpOptions`], with defaults. Without `?heartbeat=` in the URL, [`AmqpOptions::heartbeat`]
//! holds.
//!
//! # Security
//! `amqps://` verifies the broker's certificate, always: its authority (those of
//! [`BrokerSecurity::ca`](jobwire_core::transport::BrokerSecurity::ca), else the machine's), its dates, and
//! the host that it names. A certificate of our own is shown where there is one; where the URL then
//! names no user, or says `?auth_mechanism=external`, it is the log-in. `amqp://` to another machine is
//! refused unless [`Plaintext::Allow`](jobwire_core::transport::Plaintext::Allow) says otherwise. Files
//! are read again with each new connection.
//!
//! # Several hosts
//! `amqps://user:password@h1,h2:5671/jobs` names nodes of one cluster. They are tried in random order, then
//! in turn.
//!
//! # Errors
//! A URL or a file that can't be read, and a broker that can't be trusted, are
//! [`TransportError::Setting`]; a wrong password, a missing right, a queue declared otherwise
//! [`TransportError::Refused`]; each with a remedy. All else passes by itself. No error, log line or
//! `Debug` text of this crate shows the password (do not log lapin itself at level `trace`: that
//! prints frames).
//!
//! # Metrics
//! `jobwire_broker_up{direction}`, `jobwire_broker_blocked`,
//! `jobwire_broker_reconnects_total{direction}`, `jobwire_hints_unreadable_total{lane}`; and every
//! [`AmqpOptions::statistics_interval`] `jobwire_broker_round_trip_seconds{direction}`,
//! `jobwire_broker_unconfirmed_messages`, `jobwire_lane_waiting_messages{lane}`,
//! `jobwire_lane_unsettled_messages{lane}`, `jobwire_lane_consumers{lane}`. Directions are `publish` and
//! `receive`.

mod connection;
mod control;
mod endpoint;
mod error;
mod lane;
mod options;
mod prefetch;
mod publisher;
mod receiver;
mod session;
mod statistics;
mod tls;
mod topology;
mod transport;

#[cfg(doc)]
use jobwire_core::transport::TransportError;

pub use options::{AmqpOptions, DeliveryMode, QueueType};
pub use transport::AmqpTransport;
