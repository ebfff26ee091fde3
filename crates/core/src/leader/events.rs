//! The task of the event stream: publishes the events that wait, in the order of their keys, and
//! deletes those that the broker has confirmed ([`crate::event::stream`]).
//!
//! Only the leader publishes. It reads a page of events, publishes them in waves, and deletes what is
//! confirmed in one statement. A wave has at most one event of each key, so an event is sent after the
//! broker has confirmed the one before it: neither a refused message nor a retry changes the order. After a
//! wave with a failure, the rest of the page waits. A page that was published and not
//! deleted, because the leader died or the database was away, is published again, by this leader or the
//! next: with the same ids. Two leaders at once publish the same events, and neither sends an event
//! before the earlier ones of its key.
//!
//! An idle stream is read once a second, a busy one without a pause. While the stream is switched off,
//! its options are read once a minute. While the broker is away, events wait in the table, and the oldest
//! are dropped after their time. No job waits for this task.
//!
//! The gauges `jobwire_event_stream_waiting` and `jobwire_event_stream_oldest_seconds` are written by the
//! leader every ten seconds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use metrics::counter;
use tokio::time::Instant;

use crate::event::stream::{EventStream, OutgoingEvent, StreamedEvent};
use crate::store::Result;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;
use crate::transport::{EventPublisher, TransportError};
use crate::worker::context::NodeContext;

/// Maximum number of events in a page.
const PAGE: i64 = 500;
/// The pause after a page that was not full, and its maximum while no event is found.
const SOON: Duration = Duration::from_millis(50);
const IDLE: Duration = Duration::from_secs(1);
/// The pause after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// The interval at which the options are read while the stream is switched off.
const OFF: Duration = Duration::from_secs(60);
/// The interval at which the options are read, old events are dropped and gauges are written.
const TIDY: Duration = Duration::from_secs(10);
/// The interval at which the log says that there is no broker.
const UNFIT: Duration = Duration::from_secs(60);
/// Maximum number of events that one statement drops.
const SLICE: i64 = 10_000;

/// The state of the task while this node leads.
#[derive(Default)]
struct Relay {
    stream: Option<EventStream>,
    tidied: Option<Instant>,
    pause: Duration,
    failed: LogThrottle,
    /// When the log last said that there is no broker.
    unfit: Option<Instant>,
    dropped: LogThrottle,
}

/// Publishes waiting events while this node leads, until it drains.
pub(crate) async fn publish(node: Arc<NodeContext>) {
    let mut leads = node.leadership.leads.subscribe();
    let mut relay = Relay::default();
    let mut pause = Duration::ZERO;
    loop {
        let is_leader = *leads.borrow_and_update();
        if !is_leader {
            relay.end(&node);
            pause = Duration::ZERO;
        }
        tokio::select! {
            biased;
            () = node.signals.draining.cancelled() => return,
            changed = leads.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = tokio::time::sleep(pause), if is_leader => {}
        }
        pause = tokio::select! {
            biased;
            () = node.signals.draining.cancelled() => return,
            next = relay.go_on(&node) => match next {
                Ok(next) => next,
                Err(error) => {
                    if let Some(more) = relay.failed.now() {
                        tracing::warn!(
                            %error, more,
                            "the events of the event stream could not be read or deleted; trying again"
                        );
                    }
                    AGAIN
                }
            },
        };
    }
}

impl Relay {
    /// Publishes the next page. Returns the pause before the next call.
    async fn go_on(&mut self, node: &NodeContext) -> Result<Duration> {
        if self.tidied.is_none_or(|at| at.elapsed() >= TIDY) {
            self.stream = node.store.event_stream().await?;
            if self.stream.is_some() {
                self.tidy(node).await?;
            } else {
                self.forget_gauges(node);
            }
            self.tidied = Some(Instant::now());
        }
        let Some(stream) = &self.stream else {
            self.tidied = None;
            return Ok(OFF);
        };
        let Some(publisher) = node.transport.events() else {
            if self.unfit.is_none_or(|at| at.elapsed() >= UNFIT) {
                self.unfit = Some(Instant::now());
                tracing::error!(
                    transport = node.transport.name(),
                    "the event stream is switched on, but this transport has no broker that carries \
                     events: name one in `broker_url`, or switch the stream off with `jobwire events \
                     off`"
                );
            }
            return Ok(TIDY);
        };
        let events = node.store.next_events(PAGE).await?;
        if events.is_empty() {
            self.pause = (self.pause * 2).clamp(SOON, IDLE);
            return Ok(self.pause);
        }
        self.pause = Duration::ZERO;
        let page = publish_page(&*publisher, stream, &events).await;
        crash_point!("events-published");
        if !page.confirmed.is_empty() {
            node.store.forget_events(&page.confirmed).await?;
        }
        if let Some(problem) = page.problem {
            counter!(m::STREAM_FAILURES).increment(1);
            if let Some(more) = self.failed.now() {
                tracing::warn!(
                    %problem, more, unpublished = events.len() - page.confirmed.len(),
                    "events of the event stream were not published; they wait, and are tried again"
                );
            }
            return Ok(AGAIN);
        }
        let is_full = i64::try_from(events.len()).is_ok_and(|read| read >= PAGE);
        Ok(if is_full { Duration::ZERO } else { SOON })
    }

    /// Drops what has waited for too long, and writes the gauges.
    async fn tidy(&mut self, node: &NodeContext) -> Result<()> {
        let dropped = node.store.drop_old_events(SLICE).await?;
        if dropped > 0 {
            counter!(m::STREAM_DROPPED).increment(dropped);
            if let Some(more) = self.dropped.now() {
                tracing::error!(
                    dropped,
                    more,
                    "events of the event stream had waited for longer than the stream keeps them and \
                     were dropped; the broker was away or refused them for that long"
                );
            }
        }
        let (waiting, oldest) = node.store.waiting_events().await?;
        #[allow(clippy::cast_precision_loss, reason = "at most 100,000")]
        node.gauges.of_node(m::STREAM_WAITING).set(waiting as f64);
        let age = oldest.map_or(0.0, |at| {
            (Utc::now() - at).to_std().unwrap_or_default().as_secs_f64()
        });
        node.gauges.of_node(m::STREAM_OLDEST).set(age);
        Ok(())
    }

    fn forget_gauges(&self, node: &NodeContext) {
        node.gauges.of_node(m::STREAM_WAITING).set(0.0);
        node.gauges.of_node(m::STREAM_OLDEST).set(0.0);
    }

    /// Ends the leading of this node.
    fn end(&mut self, node: &NodeContext) {
        if self.stream.take().is_some() {
            self.forget_gauges(node);
        }
        self.tidied = None;
    }
}

/// The result of publishing a page.
#[derive(Default)]
struct Page {
    /// The numbers of the confirmed events.
    confirmed: Vec<i64>,
    /// The first failure.
    problem: Option<TransportError>,
}

/// Publishes a page in waves.
async fn publish_page(
    publisher: &dyn EventPublisher,
    stream: &EventStream,
    events: &[StreamedEvent],
) -> Page {
    let mut page = Page::default();
    let mut left: Vec<(i64, &str, OutgoingEvent)> = events
        .iter()
        .map(|event| (event.seq, &*event.kind, event.outgoing(&stream.source)))
        .collect();
    while !left.is_empty() && page.problem.is_none() {
        let mut keys: HashSet<String> = HashSet::new();
        let (wave, later): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|(_, _, event)| keys.insert(event.key.clone()));
        left = later;
        let (numbers, outgoing): (Vec<_>, Vec<_>) = wave
            .into_iter()
            .map(|(seq, kind, event)| ((seq, kind), event))
            .unzip();
        let results = publisher.publish_events(&outgoing).await;
        for ((seq, kind), result) in numbers.into_iter().zip(results) {
            match result {
                Ok(()) => {
                    counter!(m::STREAM_PUBLISHED, "kind" => kind.to_owned()).increment(1);
                    page.confirmed.push(seq);
                }
                Err(problem) => {
                    page.problem.get_or_insert(problem);
                }
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;
    use crate::event::stream::tests::event;

    /// A broker that refuses the events with one key, and notes the waves.
    struct Broker {
        refuses: &'static str,
        waves: Mutex<Vec<Vec<String>>>,
    }

    #[async_trait]
    impl EventPublisher for Broker {
        async fn publish_events(
            &self,
            events: &[OutgoingEvent],
        ) -> Vec<Result<(), TransportError>> {
            let keys: Vec<String> = events.iter().map(|event| event.key.clone()).collect();
            let results = keys.iter().map(|key| {
                if key == self.refuses {
                    return Err(TransportError::Full);
                }
                Ok(())
            });
            let results = results.collect();
            self.waves.lock().unwrap().push(keys);
            results
        }
    }

    async fn waves(refuses: &'static str) -> (Vec<Vec<String>>, Page) {
        let broker = Broker {
            refuses,
            waves: Mutex::default(),
        };
        let keys = ["a", "a", "b", "a", "c", "b"];
        let events: Vec<StreamedEvent> = (1..)
            .zip(keys)
            .map(|(seq, key)| event(seq, Some(key)))
            .collect();
        let page = publish_page(&broker, &EventStream::new("here"), &events).await;
        (broker.waves.into_inner().unwrap(), page)
    }

    #[tokio::test]
    async fn an_event_is_sent_after_the_one_before_it_is_confirmed() {
        let (waves, page) = waves("none").await;
        assert_eq!(waves, [vec!["a", "b", "c"], vec!["a", "b"], vec!["a"]]);
        assert_eq!(page.confirmed, [1, 3, 5, 2, 6, 4]);
        assert!(page.problem.is_none());
    }

    #[tokio::test]
    async fn nothing_is_sent_behind_a_refused_event() {
        let (waves, page) = waves("a").await;
        assert_eq!(waves, [vec!["a", "b", "c"]]);
        assert_eq!(page.confirmed, [3, 5]);
        assert!(page.problem.is_some());
    }
}
