//! What exists on the broker, and how it gets there.
//!
//! | name | kind | rights needed |
//! | --- | --- | --- |
//! | `<prefix>.lane.<lane>` | durable queue, classic or quorum, reached by the default exchange | configure (to declare), read (to receive); write on `amq.default` (to publish) |
//! | `<prefix>.control` | durable fanout exchange | configure (to declare), write (to tell), read (to bind) |
//! | `<prefix>.control.<process>` | exclusive queue, gone with its connection | configure, write, read |
//!
//! So the rights `configure: ^<prefix>\.`, `write: ^(amq\.default|<prefix>\..*)$`,
//! `read: ^<prefix>\.` suffice. Where the broker belongs to somebody else
//! ([`AmqpOptions::declare`](crate::AmqpOptions::declare) is `false`), lanes and the control exchange
//! are only looked at: what is missing is refused with its name.
//!
//! A refused declaration closes its channel, so each one has a channel of its own.
//!
//! A classic queue is declared with version 2, which keeps a deep queue out of the broker's memory and is
//! the only one from RabbitMQ 4.0 on ([what a version is](https://www.rabbitmq.com/docs/3.13/persistence-conf)).
//! One that is there with another version, and else the same, is used as it is: it differs in speed only.

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

/// Control messages that may be on their way to this process at once. Each of them is in memory before its size is
/// known, and the broker takes messages of 16 MB (RabbitMQ 3: 128 MB).
const CONTROL_PREFETCH: u16 = 8;
/// Control messages that may wait for a process; older ones are dropped. Losing one is harmless.
const CONTROL_LENGTH: i64 = 1_000;
/// The same in bytes, for messages of others.
const CONTROL_BYTES: i64 = 8 << 20;
/// The argument that chooses how a classic queue stores its messages.
const VERSION: &str = "x-queue-version";
/// The version that lanes are declared with.
const LANE_VERSION: i32 = 2;

/// Names everything and declares it.
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

    /// The queue of a lane.
    pub(crate) fn queue(&self, lane: &Lane) -> String {
        format!("{}.lane.{lane}", self.prefix)
    }

    /// The exchange that reaches every process.
    pub(crate) fn control_exchange(&self) -> String {
        format!("{}.control", self.prefix)
    }

    /// What a failure means.
    pub(crate) fn explain(&self, error: &lapin::Error, operation: Operation<'_>) -> TransportError {
        error::operating(error, operation, &self.endpoint, self.queue_type)
    }

    /// Make sure that the lane's queue exists.
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
                // So it is there. The broker names any other difference first.
                Err(problem) if error::differs_in(&problem, VERSION) => {
                    tracing::debug!(queue, "the queue has another version, and is used as it is");
                    Ok(())
                }
                declared => declared.map(drop),
            }
        })
        .await
    }

    /// The same for a lane that another process has to make.
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

    /// What the broker says of a lane's queue, on a channel that ends where there is no such queue.
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

    /// Make sure that the control exchange exists.
    pub(crate) async fn ensure_control(&self, session: &Session) -> Result<(), TransportError> {
        let exchange = self.control_exchange();
        let options = ExchangeDeclareOptions {
            passive: !self.declare,
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        self.apart(session, Operation::Declare(&exchange), async |channel| {
            let name = exchange.as_str().into();
            let none = FieldTable::default();
            channel
                .exchange_declare(name, ExchangeKind::Fanout, options, none)
                .await
        })
        .await
    }

    /// Listen to the control exchange with a queue that goes away with the connection.
    pub(crate) async fn listen(
        &self,
        session: &Session,
        process: Uuid,
    ) -> Result<(Channel, Consumer), TransportError> {
        self.ensure_control(session).await?;
        let exchange = self.control_exchange();
        // A name of its own per session: after a broken connection the broker may still hold the
        // old queue, exclusively.
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

    /// Consume from a queue, with at most `prefetch` messages unsettled. Without that limit lapin
    /// would take in the whole queue.
    pub(crate) async fn consume(
        &self,
        channel: &Channel,
        queue: &str,
        tag: &str,
        prefetch: u16,
    ) -> Result<Consumer, TransportError> {
        // Per consumer: `global` is refused by quorum queues and by new brokers.
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

    /// Do something that the broker may refuse, on a channel of its own.
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
                // It has done its work; if it can't be closed, it is closed already.
                let _ = channel.close(200, "OK".into()).await;
                Ok(())
            })
            .await
    }
}

fn check(lane: &Lane) -> Result<(), TransportError> {
    if Lane::is_valid(&lane.0) {
        return Ok(());
    }
    Err(TransportError::Refused {
        problem: format!("'{}' is no name for a lane", lane.0.escape_debug()),
        remedy: "use 1 to 64 letters, digits, '-', '_' or '.'".to_owned(),
    })
}
