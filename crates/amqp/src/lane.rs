//! One lane as a receiver has it: a channel, a consumer on it, and what is undecided.
//!
//! A lane has a channel of its own, so delivery tags come in order, one by one, and everything below
//! the lowest undecided tag has been decided: only then does one acknowledgement stand for many
//! (`multiple`). With two consumers on a channel it could swallow a message that nobody has looked at
//! yet. For the same reason acknowledgements go through the channel and not through lapin's `Acker`,
//! which hands each to a task of its own and so may reorder them.
//!
//! Each channel has an epoch, and a [`Ticket`] names it: a tag of a channel that is gone means nothing
//! to the next one, and is never sent to it.
//!
//! How many messages the broker may send ahead is the consumer's limit, and stays so while it
//! lives: RabbitMQ changes it for new consumers only (a limit of the channel is refused by quorum
//! queues). When [`Prefetch`] wants another one, the consumer is cancelled, and the next one begins
//! on the same channel. It is cancelled while it has all that its limit allows: then nothing is on
//! its way to it. A quorum queue would take that back and count it as a failed delivery
//! (rabbitmq-server #3729). So nothing goes back, and the order stays.

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

/// How long to leave the broker alone after it refused or failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the broker may take to cancel a consumer.
const ANSWER: Duration = Duration::from_secs(2);

/// What to tell the broker about messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Forget it.
    Settled,
    /// Give it to somebody else.
    GivenBack,
}

/// A channel and what is undecided on it.
struct OpenChannel {
    channel: Channel,
    epoch: u64,
    /// When each came.
    undecided: BTreeMap<u64, Instant>,
    /// The tag that came last.
    last: u64,
    /// The consumer's tags are larger than this one.
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
    /// The consumer is on its way to another limit.
    renews: bool,
    /// It is being cancelled for that.
    leaving: Option<Leaving>,
    opening: Option<Opening>,
    pause: Option<Pin<Box<Sleep>>>,
    /// Tells the statistics of `undecided`.
    unsettled: Share,
}

impl LaneReceiver {
    pub(crate) fn new(
        lane: Lane,
        queue: String,
        share: u16,
        epochs: Arc<AtomicU64>,
        unsettled: Share,
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
        }
    }

    /// Messages that the caller has and has not decided.
    pub(crate) fn undecided(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.undecided.len())
    }

    /// The next message. Opens the lane first, where it is not open; that goes on in the next call
    /// if this one is given up.
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
                    // The broker has cancelled us: the queue was deleted, or its node went down.
                    tracing::warn!(lane = %self.lane, queue = %self.queue, "the broker ended the consumer; will consume again");
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

    /// The channel failed. Leave the broker alone for a while.
    fn fails(&mut self, why: &lapin::Error) -> TransportError {
        self.forget();
        self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
        let said = crate::error::answer(why).map_or_else(|| why.to_string(), |(_, said)| said);
        TransportError::Unreachable(format!("lane '{}': {said}", self.lane))
    }

    /// A message that was returned holds so many hints.
    pub(crate) fn note_hints(&mut self, hints: usize) {
        let hints = u16::try_from(hints).unwrap_or(u16::MAX);
        self.prefetch.note_received(hints, Instant::now());
    }

    /// Cancel a consumer whose limit is not the one that is wanted, while it has all that the limit
    /// allows. To be called when everything that is here was returned; the rest is for
    /// [`poll_leaving`](Self::poll_leaving).
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
        // The first poll writes, before any message is decided: the broker may send another one then.
        self.leaving = Some(match leaving.poll_unpin(cx) {
            Poll::Ready(left) => std::future::ready(left).boxed(),
            Poll::Pending => leaving,
        });
    }

    /// Go on with what [`leave_if_outdated`](Self::leave_if_outdated) began.
    pub(crate) fn poll_leaving(&mut self, cx: &mut Context<'_>) -> Result<(), TransportError> {
        let Some(leaving) = &mut self.leaving else {
            return Ok(());
        };
        let Poll::Ready(left) = leaving.poll_unpin(cx) else {
            return Ok(());
        };
        self.leaving = None;
        if left.is_err() {
            self.forget();
            self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
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
                tracing::debug!(lane = %self.lane, limit, "another limit of messages on their way");
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
                Ok(())
            }
            Err(problem) => {
                // A consumer whose begin was not answered in time may begin all the same; it ends with
                // its channel.
                self.forget();
                self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                Err(problem)
            }
        }
    }

    /// Open now, not with the first poll.
    pub(crate) async fn open(
        &mut self,
        session: &Arc<Session>,
        topology: &Topology,
    ) -> Result<(), TransportError> {
        std::future::poll_fn(|cx| self.poll_open(cx, session, topology)).await
    }

    /// Tell the broker about messages. Tickets of other channels are left alone. Written in order
    /// and without waiting: what does not arrive is delivered again.
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

    /// Take nothing more; what came but was not returned goes back.
    pub(crate) async fn pause(&mut self) {
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
            // Everything on the channel goes back with it, what the caller has included.
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

    /// The channel is no good any more: so are all tickets of it.
    pub(crate) fn forget(&mut self) {
        self.consumer = None;
        self.renews = false;
        self.leaving = None;
        self.opening = None;
        self.pause = None;
        self.unsettled.set(0);
        if let Some(open) = self.open.take()
            && open.channel.status().connected()
        {
            let _ = open.channel.close(200, "OK".into()).now_or_never();
        }
    }

    /// Leave in good order: lapin takes the whole connection down if its channel closes between a
    /// consumer's cancel and the answer to it, so first the one and then the other.
    pub(crate) async fn close(mut self) {
        self.pause().await;
        if let Some(open) = self.open.take() {
            let closing = open.channel.close(200, "OK".into());
            let _ = tokio::time::timeout(ANSWER, closing).await;
        }
    }
}

/// Open a channel, unless there is one, and consume.
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
    // The broker chooses the tag: no two consumers of a channel share one.
    let consumer = session
        .answer(topology.consume(&channel, &queue, "", prefetch))
        .await?;
    Ok((channel, consumer))
}

/// The first poll writes; nobody waits for it to arrive.
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
        tracing::debug!(%problem, tag, "the channel is gone; the message will be delivered again");
    }
}

/// Of decided tags in order, the one that may answer for all below it, and those to name singly.
/// `lowest` is the lowest tag that is still undecided.
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
