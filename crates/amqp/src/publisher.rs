//! Publishing: packed, pipelined, confirmed, and never waiting for a broker that does not answer.
//!
//! A publish has three steps: make sure that the lane's queue exists (once per session), send the
//! messages as far as the window allows, await their confirms. Where the queue is there and the window
//! has room, the first poll has sent everything. The caller gets the outcome at once when the broker
//! blocks or goes away, and after [`confirm_timeout`](crate::AmqpOptions::confirm_timeout) without a
//! confirm; a task then waits until the broker has answered, for lapin keeps a list of confirms that
//! nobody awaits. What stays behind keeps its place in the window, so there is never more of it than
//! the window holds.
//!
//! A message is published as *mandatory*: if its queue was deleted, it comes back. lapin pairs a
//! returned message with whichever confirm is resolved next. So every lane has a channel of its own,
//! and a return fails all publishes of the lane that are under way: a few too many rather than one
//! too few. The lane is then looked for again with the next publish, and the sweeper heals the rest.
//!
//! A publisher declares the queue only of `default` and of the lanes that its process receives
//! ([`OwnLanes`]). Every other lane is declared by its receivers: hints for one that no node has received yet are
//! refused at once ([`TransportError::NoReceiver`]), and the sweeper publishes them when the lane has a receiver.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jobwire_core::job::Lane;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::transport::{OwnLanes, TransportError};
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::Link;
use crate::error::Operation;
use crate::options::AmqpOptions;
use crate::session::Session;
use crate::topology::Topology;

/// How long a refusal is remembered before the broker is asked again.
const REMEMBER_REFUSAL: Duration = Duration::from_secs(5);
/// Refusals are remembered of so many lanes.
const MOST_LANES: usize = 1_024;

/// A confirm under way: what the broker said in the end.
type Confirm = BoxFuture<'static, Result<(), TransportError>>;

/// Where hints of one lane leave, for as long as its channel lives.
struct LanePublisher {
    channel: Channel,
    queue: String,
    window: Arc<Semaphore>,
    /// A message came back: the queue is gone.
    unroutable: AtomicBool,
}

impl LanePublisher {
    fn is_usable(&self) -> bool {
        self.channel.status().connected() && !self.unroutable.load(Ordering::Acquire)
    }
}

enum LaneState {
    Open(Arc<LanePublisher>),
    Refused(TransportError, Instant),
}

/// The lanes of the current session.
#[derive(Default)]
struct Lanes {
    session: u64,
    open: HashMap<Lane, LaneState>,
}

impl Lanes {
    /// Remember a refusal, so that the broker is not asked for each hint. How many are remembered is bounded.
    fn refuse(&mut self, lane: &Lane, problem: &TransportError) {
        if self.open.len() >= MOST_LANES {
            self.open.retain(|_, state| match state {
                LaneState::Open(_) => true,
                LaneState::Refused(_, since) => since.elapsed() < REMEMBER_REFUSAL,
            });
        }
        if self.open.len() < MOST_LANES {
            let state = LaneState::Refused(problem.clone(), Instant::now());
            self.open.insert(lane.clone(), state);
        }
    }
}

/// Publishes encoded messages.
pub(crate) struct LanePublishers {
    pub(crate) link: Link,
    topology: Topology,
    options: AmqpOptions,
    lanes: Mutex<Lanes>,
    pub(crate) own: OwnLanes,
    refused: std::sync::Mutex<LogThrottle>,
    tasks: TaskTracker,
    runtime: Handle,
    /// No new messages, please.
    closing: CancellationToken,
}

impl LanePublishers {
    pub(crate) fn new(
        link: Link,
        topology: Topology,
        options: AmqpOptions,
        tasks: TaskTracker,
        closing: CancellationToken,
    ) -> Self {
        Self {
            link,
            topology,
            options,
            lanes: Mutex::default(),
            own: OwnLanes::default(),
            refused: std::sync::Mutex::default(),
            tasks,
            runtime: Handle::current(),
            closing,
        }
    }

    /// Publish messages to a lane; returns when they are confirmed or have failed.
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
        // Whoever closes the transport waits for it.
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

    /// Messages that are not confirmed yet, and the lanes that are published to; `None` while that
    /// changes.
    pub(crate) fn now(&self) -> Option<(usize, Vec<Lane>)> {
        let lanes = self.lanes.try_lock().ok()?;
        let open = lanes.open.iter().filter_map(|(lane, state)| match state {
            LaneState::Open(publisher) => Some((lane, publisher)),
            LaneState::Refused(..) => None,
        });
        let window = self.options.confirm_window;
        let unconfirmed = open
            .clone()
            .map(|(_, publisher)| window.saturating_sub(publisher.window.available_permits()))
            .sum();
        let usable = open.filter(|(_, publisher)| publisher.is_usable());
        Some((unconfirmed, usable.map(|(lane, _)| lane.clone()).collect()))
    }

    /// A lane's queue was found to be gone: declare it again with the next message.
    pub(crate) fn queue_is_gone(&self, lane: &Lane) {
        if let Ok(lanes) = self.lanes.try_lock()
            && let Some(LaneState::Open(publisher)) = lanes.open.get(lane)
        {
            publisher.unroutable.store(true, Ordering::Release);
        }
    }

    /// Send within the window and await the confirms. Those that are left in `confirms` are
    /// undecided.
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

    /// A place in the lane's window.
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

    /// Publish one message. The future must be driven to its end, or to the session's.
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
                    "the broker could not take a message for '{}': the queue is full or not \
                     available",
                    publisher.queue
                ))),
                Ok(Confirmation::NotRequested) => Err(TransportError::Unreachable(
                    "the channel does not confirm".to_owned(),
                )),
                Err(e) => Err(topology.explain(&e, Operation::Publish(""))),
            }
        })
    }

    /// The lane's channel in this session, opened where it is missing.
    async fn lane(
        &self,
        session: &Arc<Session>,
        lane: &Lane,
    ) -> Result<Arc<LanePublisher>, TransportError> {
        let mut lanes = self.lanes.lock().await;
        if lanes.session != session.number {
            *lanes = Lanes {
                session: session.number,
                open: HashMap::new(),
            };
        }
        match lanes.open.get(lane) {
            Some(LaneState::Open(publisher)) if publisher.is_usable() => {
                return Ok(publisher.clone());
            }
            Some(LaneState::Refused(problem, since))
                if since.elapsed() < REMEMBER_REFUSAL && !self.may_be_made(lane, problem) =>
            {
                return Err(problem.clone());
            }
            _ => {}
        }
        let former = lanes.open.remove(lane);
        if let Some(LaneState::Open(former)) = former {
            // Its queue is gone, or its channel; neither has anything more to say.
            let _ = session
                .answer(async {
                    let _ = former.channel.close(200, "OK".into()).await;
                    Ok(())
                })
                .await;
        }
        let opened = self.open(session, lane).await;
        match &opened {
            Ok(publisher) => {
                let state = LaneState::Open(publisher.clone());
                lanes.open.insert(lane.clone(), state);
            }
            Err(problem) if !problem.is_transient() => {
                self.complain(lane, problem);
                lanes.refuse(lane, problem);
            }
            Err(_) => {}
        }
        opened
    }

    /// It had no queue, and this process receives it since then.
    fn may_be_made(&self, lane: &Lane, problem: &TransportError) -> bool {
        matches!(problem, TransportError::NoReceiver(_)) && self.own.contains(lane)
    }

    /// A row may name any lane: what is said of lanes that do not exist is said rarely.
    fn complain(&self, lane: &Lane, problem: &TransportError) {
        let more = self
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .now();
        if let Some(more) = more {
            let lane = lane.0.escape_debug();
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

/// The confirms of one publish, which are awaited even where nobody asks for its outcome any more.
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
        // It may be dropped anywhere, also where no runtime is.
        let LanePublishers { tasks, runtime, .. } = self.publishers;
        tasks.spawn_on(awaiting, runtime);
    }
}

fn queue_is_gone(queue: &str) -> TransportError {
    TransportError::Unreachable(format!(
        "the queue '{queue}' is gone; its next receiver declares it again"
    ))
}
