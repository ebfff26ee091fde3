//! A page of the event stream, published in waves.
//!
//! A wave has at most one event of each key, so an event is sent after the broker has confirmed the one
//! before it: neither a refused message nor a retry changes the order. The events with the key of a
//! refused one wait, for longer with each refusal. After a wave of which nothing is confirmed because the
//! broker is away, the rest of the page waits, and so it does if the node may no longer publish: another
//! leader may publish the same events.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;
use uuid::Uuid;

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

/// The keys of events that the broker has refused. Events with these keys wait.
#[derive(Default)]
pub(super) struct RefusedKeys {
    keys: HashMap<String, Wait>,
    /// The number of events with these keys in the last page.
    events: i64,
}

struct Wait {
    until: Instant,
    length: Duration,
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
    fn refuse(&mut self, key: String) {
        let last = self.keys.get(&key).map(|wait| wait.length);
        let length = last.map_or(REFUSED, |last| (last * 2).min(LONGEST));
        let until = Instant::now() + length;
        self.keys.insert(key, Wait { until, length });
    }

    fn confirm(&mut self, key: &str) {
        self.keys.remove(key);
    }

    fn has(&self, event: &StreamedEvent, now: Instant) -> bool {
        !self.keys.is_empty() && (self.keys.get(&event.key())).is_some_and(|wait| wait.until > now)
    }

    /// Ends a page in which this number of events waits. Forgets keys that were not tried again: their
    /// events are gone.
    fn end_page(&mut self, waiting: usize) {
        self.events = i64::try_from(waiting).unwrap_or(READ);
        let now = Instant::now();
        self.keys.retain(|_, wait| wait.until + LONGEST > now);
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
}

/// Returns whether the broker is there and does not accept this event.
const fn is_refusal(problem: &TransportError) -> bool {
    matches!(
        problem,
        TransportError::Refused { .. } | TransportError::Full
    )
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
    let number = |event: &StreamedEvent| (event.seq, event.id);
    // Of a key, all events wait or none.
    let now = Instant::now();
    let mut left: Vec<((i64, Uuid), &str, OutgoingEvent)> = events
        .iter()
        .filter(|event| !refused.has(event, now))
        .map(|event| (number(event), &*event.kind, event.outgoing(&stream.source)))
        .collect();
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
        if is_away {
            page.is_outage = true;
        } else {
            left.retain(|(_, _, event)| !unconfirmed.contains(&event.key));
            unconfirmed.into_iter().for_each(|key| refused.refuse(key));
        }
    }
    let now = Instant::now();
    let waits = events
        .iter()
        .filter(|event| refused.has(event, now))
        .count();
    refused.end_page(waits);
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
}
