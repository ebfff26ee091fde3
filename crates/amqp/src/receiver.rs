//! Receives the lanes of one node over the current session.
//!
//! A receiver has no background task. It works only inside [`receive`](Receiver::receive); the next
//! call continues the work of the last one (opening a channel, consuming). When the session ends,
//! `receive` fails once, immediately. The next call waits a second for the new session before it
//! fails again.
//!
//! The prefetch is split over the lanes, with at least one message each, and the lanes take turns
//! at being polled first, so no lane blocks another. The node decides which lane gets a slot. Of
//! packed messages that wait long, fewer are taken: see [`crate::prefetch`]. Unreadable messages
//! are settled, counted and logged here.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use futures_util::future::join_all;
use jobwire_core::hint::{Body, Message};
use jobwire_core::telemetry::metrics::HINTS_UNREADABLE;
use jobwire_core::transport::{
    Delivery, Lifetime, Receiver, Subscription, Ticket, TransportError, shares,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::Link;
use crate::lane::{LaneReceiver, Verdict};
use crate::session::Session;
use crate::statistics::Unsettled;
use crate::topology::Topology;
use crate::troubles::Troubles;
use jobwire_core::telemetry::log_throttle::LogThrottle;

/// The time that a call waits for a new connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(crate) struct AmqpReceiver {
    link: Link,
    topology: Topology,
    session: Option<Arc<Session>>,
    lanes: Vec<LaneReceiver>,
    /// Index of the lane that is polled first.
    first: usize,
    prefetch: usize,
    paused: bool,
    unreadable: LogThrottle,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl AmqpReceiver {
    pub(crate) fn new(
        link: Link,
        topology: Topology,
        subscription: &Subscription,
        unsettled: &Unsettled,
        troubles: &Troubles,
        epochs: &Arc<AtomicU64>,
        lifetime: &Lifetime,
    ) -> Self {
        let lanes = subscription.shares().map(|(lane, share)| {
            LaneReceiver::new(
                lane.clone(),
                topology.queue(lane),
                share,
                epochs.clone(),
                unsettled.share(lane),
                troubles.of(lane),
            )
        });
        Self {
            lanes: lanes.collect(),
            first: 0,
            link,
            topology,
            session: None,
            prefetch: usize::from(subscription.prefetch.max(1)),
            paused: false,
            unreadable: LogThrottle::default(),
            closing: lifetime.closing(),
            tasks: lifetime.tasks().clone(),
        }
    }

    /// Starts consuming, so that a refusal fails at once. A broker that is away is no error.
    pub(crate) async fn open(&mut self) -> Result<(), TransportError> {
        let Ok(session) = self.link.session() else {
            return Ok(());
        };
        for lane in &mut self.lanes {
            match lane.open(&session, &self.topology).await {
                Err(problem) if !problem.is_transient() => return Err(problem),
                _ => {}
            }
        }
        self.session = Some(session);
        Ok(())
    }

    /// Returns the current session. Drops the channels of an old one.
    async fn session(&mut self) -> Result<Arc<Session>, TransportError> {
        if let Some(session) = &self.session
            && !session.is_over()
        {
            return Ok(session.clone());
        }
        if self.session.take().is_some() {
            self.lanes.iter_mut().for_each(LaneReceiver::forget);
        }
        let session = self.link.session_within(PATIENCE).await?;
        self.session = Some(session.clone());
        Ok(session)
    }

    /// Returns the messages that have arrived, at most `max`. Pending if there are none.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        session: &Arc<Session>,
        max: usize,
    ) -> Poll<Result<Vec<Delivery>, TransportError>> {
        for lane in &mut self.lanes {
            if let Err(problem) = lane.poll_leaving(cx) {
                return Poll::Ready(Err(problem));
            }
        }
        let undecided: usize = self.lanes.iter().map(LaneReceiver::undecided).sum();
        let room = self.prefetch.saturating_sub(undecided).min(max);
        let mut deliveries = Vec::new();
        let first = self.first.min(self.lanes.len());
        let (before, from) = self.lanes.split_at_mut(first);
        for lane in from.iter_mut().chain(before) {
            while deliveries.len() < room {
                match lane.poll_next(cx, session, &self.topology) {
                    Poll::Ready(Ok((ticket, message))) => {
                        match read(&lane.lane, ticket, &message) {
                            Ok(delivery) => {
                                if let Body::Hints(hints) = &delivery.body {
                                    lane.note_hints(hints.len());
                                }
                                deliveries.push(delivery);
                            }
                            Err(problem) => {
                                lane.decide(&[ticket], Verdict::Settled);
                                let name = lane.lane.to_string();
                                metrics::counter!(HINTS_UNREADABLE, "lane" => name).increment(1);
                                if let Some(more) = self.unreadable.now() {
                                    tracing::warn!(
                                        lane = %lane.lane,
                                        %problem,
                                        more,
                                        "dropped an unreadable message; if it was a hint, the \
                                         sweeper publishes it again"
                                    );
                                }
                            }
                        }
                    }
                    Poll::Ready(Err(problem)) if deliveries.is_empty() => {
                        return Poll::Ready(Err(problem));
                    }
                    Poll::Ready(Err(_)) | Poll::Pending => break,
                }
            }
        }
        for lane in &mut self.lanes {
            lane.leave_if_outdated(cx, session);
        }
        if deliveries.is_empty() {
            Poll::Pending
        } else {
            self.first = (self.first + 1) % self.lanes.len().max(1);
            Poll::Ready(Ok(deliveries))
        }
    }
}

/// Decodes a message.
fn read(
    lane: &jobwire_core::job::Lane,
    ticket: Ticket,
    message: &lapin::message::Delivery,
) -> Result<Delivery, jobwire_core::hint::UnreadableHint> {
    let Message { published_at, body } = Message::decode(&message.data)?;
    Ok(Delivery {
        lane: lane.clone(),
        body,
        published_at,
        received_at: Utc::now(),
        redelivered: message.redelivered,
        ticket,
    })
}

#[async_trait]
impl Receiver for AmqpReceiver {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, TransportError> {
        let closing = self.closing.clone();
        if max == 0 {
            return Ok(Vec::new());
        }
        if self.paused {
            closing.cancelled().await;
        }
        if closing.is_cancelled() {
            return Err(TransportError::Closed);
        }
        let session = tokio::select! {
            biased;
            () = closing.cancelled() => return Err(TransportError::Closed),
            session = self.session() => session?,
        };
        tokio::select! {
            biased;
            () = closing.cancelled() => Err(TransportError::Closed),
            () = session.over() => Err(session.why()),
            received = std::future::poll_fn(|cx| self.poll_receive(cx, &session, max)) => received,
        }
    }

    async fn settle(&mut self, tickets: &[Ticket]) {
        for lane in &mut self.lanes {
            lane.decide(tickets, Verdict::Settled);
        }
    }

    async fn requeue(&mut self, tickets: &[Ticket]) {
        for lane in &mut self.lanes {
            lane.decide(tickets, Verdict::GivenBack);
        }
    }

    fn set_prefetch(&mut self, prefetch: u16) {
        self.prefetch = usize::from(prefetch.max(1));
        let shares = shares(prefetch, self.lanes.len());
        for (lane, share) in self.lanes.iter_mut().zip(shares) {
            lane.set_share(share);
        }
    }

    async fn pause(&mut self) {
        self.paused = true;
        // At once: a broker that is slow takes its time for each.
        join_all(self.lanes.iter_mut().map(LaneReceiver::pause)).await;
    }

    async fn resume(&mut self) {
        self.paused = false;
    }
}

impl Drop for AmqpReceiver {
    /// Requeues unsettled messages now, not when the connection ends.
    fn drop(&mut self) {
        let lanes = std::mem::take(&mut self.lanes);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let leaving = async move {
                join_all(lanes.into_iter().map(LaneReceiver::close)).await;
            };
            self.tasks.spawn_on(leaving, &runtime);
        }
    }
}
