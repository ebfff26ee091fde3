//! One lane of a receiver: a channel, a consumer on it, and the undecided messages.
//!
//! A lane has its own channel. So delivery tags arrive in order, one by one, and every tag below
//! the lowest undecided one has been decided. One acknowledgement can therefore stand for many
//! (`multiple`). With two consumers on a channel it could also acknowledge a message that has not
//! been read yet. For the same reason acknowledgements go through the channel and not through
//! lapin's `Acker`, which spawns a task for each and so may reorder them.
//!
//! Each channel has an epoch, which a [`Ticket`] names. A tag of an old channel is never sent to a
//! new one, where it would have another meaning.
//!
//! The consumer's limit bounds the messages that the broker sends ahead. It is fixed for the life
//! of the consumer: RabbitMQ changes it for new consumers only, and quorum queues refuse a limit of
//! the channel. If [`Prefetch`] computes another limit, the consumer is cancelled and a new one
//! starts on the same channel. The consumer is cancelled only while it holds all messages that its
//! limit allows, so no message is on its way to it. A quorum queue would take back such a message
//! and count a failed delivery (rabbitmq-server #3729). So no message goes back, and the order
//! stays.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream};
use jobwire_core::job::Lane;
use jobwire_core::transport::{Ticket, TransportError};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicNackOptions};
use lapin::{Channel, Consumer};
use tokio::time::{Instant, Sleep};

use crate::prefetch::Prefetch;
use crate::session::Session;
use crate::statistics::Share;
use crate::topology::Topology;
use crate::troubles::Trouble;

/// The pause after a refusal or failure of the broker.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum time that the broker may take to cancel a consumer.
const ANSWER: Duration = Duration::from_secs(2);

/// The answer to the broker for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Acknowledged.
    Settled,
    /// Requeued for another receiver.
    GivenBack,
}

/// A channel and its undecided messages.
struct OpenChannel {
    channel: Channel,
    epoch: u64,
    /// Tags of undecided messages, and the time of each arrival.
    undecided: BTreeMap<u64, Instant>,
    /// The tag of the last message.
    last: u64,
    /// The tags of the current consumer are larger than this one.
    before: u64,
}

type Leaving = BoxFuture<'static, Result<(), TransportError>>;
type Opening = BoxFuture<'static, Result<(Channel, Consumer), TransportError>>;

/// See the [module](self).
pub(crate) struct LaneReceiver {
    pub(crate) lane: Lane,
    queue: String,
    prefetch: Prefetch,
    epochs: Arc<AtomicU64>,
    open: Option<OpenChannel>,
    consumer: Option<Consumer>,
    /// The consumer is being replaced by one with another limit.
    renews: bool,
    /// The pending cancellation for that replacement.
    leaving: Option<Leaving>,
    opening: Option<Opening>,
    pause: Option<Pin<Box<Sleep>>>,
    /// Reports the length of `undecided` to the statistics.
    unsettled: Share,
    /// Reports why the lane can't be received.
    trouble: Arc<Trouble>,
}

impl LaneReceiver {
    pub(crate) fn new(
        lane: Lane,
        queue: String,
        share: u16,
        epochs: Arc<AtomicU64>,
        unsettled: Share,
        trouble: Arc<Trouble>,
    ) -> Self {
        Self {
            lane,
            queue,
            prefetch: Prefetch::new(share),
            epochs,
            open: None,
            consumer: None,
            renews: false,
            leaving: None,
            opening: None,
            pause: None,
            unsettled,
            trouble,
        }
    }

    /// Sets the lane's share of the prefetch. The consumer that has the former limit is replaced when
    /// it holds all messages that this limit allows.
    pub(crate) fn set_share(&mut self, share: u16) {
        self.prefetch.set_share(share);
    }

    /// Returns the number of messages that the caller has not decided.
    pub(crate) fn undecided(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.undecided.len())
    }

    /// Returns the next message. Opens the lane first if it is not open; the next call continues an
    /// opening that this one has begun.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        session: &Arc<Session>,
        topology: &Topology,
    ) -> Poll<Result<(Ticket, Delivery), TransportError>> {
        loop {
            let Some(consumer) = &mut self.consumer else {
                match self.poll_open(cx, session, topology) {
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(problem)) => return Poll::Ready(Err(problem)),
                    Poll::Pending => return Poll::Pending,
                }
            };
            let Some(next) = std::task::ready!(Pin::new(consumer).poll_next(cx)) else {
                self.consumer = None;
                if !self.renews {
                    // The queue was deleted, or its node went down.
                    tracing::warn!(
                        lane = %self.lane,
                        queue = %self.queue,
                        "the broker cancelled the consumer: its queue was deleted or the queue's \
                         node is down; consuming again"
                    );
                }
                continue;
            };
            match next {
                Ok(delivery) => {
                    let Some(open) = &mut self.open else {
                        continue;
                    };
                    open.undecided.insert(delivery.delivery_tag, Instant::now());
                    open.last = delivery.delivery_tag;
                    self.unsettled.set(open.undecided.len());
                    let ticket = Ticket {
                        epoch: open.epoch,
                        number: delivery.delivery_tag,
                    };
                    return Poll::Ready(Ok((ticket, delivery)));
                }
                Err(e) => {
                    return Poll::Ready(Err(self.fails(&e)));
                }
            }
        }
    }

    /// Drops the channel and starts the pause.
    fn gives_up(&mut self, problem: &TransportError) {
        self.forget();
        self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
        self.trouble.set(Some(problem.to_string()));
    }

    /// Drops the failed channel and starts the pause.
    fn fails(&mut self, why: &lapin::Error) -> TransportError {
        let said = crate::error::answer(why).map_or_else(|| why.to_string(), |(_, said)| said);
        let problem = TransportError::Unreachable(format!("lane '{}': {said}", self.lane));
        self.gives_up(&problem);
        problem
    }

    /// Records the number of hints in a message that was returned to the caller.
    pub(crate) fn note_hints(&mut self, hints: usize) {
        let hints = u16::try_from(hints).unwrap_or(u16::MAX);
        self.prefetch.note_received(hints, Instant::now());
    }

    /// Cancels a consumer whose limit is outdated, if it holds all messages that the limit allows.
    /// The caller first returns every message that has arrived.
    /// [`poll_leaving`](Self::poll_leaving) completes the cancellation.
    pub(crate) fn leave_if_outdated(&mut self, cx: &mut Context<'_>, session: &Arc<Session>) {
        let (Some(open), Some(consumer)) = (&self.open, &self.consumer) else {
            return;
        };
        let undecided = open.undecided.len();
        if self.renews
            || undecided < self.prefetch.limit()
            || !self.prefetch.is_outdated(undecided, Instant::now())
            || open.undecided.range(open.before + 1..).count() < self.prefetch.limit()
        {
            return;
        }
        self.renews = true;
        let (session, channel, tag) = (session.clone(), open.channel.clone(), consumer.tag());
        let leaving = async move {
            let cancelled = async {
                let cancelled = channel.basic_cancel(tag, BasicCancelOptions::default());
                let cancelled = cancelled.await;
                cancelled.map_err(|e| TransportError::Unreachable(e.to_string()))
            };
            session.answer(cancelled).await
        };
        let mut leaving = leaving.boxed();
        // The first poll writes the request. It must precede the next decision, after which the
        // broker may send another message.
        self.leaving = Some(match leaving.poll_unpin(cx) {
            Poll::Ready(left) => std::future::ready(left).boxed(),
            Poll::Pending => leaving,
        });
    }

    /// Continues the cancellation that [`leave_if_outdated`](Self::leave_if_outdated) began.
    pub(crate) fn poll_leaving(&mut self, cx: &mut Context<'_>) -> Result<(), TransportError> {
        let Some(leaving) = &mut self.leaving else {
            return Ok(());
        };
        let Poll::Ready(left) = leaving.poll_unpin(cx) else {
            return Ok(());
        };
        self.leaving = None;
        if let Err(problem) = &left {
            self.gives_up(problem);
        }
        left
    }

    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        session: &Arc<Session>,
        topology: &Topology,
    ) -> Poll<Result<(), TransportError>> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        if self.leaving.is_some() {
            return Poll::Pending;
        }
        if self.renews && self.opening.is_none() {
            let undecided = self.undecided();
            if !self.prefetch.has_room(undecided, Instant::now()) {
                // The caller polls again after it has decided a message.
                return Poll::Pending;
            }
        }
        let opening = self.opening.get_or_insert_with(|| {
            let kept = self.open.as_ref().map(|open| open.channel.clone());
            let limit = self.prefetch.renew(Instant::now());
            if self.renews {
                tracing::debug!(lane = %self.lane, limit, "changed the prefetch limit");
            }
            open(
                session.clone(),
                topology.clone(),
                self.lane.clone(),
                limit,
                kept,
            )
            .boxed()
        });
        let opened = std::task::ready!(opening.poll_unpin(cx));
        self.opening = None;
        Poll::Ready(self.opened(opened))
    }

    fn opened(
        &mut self,
        opened: Result<(Channel, Consumer), TransportError>,
    ) -> Result<(), TransportError> {
        match opened {
            Ok((channel, consumer)) => {
                let same = self.open.as_ref().is_some_and(|open| {
                    open.channel.id() == channel.id() && open.channel.status().connected()
                });
                if let Some(open) = self.open.as_mut().filter(|_| same) {
                    open.before = open.last;
                } else {
                    self.open = Some(OpenChannel {
                        channel,
                        epoch: self.epochs.fetch_add(1, Ordering::Relaxed),
                        undecided: BTreeMap::new(),
                        last: 0,
                        before: 0,
                    });
                    self.unsettled.set(0);
                }
                self.consumer = Some(consumer);
                self.renews = false;
                self.trouble.set(None);
                Ok(())
            }
            Err(problem) => {
                // A consumer that the broker did not confirm in time may start all the same; it
                // ends with its channel.
                self.gives_up(&problem);
                Err(problem)
            }
        }
    }

    /// Opens the lane now instead of with the first poll.
    pub(crate) async fn open(
        &mut self,
        session: &Arc<Session>,
        topology: &Topology,
    ) -> Result<(), TransportError> {
        std::future::poll_fn(|cx| self.poll_open(cx, session, topology)).await
    }

    /// Settles or requeues messages. Ignores tickets of other channels. Writes in order and does
    /// not wait: the broker redelivers a message whose answer it does not receive.
    pub(crate) fn decide(&mut self, tickets: &[Ticket], verdict: Verdict) {
        let Some(open) = &mut self.open else { return };
        let now = Instant::now();
        let mut decided = Vec::with_capacity(tickets.len());
        for ticket in tickets.iter().filter(|ticket| ticket.epoch == open.epoch) {
            if let Some(came_at) = open.undecided.remove(&ticket.number) {
                self.prefetch.note_decided(came_at, now);
                decided.push(ticket.number);
            }
        }
        self.unsettled.set(open.undecided.len());
        decided.sort_unstable();
        let lowest = open.undecided.first_key_value().map(|(tag, _)| *tag);
        let (one_answer, single) = split(&decided, lowest);
        for (tag, multiple) in one_answer
            .map(|tag| (tag, true))
            .into_iter()
            .chain(single.iter().map(|tag| (*tag, false)))
        {
            answer(&open.channel, tag, multiple, verdict);
        }
    }

    /// Stops consuming and requeues the messages that were not returned to the caller.
    pub(crate) async fn pause(&mut self) {
        self.pause_consumer().await;
        // A lane that is paused is received by nobody here, and that is no problem.
        self.trouble.set(None);
    }

    async fn pause_consumer(&mut self) {
        if let Some(opening) = self.opening.take() {
            match tokio::time::timeout(ANSWER, opening).await {
                Ok(opened) => {
                    let _ = self.opened(opened);
                }
                Err(_) => self.forget(),
            }
        }
        let leaving = self.leaving.take();
        self.renews = false;
        let consumer = self.consumer.take();
        let Some(open) = &self.open else { return };
        let cancelled = async {
            match (leaving, &consumer) {
                (Some(leaving), _) => leaving.await.is_ok(),
                (None, Some(consumer)) => {
                    let cancelled = open
                        .channel
                        .basic_cancel(consumer.tag(), BasicCancelOptions::default());
                    cancelled.await.is_ok()
                }
                (None, None) => true,
            }
        };
        if !matches!(tokio::time::timeout(ANSWER, cancelled).await, Ok(true)) {
            // Closing the channel requeues all its messages, including those that the caller has.
            self.forget();
            return;
        }
        let Some(mut consumer) = consumer else { return };
        let mut waker = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(Ok(delivery))) = Pin::new(&mut consumer).poll_next(&mut waker) {
            answer(
                &open.channel,
                delivery.delivery_tag,
                false,
                Verdict::GivenBack,
            );
        }
    }

    /// Drops the channel and with it all its tickets.
    pub(crate) fn forget(&mut self) {
        self.consumer = None;
        self.renews = false;
        self.leaving = None;
        self.opening = None;
        self.pause = None;
        self.unsettled.set(0);
        self.trouble.set(None);
        if let Some(open) = self.open.take()
            && open.channel.status().connected()
        {
            let _ = open.channel.close(200, "OK".into()).now_or_never();
        }
    }

    /// Cancels the consumer, then closes the channel. lapin drops the whole connection if a channel
    /// closes between the cancel of a consumer and its answer.
    pub(crate) async fn close(mut self) {
        self.pause().await;
        if let Some(open) = self.open.take() {
            let closing = open.channel.close(200, "OK".into());
            let _ = tokio::time::timeout(ANSWER, closing).await;
        }
    }
}

/// Consumes on the given channel, or on a new one if it is missing or closed.
async fn open(
    session: Arc<Session>,
    topology: Topology,
    lane: Lane,
    prefetch: u16,
    kept: Option<Channel>,
) -> Result<(Channel, Consumer), TransportError> {
    topology.ensure_lane(&session, &lane).await?;
    let queue = topology.queue(&lane);
    let channel = match kept.filter(|channel| channel.status().connected()) {
        Some(channel) => channel,
        None => session.channel().await?,
    };
    // The broker chooses the tag, so no two consumers of a channel share one.
    let consumer = session
        .answer(topology.consume(&channel, &queue, "", prefetch))
        .await?;
    Ok((channel, consumer))
}

/// Writes the answer with the first poll and does not wait for its arrival.
fn answer(channel: &Channel, tag: u64, multiple: bool, verdict: Verdict) {
    let said = match verdict {
        Verdict::Settled => channel
            .basic_ack(tag, BasicAckOptions { multiple })
            .now_or_never(),
        Verdict::GivenBack => channel
            .basic_nack(
                tag,
                BasicNackOptions {
                    multiple,
                    requeue: true,
                },
            )
            .now_or_never(),
    };
    if let Some(Err(problem)) = said {
        tracing::debug!(
            %problem,
            tag,
            "could not answer a message: the channel is closed; the broker redelivers it"
        );
    }
}

/// Splits decided tags, in ascending order, into the one that answers for all tags up to it and
/// those to answer singly. `lowest` is the lowest tag that is still undecided.
fn split(decided: &[u64], lowest: Option<u64>) -> (Option<u64>, &[u64]) {
    let below = decided.partition_point(|tag| lowest.is_none_or(|lowest| *tag < lowest));
    let (together, single) = decided.split_at(below);
    (together.last().copied(), single)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_never_covers_what_is_undecided() {
        assert_eq!(split(&[1, 2, 3], None), (Some(3), &[][..]));
        assert_eq!(split(&[1, 2, 4], Some(3)), (Some(2), &[4][..]));
        assert_eq!(split(&[4, 5], Some(3)), (None, &[4, 5][..]));
        assert_eq!(split(&[], Some(3)), (None, &[][..]));
    }
}
