//! Publishes messages: packed, pipelined and confirmed. It does not wait for a broker that does not
//! answer.
//!
//! A publish has three steps: ensure that the lane's queue exists (once per session), send the
//! messages as far as the window allows, await their confirms. If the queue is known and the window
//! has room, the first poll sends all messages. A publish fails at once when the broker blocks or
//! the connection ends, and after [`confirm_timeout`](crate::AmqpOptions::confirm_timeout) without
//! a confirm. A task then awaits the missing confirms, because lapin keeps a list of confirms that
//! are not awaited. Each keeps its place in the window, so the window bounds their number.
//!
//! Messages are published as *mandatory*: a message whose queue was deleted is returned. lapin
//! attaches a returned message to the next confirm that resolves, which may be that of another
//! message. So each lane has its own channel, and a return fails all publishes of the lane that are
//! under way when it is noticed. One that has ended before may have been the returned one. The next
//! publish checks the queue again, and the sweeper publishes lost hints again.
//!
//! A publisher declares only the queues of `default` and of the lanes that its process receives
//! ([`OwnLanes`]). The receivers of any other lane declare its queue. Hints for a lane that no node
//! has received yet are refused at once ([`TransportError::NoReceiver`]); the sweeper publishes
//! them when the lane has a receiver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jobwire_core::job::Lane;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::transport::{
    Lifetime, OpenLane, OpenLanes, OwnLanes, TransportError, is_remembered,
};
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::Link;
use crate::error::Operation;
use crate::options::AmqpOptions;
use crate::session::Session;
use crate::topology::Topology;

/// A publish under way; resolves to the broker's answer.
type Confirm = BoxFuture<'static, Result<(), TransportError>>;

/// The publishing side of one lane, valid as long as its channel lives.
struct LanePublisher {
    channel: Channel,
    queue: String,
    window: Arc<Semaphore>,
    /// A message was returned: the queue does not exist.
    unroutable: AtomicBool,
}

impl OpenLane for LanePublisher {
    fn is_usable(&self) -> bool {
        self.channel.status().connected() && !self.unroutable.load(Ordering::Acquire)
    }
}

/// Publishes encoded messages.
pub(crate) struct LanePublishers {
    pub(crate) link: Link,
    topology: Topology,
    options: AmqpOptions,
    lanes: OpenLanes<LanePublisher>,
    pub(crate) own: OwnLanes,
    refused: std::sync::Mutex<LogThrottle>,
    /// Publishes under way: closing the transport waits for them.
    tasks: TaskTracker,
    runtime: Handle,
    /// Cancelled when no new message may be published.
    closing: CancellationToken,
}

impl LanePublishers {
    pub(crate) fn new(
        link: Link,
        topology: Topology,
        options: AmqpOptions,
        lifetime: &Lifetime,
    ) -> Self {
        Self {
            link,
            topology,
            options,
            lanes: OpenLanes::default(),
            own: OwnLanes::default(),
            refused: std::sync::Mutex::default(),
            tasks: lifetime.tasks().clone(),
            runtime: Handle::current(),
            closing: lifetime.closing(),
        }
    }

    /// Publishes messages to a lane. Returns when they are confirmed or have failed.
    pub(crate) async fn publish(
        &self,
        lane: &Lane,
        messages: Vec<Vec<u8>>,
    ) -> Result<(), TransportError> {
        if self.closing.is_cancelled() {
            return Err(TransportError::Closed);
        }
        let session = self.link.session()?;
        if let Some(reason) = session.blocked() {
            return Err(TransportError::Blocked(reason));
        }
        let _under_way = self.tasks.token();
        let mut confirms = Confirms {
            under_way: FuturesUnordered::new(),
            session: session.clone(),
            publishers: self,
        };
        tokio::select! {
            biased;
            () = session.over() => Err(session.why()),
            reason = session.becomes_blocked() => Err(TransportError::Blocked(reason)),
            result = self.send(&session, lane, messages, &mut confirms.under_way) => result,
        }
    }

    /// Returns the number of unconfirmed messages, and the lanes with a usable channel.
    pub(crate) fn now(&self) -> (usize, Vec<Lane>) {
        let open = self.lanes.open();
        let window = self.options.confirm_window;
        let unconfirmed = open
            .iter()
            .map(|(_, publisher)| window.saturating_sub(publisher.window.available_permits()))
            .sum();
        let usable = open
            .into_iter()
            .filter(|(_, publisher)| publisher.is_usable());
        (unconfirmed, usable.map(|(lane, _)| lane).collect())
    }

    /// Marks a lane's queue as missing, so that the next publish checks or declares it again.
    pub(crate) fn queue_is_gone(&self, lane: &Lane) {
        if let Some(publisher) = self.lanes.get_open(lane) {
            publisher.unroutable.store(true, Ordering::Release);
        }
    }

    /// Sends within the window and awaits the confirms. Confirms left in `confirms` are undecided.
    async fn send(
        &self,
        session: &Arc<Session>,
        lane: &Lane,
        messages: Vec<Vec<u8>>,
        confirms: &mut FuturesUnordered<Confirm>,
    ) -> Result<(), TransportError> {
        let publisher = self.lane(session, lane).await?;
        for message in messages {
            let place = self.place(&publisher, confirms).await?;
            confirms.push(self.confirm(publisher.clone(), message, place));
        }
        while !confirms.is_empty() {
            self.next_confirm(confirms).await?;
        }
        if publisher.unroutable.load(Ordering::Acquire) {
            return Err(queue_is_gone(&publisher.queue));
        }
        Ok(())
    }

    /// Waits for a place in the lane's window.
    async fn place(
        &self,
        publisher: &LanePublisher,
        confirms: &mut FuturesUnordered<Confirm>,
    ) -> Result<OwnedSemaphorePermit, TransportError> {
        loop {
            if let Ok(place) = publisher.window.clone().try_acquire_owned() {
                return Ok(place);
            }
            if !confirms.is_empty() {
                self.next_confirm(confirms).await?;
                continue;
            }
            let acquiring = publisher.window.clone().acquire_owned();
            return match tokio::time::timeout(self.options.confirm_timeout, acquiring).await {
                Ok(Ok(place)) => Ok(place),
                Ok(Err(_)) => Err(TransportError::Closed),
                Err(_) => Err(TransportError::Timeout(self.options.confirm_timeout)),
            };
        }
    }

    async fn next_confirm(
        &self,
        confirms: &mut FuturesUnordered<Confirm>,
    ) -> Result<(), TransportError> {
        match tokio::time::timeout(self.options.confirm_timeout, confirms.next()).await {
            Ok(Some(confirmed)) => confirmed,
            Ok(None) => Ok(()),
            Err(_) => Err(TransportError::Timeout(self.options.confirm_timeout)),
        }
    }

    /// Publishes one message. The future must be polled until it completes or the session ends.
    fn confirm(
        &self,
        publisher: Arc<LanePublisher>,
        message: Vec<u8>,
        place: OwnedSemaphorePermit,
    ) -> Confirm {
        let topology = self.topology.clone();
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(self.options.delivery_mode.code());
        Box::pin(async move {
            let written = publisher.channel.basic_publish(
                "".into(),
                publisher.queue.as_str().into(),
                BasicPublishOptions {
                    mandatory: true,
                    ..BasicPublishOptions::default()
                },
                &message,
                properties,
            );
            let confirmed = match written.await {
                Ok(confirm) => {
                    jobwire_core::crash_point!("hints-sent");
                    confirm.await
                }
                Err(e) => Err(e),
            };
            drop(place);
            match confirmed {
                Ok(Confirmation::Ack(None)) => Ok(()),
                Ok(Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_))) => {
                    publisher.unroutable.store(true, Ordering::Release);
                    Err(queue_is_gone(&publisher.queue))
                }
                Ok(Confirmation::Nack(None)) => Err(TransportError::Unreachable(format!(
                    "the broker rejected a message for '{}': the queue is full or unavailable",
                    publisher.queue
                ))),
                Ok(Confirmation::NotRequested) => Err(TransportError::Unreachable(
                    "the channel does not confirm".to_owned(),
                )),
                Err(e) => Err(topology.explain(&e, Operation::Publish(""))),
            }
        })
    }

    /// Returns the lane's channel in this session; opens it if necessary.
    async fn lane(
        &self,
        session: &Arc<Session>,
        lane: &Lane,
    ) -> Result<Arc<LanePublisher>, TransportError> {
        let open = async |former: Option<Arc<LanePublisher>>| {
            if let Some(former) = former {
                // Its queue or its channel is gone, so the result does not matter.
                let _ = session
                    .answer(async {
                        let _ = former.channel.close(200, "OK".into()).await;
                        Ok(())
                    })
                    .await;
            }
            let opened = self.open(session, lane).await;
            if let Err(problem) = &opened
                && is_remembered(problem)
            {
                self.complain(lane, problem);
            }
            opened
        };
        self.lanes.get(session.number, lane, &self.own, open).await
    }

    /// Logs a refusal. Throttled, because a job row may name any lane, even a missing one.
    fn complain(&self, lane: &Lane, problem: &TransportError) {
        let more = self
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .now();
        if let Some(more) = more {
            let lane = lane.as_str().escape_debug();
            tracing::error!(%lane, %problem, more, "cannot publish to this lane");
        }
    }

    async fn open(
        &self,
        session: &Arc<Session>,
        lane: &Lane,
    ) -> Result<Arc<LanePublisher>, TransportError> {
        if self.own.contains(lane) || !self.options.declare {
            self.topology.ensure_lane(session, lane).await?;
        } else {
            self.topology.find_lane(session, lane).await?;
        }
        Ok(Arc::new(LanePublisher {
            channel: session.confirming_channel().await?,
            queue: self.topology.queue(lane),
            window: Arc::new(Semaphore::new(self.options.confirm_window)),
            unroutable: AtomicBool::new(false),
        }))
    }
}

/// The confirms of one publish. On drop, a task awaits those that are left.
struct Confirms<'a> {
    under_way: FuturesUnordered<Confirm>,
    session: Arc<Session>,
    publishers: &'a LanePublishers,
}

impl Drop for Confirms<'_> {
    fn drop(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let mut under_way = std::mem::take(&mut self.under_way);
        let session = self.session.clone();
        let awaiting = async move {
            tokio::select! {
                () = session.over() => {}
                () = async { while under_way.next().await.is_some() {} } => {}
            }
        };
        // The drop may happen outside a runtime.
        let LanePublishers { tasks, runtime, .. } = self.publishers;
        tasks.spawn_on(awaiting, runtime);
    }
}

fn queue_is_gone(queue: &str) -> TransportError {
    TransportError::Unreachable(format!(
        "the queue '{queue}' was deleted; its next receiver declares it again"
    ))
}
