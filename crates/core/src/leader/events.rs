//! The task of the event stream: publishes the events that wait, in the order of their keys, and
//! deletes those that the broker has confirmed ([`crate::event::stream`]).
//!
//! Only the leader publishes. It reads a page of events, publishes them in waves, and deletes what is
//! confirmed in one statement. A wave has at most one event of each key, so an event is sent after the
//! broker has confirmed the one before it: neither a refused message nor a retry changes the order. The
//! events with the key of a refused one wait for a second, and those with other keys are published
//! meanwhile: the leader reads behind the events that wait, up to 5,000 from the first. After a wave of
//! which nothing is confirmed because the broker is away, the rest of the page waits.
//!
//! A page that was published and not deleted, because the leader died or the database was away, is
//! published again, by this leader or the next: with the same ids. Two leaders at once publish the same events, and neither sends an event
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
/// Maximum number of events that are read at once: a page, and the events before it that wait for a
/// second because the broker has refused one with their key.
const READ: i64 = 5_000;
/// The pause after a page that was not full, and its maximum while no event is found.
const SOON: Duration = Duration::from_millis(50);
const IDLE: Duration = Duration::from_secs(1);
/// The pause after a failure, and the time for which a refused key waits.
const AGAIN: Duration = Duration::from_secs(1);
/// The interval at which the options are read while the stream is switched off.
const OFF: Duration = Duration::from_secs(60);
/// The interval at which the options are read, old events are dropped and gauges are written.
const TIDY: Duration = Duration::from_secs(10);
/// The interval at which the log says that there is no broker.
const UNFIT: Duration = Duration::from_secs(60);
/// Maximum number of events that one statement drops.
const SLICE: i64 = 10_000;
/// Maximum number of such statements at a time.
const SLICES: usize = 100;

/// The state of the task while this node leads.
#[derive(Default)]
struct Relay {
    stream: Option<EventStream>,
    tidied: Option<Instant>,
    pause: Duration,
    refused: RefusedKeys,
    failed: LogThrottle,
    /// When the log last said that there is no broker.
    unfit: Option<Instant>,
    dropped: LogThrottle,
}

/// The keys of events that the broker has refused. Events with these keys wait.
#[derive(Default)]
struct RefusedKeys {
    keys: HashSet<String>,
    /// The time at which the events are tried again.
    until: Option<Instant>,
    /// The number of events with these keys in the last page.
    events: i64,
}

impl RefusedKeys {
    /// Ends the wait when its time has come. Returns the number of events to read.
    fn next_page(&mut self) -> i64 {
        if self.until.is_some_and(|until| until <= Instant::now()) {
            *self = Self::default();
        }
        PAGE.saturating_add(self.events).min(READ)
    }

    fn add(&mut self, keys: impl IntoIterator<Item = String>) {
        self.keys.extend(keys);
        if !self.keys.is_empty() {
            self.until.get_or_insert_with(|| Instant::now() + AGAIN);
        }
    }

    fn has(&self, event: &StreamedEvent) -> bool {
        !self.keys.is_empty() && self.keys.contains(&event.key())
    }
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
        let at_most = self.refused.next_page();
        let asked = Instant::now();
        let events = node.store.next_events(at_most).await?;
        let took = asked.elapsed();
        if events.is_empty() {
            return Ok(self.longer_pause().max(took));
        }
        let page = publish_page(&*publisher, stream, &events, &mut self.refused).await;
        crash_point!("events-published");
        if !page.confirmed.is_empty() {
            node.store.forget_events(&page.confirmed).await?;
        }
        let is_full = i64::try_from(events.len()).is_ok_and(|read| read >= at_most);
        let pause = if !page.confirmed.is_empty() {
            self.pause = Duration::ZERO;
            if page.problem.is_some() || !is_full {
                SOON
            } else {
                Duration::ZERO
            }
        } else if page.is_outage {
            AGAIN
        } else if is_full && at_most < READ {
            // All of them wait: the next page begins behind them.
            Duration::ZERO
        } else {
            self.longer_pause()
        };
        if let Some(problem) = page.problem {
            counter!(m::STREAM_FAILURES).increment(1);
            if let Some(more) = self.failed.now() {
                tracing::warn!(
                    %problem, more, unpublished = events.len() - page.confirmed.len(),
                    "events of the event stream were not published; they wait, and are tried again"
                );
            }
        }
        // A slow database gets as much time for others as it has spent on this page.
        Ok(if took > SOON { pause.max(took) } else { pause })
    }

    /// Returns the pause after a page of which nothing was published.
    fn longer_pause(&mut self) -> Duration {
        self.pause = (self.pause * 2).clamp(SOON, IDLE);
        self.pause
    }

    /// Drops events that have waited for too long, and writes the gauges.
    async fn tidy(&mut self, node: &NodeContext) -> Result<()> {
        let mut dropped = 0;
        for _ in 0..SLICES {
            let slice = node.store.drop_old_events(SLICE).await?;
            dropped += slice;
            let is_full = i64::try_from(slice).is_ok_and(|slice| slice >= SLICE);
            if !is_full || node.signals.draining.is_cancelled() {
                break;
            }
        }
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
        self.refused = RefusedKeys::default();
    }
}

/// The result of publishing a page.
#[derive(Default)]
struct Page {
    /// The numbers of the confirmed events.
    confirmed: Vec<i64>,
    /// The first failure.
    problem: Option<TransportError>,
    /// Nothing of the last wave was confirmed, because the broker is away.
    is_outage: bool,
}

/// Returns whether the broker is there and does not accept this event.
const fn is_refusal(problem: &TransportError) -> bool {
    matches!(
        problem,
        TransportError::Refused { .. } | TransportError::Full
    )
}

/// Publishes a page in waves, without the events whose key is refused.
async fn publish_page(
    publisher: &dyn EventPublisher,
    stream: &EventStream,
    events: &[StreamedEvent],
    refused: &mut RefusedKeys,
) -> Page {
    let mut page = Page::default();
    let mut left: Vec<(i64, &str, OutgoingEvent)> = events
        .iter()
        .filter(|event| !refused.has(event))
        .map(|event| (event.seq, &*event.kind, event.outgoing(&stream.source)))
        .collect();
    while !left.is_empty() && !page.is_outage {
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
        let mut unconfirmed = HashSet::new();
        let mut is_away = true;
        for (((seq, kind), event), result) in numbers.into_iter().zip(outgoing).zip(results) {
            match result {
                Ok(()) => {
                    counter!(m::STREAM_PUBLISHED, "kind" => kind.to_owned()).increment(1);
                    page.confirmed.push(seq);
                    is_away = false;
                }
                Err(problem) => {
                    is_away = is_away && !is_refusal(&problem);
                    unconfirmed.insert(event.key);
                    page.problem.get_or_insert(problem);
                }
            }
        }
        if is_away {
            page.is_outage = true;
        } else {
            left.retain(|(_, _, event)| !unconfirmed.contains(&event.key));
            refused.add(unconfirmed);
        }
    }
    let waits = events.iter().filter(|event| refused.has(event)).count();
    refused.events = i64::try_from(waits).unwrap_or(READ);
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
                    return Err(match self.refuses {
                        "away" => TransportError::Unreachable("away".to_owned()),
                        _ => TransportError::Full,
                    });
                }
                Ok(())
            });
            let results = results.collect();
            self.waves.lock().unwrap().push(keys);
            results
        }
    }

    async fn waves(refuses: &'static str) -> (Vec<Vec<String>>, Page, RefusedKeys) {
        let broker = Broker {
            refuses,
            waves: Mutex::default(),
        };
        let keys = ["a", "a", "b", "a", "c", "b"];
        let events: Vec<StreamedEvent> = (1..)
            .zip(keys)
            .map(|(seq, key)| event(seq, Some(key)))
            .collect();
        let mut refused = RefusedKeys::default();
        let stream = EventStream::new("here");
        let page = publish_page(&broker, &stream, &events, &mut refused).await;
        (broker.waves.into_inner().unwrap(), page, refused)
    }

    #[tokio::test]
    async fn an_event_is_sent_after_the_one_before_it_is_confirmed() {
        let (waves, page, _) = waves("none").await;
        assert_eq!(waves, [vec!["a", "b", "c"], vec!["a", "b"], vec!["a"]]);
        assert_eq!(page.confirmed, [1, 3, 5, 2, 6, 4]);
        assert!(page.problem.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_behind_a_refused_event() {
        let (waves, page, mut refused) = waves("a").await;
        assert_eq!(waves, [vec!["a", "b", "c"], vec!["b"]]);
        assert_eq!(page.confirmed, [3, 5, 6]);
        assert!(page.problem.is_some() && !page.is_outage);
        assert!(refused.has(&event(7, Some("a"))) && !refused.has(&event(8, Some("b"))));
        assert_eq!(refused.next_page(), PAGE + 3);
        tokio::time::advance(AGAIN).await;
        assert_eq!(refused.next_page(), PAGE);
        assert!(!refused.has(&event(7, Some("a"))));
    }

    /// A whole page of refused events stops no event behind it; an outage of the broker ends the page.
    #[tokio::test(start_paused = true)]
    async fn refused_events_do_not_stop_those_behind_them() {
        let broker = Broker {
            refuses: "a",
            waves: Mutex::default(),
        };
        let stream = EventStream::new("here");
        let mut refused = RefusedKeys::default();
        let first: Vec<StreamedEvent> = (1..=PAGE).map(|seq| event(seq, Some("a"))).collect();
        let page = publish_page(&broker, &stream, &first, &mut refused).await;
        assert!(page.confirmed.is_empty() && !page.is_outage);
        assert_eq!(refused.next_page(), PAGE * 2);
        let more = first.into_iter().chain([event(PAGE + 1, Some("b"))]);
        let page = publish_page(&broker, &stream, &more.collect::<Vec<_>>(), &mut refused).await;
        assert_eq!(page.confirmed, [PAGE + 1]);
        assert!(page.problem.is_none());

        let away = Broker {
            refuses: "away",
            waves: Mutex::default(),
        };
        let events = [event(1, Some("away")), event(2, Some("away"))];
        let page = publish_page(&away, &stream, &events, &mut RefusedKeys::default()).await;
        assert!(page.is_outage && page.confirmed.is_empty());
        assert_eq!(away.waves.into_inner().unwrap().len(), 1);
    }
}
