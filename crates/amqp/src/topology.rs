//! Names and declarations of queues and exchanges.
//!
//! | name | kind | rights needed |
//! | --- | --- | --- |
//! | `<prefix>.lane.<lane>` | durable queue, classic or quorum, reached by the default exchange | configure (to declare), read (to receive); write on `amq.default` (to publish) |
//! | `<prefix>.control` | durable fanout exchange | configure (to declare), write (to publish), read (to bind) |
//! | `<prefix>.events` | durable topic exchange, with the first event of the event stream | configure (to declare), write (to publish) |
//! | `<prefix>.control.<process>` | exclusive queue, deleted with its connection | configure, write, read |
//!
//! So the rights `configure: ^<prefix>\.`, `write: ^(amq\.default|<prefix>\..*)$`,
//! `read: ^<prefix>\.` suffice. If [`AmqpOptions::declare`](crate::AmqpOptions::declare) is
//! `false`, lanes and the control exchange are only checked; the error for a missing one names it.
//!
//! A refused declaration closes its channel, so each declaration has its own channel.
//!
//! A classic queue is declared with version 2, which keeps a deep queue out of the broker's memory
//! and is the only version from RabbitMQ 4.0 on
//! ([RabbitMQ's manual](https://www.rabbitmq.com/docs/3.13/persistence-conf)). An existing queue
//! that differs only in its version is used as it is: the version affects speed only.

use std::sync::atomic::{AtomicBool, Ordering};

use jobwire_core::job::Lane;
use jobwire_core::transport::TransportError;
use lapin::options::{
    BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer, ExchangeKind};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::error::{self, Operation};
use crate::options::{AmqpOptions, QueueType};
use crate::session::Session;

/// Maximum number of control messages on their way to this process. The limit is low because a
/// message is in memory before its size is known, and the broker accepts messages of 16 MB
/// (RabbitMQ 3: 128 MB).
const CONTROL_PREFETCH: u16 = 8;
/// Maximum number of control messages that wait for a process. Older ones are dropped, which is
/// harmless.
const CONTROL_LENGTH: i64 = 1_000;
/// Maximum size of the control messages that wait for a process, in bytes, in case others publish
/// large ones.
const CONTROL_BYTES: i64 = 8 << 20;
/// The argument that chooses the form in which a classic queue stores its messages.
const VERSION: &str = "x-queue-version";
/// The version that lanes are declared with.
const LANE_VERSION: i32 = 2;

/// Names, checks and declares queues and exchanges.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    endpoint: Endpoint,
    prefix: String,
    queue_type: QueueType,
    declare: bool,
}

impl Topology {
    pub(crate) fn new(endpoint: Endpoint, options: &AmqpOptions) -> Self {
        Self {
            endpoint,
            prefix: options.prefix.clone(),
            queue_type: options.queue_type,
            declare: options.declare,
        }
    }

    /// Returns the name of a lane's queue.
    pub(crate) fn queue(&self, lane: &Lane) -> String {
        format!("{}.lane.{lane}", self.prefix)
    }

    /// Returns the name of the exchange that reaches every process.
    pub(crate) fn control_exchange(&self) -> String {
        format!("{}.control", self.prefix)
    }

    /// Converts an error of lapin to one with a remedy.
    pub(crate) fn explain(&self, error: &lapin::Error, operation: Operation<'_>) -> TransportError {
        error::operating(error, operation, &self.endpoint, self.queue_type)
    }

    /// Declares the lane's queue, or checks that it exists if declaring is switched off.
    pub(crate) async fn ensure_lane(
        &self,
        session: &Session,
        lane: &Lane,
    ) -> Result<(), TransportError> {
        check(lane)?;
        let queue = self.queue(lane);
        let mut arguments = FieldTable::default();
        if self.declare {
            let kind = AMQPValue::LongString(self.queue_type.as_str().into());
            arguments.insert("x-queue-type".into(), kind);
            if self.queue_type == QueueType::Classic {
                arguments.insert(VERSION.into(), AMQPValue::LongInt(LANE_VERSION));
            }
        }
        let options = QueueDeclareOptions {
            passive: !self.declare,
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.apart(session, Operation::Declare(&queue), async |channel| {
            let declared = channel.queue_declare(queue.as_str().into(), options, arguments);
            match declared.await {
                // Only the version differs: the broker names any other difference first.
                Err(problem) if error::differs_in(&problem, VERSION) => {
                    tracing::debug!(queue, "the queue has another version; it is used as it is");
                    Ok(())
                }
                declared => declared.map(drop),
            }
        })
        .await
    }

    /// Checks that the queue of a lane exists; another process declares it.
    pub(crate) async fn find_lane(
        &self,
        session: &Session,
        lane: &Lane,
    ) -> Result<(), TransportError> {
        check(lane)?;
        let queue = self.queue(lane);
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let missing = AtomicBool::new(false);
        let found = self.apart(session, Operation::Declare(&queue), async |channel| {
            let none = FieldTable::default();
            let looked = channel.queue_declare(queue.as_str().into(), options, none);
            let looked = looked.await;
            let unknown = looked.as_ref().is_err_and(error::is_missing);
            missing.store(unknown, Ordering::Relaxed);
            looked.map(drop)
        });
        match found.await {
            Err(_) if missing.load(Ordering::Relaxed) => {
                Err(TransportError::NoReceiver(lane.clone()))
            }
            found => found,
        }
    }

    /// Reads the state of a lane's queue. The broker closes the channel if there is none.
    pub(crate) async fn look(
        &self,
        channel: &Channel,
        lane: &Lane,
    ) -> Result<lapin::Queue, TransportError> {
        let queue = self.queue(lane);
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let looked = channel.queue_declare(queue.as_str().into(), options, FieldTable::default());
        let looked = looked.await;
        looked.map_err(|e| self.explain(&e, Operation::Declare(&queue)))
    }

    /// Declares the control exchange, or checks that it exists if declaring is switched off.
    pub(crate) async fn ensure_control(&self, session: &Session) -> Result<(), TransportError> {
        self.ensure_exchange(session, &self.control_exchange(), ExchangeKind::Fanout)
            .await
    }

    async fn ensure_exchange(
        &self,
        session: &Session,
        exchange: &str,
        kind: ExchangeKind,
    ) -> Result<(), TransportError> {
        let options = ExchangeDeclareOptions {
            passive: !self.declare,
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        self.apart(session, Operation::Declare(exchange), async |channel| {
            let none = FieldTable::default();
            let declared = channel.exchange_declare(exchange.into(), kind, options, none);
            declared.await
        })
        .await
    }

    /// Returns the name of the exchange of the event stream.
    pub(crate) fn events_exchange(&self) -> String {
        format!("{}.events", self.prefix)
    }

    /// Declares the exchange of the event stream, or checks that it exists if declaring is switched
    /// off.
    pub(crate) async fn ensure_events(&self, session: &Session) -> Result<(), TransportError> {
        self.ensure_exchange(session, &self.events_exchange(), ExchangeKind::Topic)
            .await
    }

    /// Consumes from the control exchange through a queue that is deleted with the connection.
    pub(crate) async fn listen(
        &self,
        session: &Session,
        process: Uuid,
    ) -> Result<(Channel, Consumer), TransportError> {
        self.ensure_control(session).await?;
        let exchange = self.control_exchange();
        // Each session has its own name: after a broken connection the broker may still hold the
        // exclusive queue of the old one.
        let queue = format!("{exchange}.{process}.{}", session.number);
        let channel = session.channel().await?;
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-max-length".into(),
            AMQPValue::LongLongInt(CONTROL_LENGTH),
        );
        let bytes = AMQPValue::LongLongInt(CONTROL_BYTES);
        arguments.insert("x-max-length-bytes".into(), bytes);
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        session
            .answer(async {
                let declared = channel.queue_declare(queue.as_str().into(), options, arguments);
                let declared = declared.await;
                declared.map_err(|e| self.explain(&e, Operation::Declare(&queue)))?;
                let bound = channel.queue_bind(
                    queue.as_str().into(),
                    exchange.as_str().into(),
                    "".into(),
                    QueueBindOptions::default(),
                    FieldTable::default(),
                );
                let bound = bound.await;
                bound.map_err(|e| self.explain(&e, Operation::Bind(&queue, &exchange)))?;
                let consumer = self
                    .consume(&channel, &queue, &queue, CONTROL_PREFETCH)
                    .await?;
                Ok((channel, consumer))
            })
            .await
    }

    /// Consumes from a queue, with at most `prefetch` messages unsettled. Without that limit lapin
    /// would read the whole queue into memory.
    pub(crate) async fn consume(
        &self,
        channel: &Channel,
        queue: &str,
        tag: &str,
        prefetch: u16,
    ) -> Result<Consumer, TransportError> {
        // Per consumer: quorum queues and new brokers refuse `global`.
        let limited = channel.basic_qos(prefetch, BasicQosOptions { global: false });
        let limited = limited.await;
        limited.map_err(|e| self.explain(&e, Operation::Talk))?;
        let consumer = channel.basic_consume(
            queue.into(),
            tag.into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = consumer.await;
        consumer.map_err(|e| self.explain(&e, Operation::Consume(queue)))
    }

    /// Runs an operation that the broker may refuse, on a separate channel.
    async fn apart(
        &self,
        session: &Session,
        operation: Operation<'_>,
        act: impl AsyncFnOnce(&Channel) -> lapin::Result<()>,
    ) -> Result<(), TransportError> {
        let channel = session.channel().await?;
        session
            .answer(async {
                let done = act(&channel).await;
                done.map_err(|e| self.explain(&e, operation))?;
                // If closing fails, the channel is closed already.
                let _ = channel.close(200, "OK".into()).await;
                Ok(())
            })
            .await
    }
}

fn check(lane: &Lane) -> Result<(), TransportError> {
    if Lane::is_valid(lane.as_str()) {
        return Ok(());
    }
    Err(TransportError::Refused {
        problem: format!(
            "'{}' is not a valid lane name",
            lane.as_str().escape_debug()
        ),
        remedy: "use 1 to 64 letters, digits, '-', '_' or '.'".to_owned(),
    })
}
