//! # The RabbitMQ transport of Jobwire
//!
//! Carries hints from the process that commits a job to the node that runs it, through a RabbitMQ
//! broker (3.10 and newer). It keeps the contract of [`jobwire_core::transport`]: it may lose,
//! duplicate or delay a hint, it reports for each message whether the broker has it, and it does
//! not hang on a broker that is slow, blocked or away.
//!
//! ```no_run
//! use jobwire_amqp::{AmqpOptions, AmqpTransport, QueueType};
//! use jobwire_core::transport::{Subscription, Transport};
//! use jobwire_core::{Hint, JobId, Lane};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = AmqpOptions::default().queue_type(QueueType::Quorum);
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
//! | module | content |
//! | --- | --- |
//! | `connection` | one kept connection per direction, reconnects |
//! | `session` | one connection, from handshake to end |
//! | `topology` | names, declarations, the rights they need |
//! | `publisher` | packing, window, confirms, returned messages |
//! | `receiver`, `lane` | consuming, settling, requeueing, pausing |
//! | `troubles` | why single lanes can't be received |
//! | `prefetch` | the number of messages that may be on their way to a node |
//! | `control` | control messages between nodes |
//! | `tls` | certificates: trusted authorities, the client's own |
//! | `statistics` | metrics of the broker and of lanes |
//! | `error` | the broker's errors, each with a remedy |
//!
//! # Options
//! All options are in [`AmqpOptions`], with defaults. `?heartbeat=` in the URL overrides
//! [`AmqpOptions::heartbeat`].
//!
//! # Security
//! `amqps://` always verifies the broker's certificate: its authority (those of
//! [`BrokerSecurity::ca`](jobwire_core::transport::BrokerSecurity::ca), by default those of the
//! machine), its dates, and the host that it names. A configured client certificate is presented to
//! the broker. It is also the log-in if the URL names no user or has `?auth_mechanism=external`.
//! `amqp://` to another machine is refused unless
//! [`Plaintext::Allow`](jobwire_core::transport::Plaintext::Allow) is set. Each new connection
//! reads the files again.
//!
//! # Several hosts
//! `amqps://user:password@h1,h2:5671/jobs` names nodes of one cluster. Each process shuffles them
//! once and then tries them in turn.
//!
//! # Errors
//! [`TransportError::Setting`] reports a URL or file that can't be read, and a broker that can't be
//! trusted. [`TransportError::Refused`] reports a wrong password, a missing right, and a queue that
//! was declared with other arguments. Both have a remedy. Other errors need no operator. No error,
//! log line or `Debug` text of this crate shows the password. Do not log lapin itself at level
//! `trace`: it prints frames.
//!
//! # Metrics
//! `jobwire_broker_up{direction}`, `jobwire_broker_blocked`,
//! `jobwire_broker_reconnects_total{direction}`, `jobwire_hints_unreadable_total{lane}`. Updated
//! every [`AmqpOptions::statistics_interval`]: `jobwire_broker_round_trip_seconds{direction}`,
//! `jobwire_broker_unconfirmed_messages`, `jobwire_lane_waiting_messages{lane}`,
//! `jobwire_lane_unsettled_messages{lane}`, `jobwire_lane_consumers{lane}`. Directions are
//! `publish` and `receive`.

mod connection;
mod control;
mod endpoint;
mod error;
mod events;
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
mod troubles;

#[cfg(doc)]
use jobwire_core::transport::TransportError;

pub use options::{AmqpOptions, DeliveryMode, QueueType};
pub use transport::AmqpTransport;
