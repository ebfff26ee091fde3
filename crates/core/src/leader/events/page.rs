//! A page of the event stream, published in waves.
//!
//! A wave has at most one event of each key, so an event is sent after the broker has confirmed the one
//! before it: neither a refused message nor a retry changes the order. The events with the key of a
//! refused one wait, for longer with each refusal. After a wave of which nothing is confirmed because the
//! broker is away, the rest of the page waits, and so it does if the node may no longer publish: another
//! leader may publish the same events.
//!
//! The keys of such a wave wait, too: a part of the broker may be away, as one partition of Kafka, and the
//! next page reads behind them. If the whole broker is away and all events wait, each page tries the first
//! of them. When one of these keys is confirmed, the others are tried at once.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;
use uuid::Uuid;

use super::tried_for;
use crate::event::stream::{EventStream, OutgoingEvent, StreamedEvent};
use crate::telemetry::metrics as m;
use crate::transport::{EventPublisher, TransportError};

/// Maximum number of events in a page.
const PAGE: i64 = 500;
/// Maximum number of events that are read at once: a page, and the events before it that wait because
/// the broker has refused one with their key.
pub(super) const READ: i64 = 5_000;
/// The time for which a refused key waits first, and at most. It doubles while the key is refused again.
const REFUSED: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// The time for which a key waits first because the broker is away. It is longer than the pause before
/// the next page.
const AWAY: Duration = Duration::from_secs(2);

/// The keys of events that the broker has refused, or did not take because it is away. Events with these
/// keys wait.
#[derive(Default)]
pub(super) struct RefusedKeys {
    keys: HashMap<String, Wait>,
    /// The number of events with these keys in the last page.
    events: i64,
    /// Whether the broker took nothing of the last page that it was given, because it is away.
    is_outage: bool,
}

struct Wait {
    until: Instant,
    length: Duration,
    /// The first failure since the last confirm.
    since: Instant,
    /// Whether the broker was away, and did not refuse an event.
    is_away: bool,
}

impl RefusedKeys {
    /// Returns the number of events to read.
    pub(super) fn next_page(&self) -> i64 {
        let events = if self.any() { self.events } else { 0 };
        PAGE.saturating_add(events).min(READ)
    }

    /// Returns whether events wait.
    pub(super) fn any(&self) -> bool {
        let now = Instant::now();
        self.keys.values().any(|wait| wait.until > now)
    }

    /// Begins the next wait of a key.
    fn refuse(&mut self, key: String, is_away: bool) {
        let now = Instant::now();
        let last = self.keys.get(&key);
        let first = if is_away { AWAY } else { REFUSED };
        let length = last.map_or(first, |last| (last.length * 2).min(LONGEST));
        let wait = Wait {
            until: now + length,
            length,
            since: last.map_or(now, |last| last.since),
            is_away,
        };
        self.keys.insert(key, wait);
    }

    fn confirm(&mut self, key: &str) {
        let was_away = self.keys.remove(key).is_some_and(|wait| wait.is_away);
        if was_away {
            // The broker is back.
            let now = Instant::now();
            for wait in self.keys.values_mut().filter(|wait| wait.is_away) {
                (wait.until, wait.is_away) = (now, false);
            }
        }
    }

    fn wait(&self, event: &StreamedEvent) -> Option<&Wait> {
        // Most often no key waits, and no key is copied.
        (!self.keys.is_empty()).then(|| self.keys.get(&event.key()))?
    }

    fn has(&self, event: &StreamedEvent, now: Instant) -> bool {
        self.wait(event).is_some_and(|wait| wait.until > now)
    }

    /// Ends a page. Forgets keys that were not tried again and have no event in it: their events are gone.
    fn end_page(&mut self, events: &[StreamedEvent]) {
        let now = Instant::now();
        let waiting = events.iter().filter(|event| self.has(event, now)).count();
        self.events = i64::try_from(waiting).unwrap_or(READ);
        let is_late = |wait: &Wait| wait.until + LONGEST <= now;
        if self.keys.values().any(is_late) {
            let found: HashSet<String> = events.iter().map(StreamedEvent::key).collect();
            self.keys
                .retain(|key, wait| !is_late(wait) || found.contains(key));
        }
    }

    /// Returns the events of a page whose keys have failed for at least this time.
    fn stale(&self, events: &[StreamedEvent], keep: Duration) -> Vec<(i64, Uuid)> {
        let is_stale = |event: &&StreamedEvent| {
            let wait = self.wait(event);
            wait.is_some_and(|wait| wait.since.elapsed() >= tried_for(keep))
        };
        let stale = events.iter().filter(is_stale);
        stale.map(|event| (event.seq, event.id)).collect()
    }
}

/// The result of publishing a page.
#[derive(Default)]
pub(super) struct Page {
    /// The numbers and ids of the confirmed events.
    pub(super) confirmed: Vec<(i64, Uuid)>,
    /// The first failure.
    pub(super) problem: Option<TransportError>,
    /// Nothing of the last wave was confirmed, because the broker is away.
    pub(super) is_outage: bool,
    /// The node may no longer publish, and events are left.
    pub(super) is_ended: bool,
    /// The numbers and ids of the events whose keys have failed for as long as the stream keeps events.
    pub(super) stale: Vec<(i64, Uuid)>,
}

/// Returns whether the broker is there and does not accept this event.
const fn is_refusal(problem: &TransportError) -> bool {
    matches!(
        problem,
        TransportError::Refused { .. } | TransportError::Full
    )
}

/// The number and id of an event, its kind, and its form on the broker.
type Outgoing<'a> = ((i64, Uuid), &'a str, OutgoingEvent);

fn outgoing<'a>(event: &'a StreamedEvent, source: &str) -> Outgoing<'a> {
    ((event.seq, event.id), &event.kind, event.outgoing(source))
}

/// Publishes a page in waves, without the events whose key is refused, while `may_publish` returns true.
pub(super) async fn publish_page(
    publisher: &dyn EventPublisher,
    stream: &EventStream,
    events: &[StreamedEvent],
    refused: &mut RefusedKeys,
    may_publish: impl Fn() -> bool,
) -> Page {
    let mut page = Page::default();
    let outgoing = |event| outgoing(event, &stream.source);
    // Of a key, all events wait or none.
    let now = Instant::now();
    let mut left: Vec<Outgoing<'_>> = events
        .iter()
        .filter(|event| !refused.has(event, now))
        .map(outgoing)
        .collect();
    if left.is_empty() && refused.is_outage {
        let is_away = |event: &&StreamedEvent| refused.wait(event).is_some_and(|wait| wait.is_away);
        left.extend(events.iter().find(is_away).map(outgoing));
    }
    while !left.is_empty() && !page.is_outage && may_publish() {
        let mut keys: HashSet<String> = HashSet::new();
        let (wave, later): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|(_, _, event)| keys.insert(event.key.clone()));
        left = later;
        let (numbers, outgoing): (Vec<_>, Vec<_>) = wave
            .into_iter()
            .map(|(number, kind, event)| ((number, kind), event))
            .unzip();
        let results = publisher.publish_events(&outgoing).await;
        let mut unconfirmed = HashSet::new();
        let mut is_away = true;
        for (((number, kind), event), result) in numbers.into_iter().zip(outgoing).zip(results) {
            match result {
                Ok(()) => {
                    counter!(m::STREAM_PUBLISHED, "kind" => kind.to_owned()).increment(1);
                    page.confirmed.push(number);
                    refused.confirm(&event.key);
                    is_away = false;
                }
                Err(problem) => {
                    is_away = is_away && !is_refusal(&problem);
                    unconfirmed.insert(event.key);
                    page.problem.get_or_insert(problem);
                }
            }
        }
        page.is_outage = is_away;
        left.retain(|(_, _, event)| !unconfirmed.contains(&event.key));
        for key in unconfirmed {
            refused.refuse(key, is_away);
        }
    }
    page.is_ended = !left.is_empty() && !page.is_outage;
    if page.problem.is_some() || !page.confirmed.is_empty() {
        refused.is_outage = page.is_outage && page.confirmed.is_empty();
    }
    refused.end_page(events);
    page.stale = refused.stale(events, stream.keep);
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
        let page = publish_page(&broker, &stream, &events, &mut refused, || true).await;
        (broker.waves.into_inner().unwrap(), page, refused)
    }

    fn numbers(page: &Page) -> Vec<i64> {
        page.confirmed.iter().map(|(number, _)| *number).collect()
    }

    #[tokio::test]
    async fn an_event_is_sent_after_the_one_before_it_is_confirmed() {
        let (waves, page, _) = waves("none").await;
        assert_eq!(waves, [vec!["a", "b", "c"], vec!["a", "b"], vec!["a"]]);
        assert_eq!(numbers(&page), [1, 3, 5, 2, 6, 4]);
        assert!(page.problem.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_behind_a_refused_event() {
        let (waves, page, refused) = waves("a").await;
        let waits = |key| refused.has(&event(7, Some(key)), Instant::now());
        assert_eq!(waves, [vec!["a", "b", "c"], vec!["b"]]);
        assert_eq!(numbers(&page), [3, 5, 6]);
        assert!(page.problem.is_some() && !page.is_outage);
        assert!(waits("a") && !waits("b") && refused.any());
        assert_eq!(refused.next_page(), PAGE + 3);
        tokio::time::advance(REFUSED).await;
        assert_eq!(refused.next_page(), PAGE);
        assert!(!waits("a") && !refused.any());
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
        let page = publish_page(&broker, &stream, &first, &mut refused, || true).await;
        assert!(page.confirmed.is_empty() && !page.is_outage);
        assert_eq!(refused.next_page(), PAGE * 2);
        let more = first.into_iter().chain([event(PAGE + 1, Some("b"))]);
        let page = publish_page(
            &broker,
            &stream,
            &more.collect::<Vec<_>>(),
            &mut refused,
            || true,
        )
        .await;
        assert_eq!(numbers(&page), [PAGE + 1]);
        assert!(page.problem.is_none());

        let away = Broker {
            refuses: "away",
            waves: Mutex::default(),
        };
        let events = [event(1, Some("away")), event(2, Some("away"))];
        let page = publish_page(&away, &stream, &events, &mut RefusedKeys::default(), || {
            true
        })
        .await;
        assert!(page.is_outage && page.confirmed.is_empty());
        assert_eq!(away.waves.into_inner().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_key_waits_for_longer_with_each_refusal() {
        let mut broker = Broker {
            refuses: "a",
            waves: Mutex::default(),
        };
        let stream = EventStream::new("here");
        let mut refused = RefusedKeys::default();
        let waits = |refused: &RefusedKeys| refused.has(&event(1, Some("a")), Instant::now());
        let events = [event(1, Some("a")), event(2, Some("b"))];
        for wait in [1, 2, 4, 8, 16, 30, 30] {
            for _ in 0..2 {
                publish_page(&broker, &stream, &events, &mut refused, || true).await;
            }
            tokio::time::advance(Duration::from_secs(wait) - Duration::from_millis(1)).await;
            assert!(waits(&refused), "{wait}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(!waits(&refused), "{wait}");
        }
        broker.refuses = "none";
        publish_page(&broker, &stream, &events, &mut refused, || true).await;
        assert!(refused.keys.is_empty());
        // The events of a refused key were dropped.
        broker.refuses = "a";
        publish_page(&broker, &stream, &events, &mut refused, || true).await;
        tokio::time::advance(REFUSED + LONGEST).await;
        publish_page(&broker, &stream, &events[1..], &mut refused, || true).await;
        assert!(refused.keys.is_empty());
    }

    #[tokio::test]
    async fn a_node_that_may_no_longer_publish_ends_its_page() {
        let broker = Broker {
            refuses: "none",
            waves: Mutex::default(),
        };
        let (stream, mut refused) = (EventStream::new("here"), RefusedKeys::default());
        let events = [
            event(1, Some("a")),
            event(2, Some("a")),
            event(3, Some("a")),
        ];
        let waves = || broker.waves.lock().unwrap().len();
        let page = publish_page(&broker, &stream, &events, &mut refused, || waves() < 2).await;
        assert_eq!(numbers(&page), [1, 2]);
        assert!(page.problem.is_none() && !page.is_outage);
    }

    /// A broker of which the keys in the list are away.
    #[derive(Default)]
    struct Parts {
        away: Mutex<HashSet<String>>,
        sent: Mutex<Vec<usize>>,
    }

    #[async_trait]
    impl EventPublisher for Parts {
        async fn publish_events(
            &self,
            events: &[OutgoingEvent],
        ) -> Vec<Result<(), TransportError>> {
            self.sent.lock().unwrap().push(events.len());
            let away = self.away.lock().unwrap();
            let result = |event: &OutgoingEvent| {
                if away.contains(&event.key) {
                    return Err(TransportError::Unreachable("away".to_owned()));
                }
                Ok(())
            };
            events.iter().map(result).collect()
        }
    }

    fn keyed(prefix: &str, numbers: std::ops::RangeInclusive<i64>) -> Vec<StreamedEvent> {
        let event = |number| event(number, Some(&format!("{prefix}-{number}")));
        numbers.map(event).collect()
    }

    fn away(events: &[StreamedEvent]) -> Parts {
        let keys = events.iter().map(StreamedEvent::key).collect();
        Parts {
            away: Mutex::new(keys),
            ..Parts::default()
        }
    }

    /// One partition of Kafka is offline, and a whole page of its events stands before the others.
    #[tokio::test(start_paused = true)]
    async fn a_part_of_the_broker_that_is_away_stops_no_event_of_the_others() {
        let bad = keyed("bad", 1..=PAGE);
        let (broker, stream) = (away(&bad), EventStream::new("here"));
        let mut refused = RefusedKeys::default();
        let page = publish_page(&broker, &stream, &bad, &mut refused, || true).await;
        assert!(page.is_outage && page.confirmed.is_empty());
        // The pause after an outage.
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(refused.next_page(), PAGE * 2);
        let good = keyed("good", PAGE + 1..=PAGE + 3);
        let events: Vec<StreamedEvent> = bad.into_iter().chain(good).collect();
        let page = publish_page(&broker, &stream, &events, &mut refused, || true).await;
        assert_eq!(numbers(&page), [PAGE + 1, PAGE + 2, PAGE + 3]);
        assert!(!page.is_outage && page.problem.is_none());
        assert_eq!(*broker.sent.lock().unwrap(), [500, 3]);
    }

    /// The waits of an outage end with it, however long they are.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_outage_is_found_with_one_event() {
        let events = keyed("order", 1..=50);
        let (broker, stream) = (away(&events), EventStream::new("here"));
        let mut refused = RefusedKeys::default();
        for _ in 0..100 {
            let page = publish_page(&broker, &stream, &events, &mut refused, || true).await;
            assert!(page.is_outage && page.confirmed.is_empty());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(broker.sent.lock().unwrap().contains(&1));
        assert_eq!(refused.keys.len(), 50);
        broker.away.lock().unwrap().clear();
        let mut confirmed =
            numbers(&publish_page(&broker, &stream, &events, &mut refused, || true).await);
        let left: Vec<StreamedEvent> = events
            .into_iter()
            .filter(|event| !confirmed.contains(&event.seq))
            .collect();
        confirmed.extend(numbers(
            &publish_page(&broker, &stream, &left, &mut refused, || true).await,
        ));
        confirmed.sort_unstable();
        assert!(confirmed.into_iter().eq(1..=50));
        assert!(refused.keys.is_empty() && !refused.is_outage);
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_stale_when_their_own_key_has_failed_for_the_whole_time() {
        let keep = Duration::from_secs(24 * 3_600);
        let stream = EventStream::new("here").keep(keep);
        let mut broker = Broker {
            refuses: "a",
            waves: Mutex::default(),
        };
        let mut refused = RefusedKeys::default();
        let mut events: Vec<StreamedEvent> = (1..)
            .zip(["a", "b", "a"])
            .map(|(seq, key)| event(seq, Some(key)))
            .collect();
        let step = Duration::from_secs(20);
        for passed in 0..180 {
            let page = publish_page(&broker, &stream, &events, &mut refused, || true).await;
            assert!(page.stale.is_empty(), "{passed}");
            events.retain(|event| event.seq != 2);
            tokio::time::advance(step).await;
        }
        events.push(event(4, Some("b")));
        let page = publish_page(&broker, &stream, &events, &mut refused, || true).await;
        let stale: Vec<i64> = page.stale.iter().map(|(number, _)| *number).collect();
        assert_eq!(stale, [1, 3]);
        // A pause of the leader does not forget the key; a confirm does.
        tokio::time::advance(LONGEST * 3).await;
        let page = publish_page(&broker, &stream, &events, &mut refused, || false).await;
        assert_eq!(page.stale.len(), 2);
        broker.refuses = "none";
        let page = publish_page(&broker, &stream, &events, &mut refused, || true).await;
        assert!(page.stale.is_empty());
    }
}
