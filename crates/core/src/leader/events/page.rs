//! A page of the event stream, published in waves.
//!
//! A wave has at most one event of each key, so an event is sent after the broker has confirmed the one
//! before it: neither a refused message nor a retry changes the order. The events with the key of a
//! refused one wait. After a wave of which nothing is confirmed because the broker is away, the rest of
//! the page waits.

use std::collections::HashSet;
use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;

use crate::event::stream::{EventStream, OutgoingEvent, StreamedEvent};
use crate::telemetry::metrics as m;
use crate::transport::{EventPublisher, TransportError};

/// Maximum number of events in a page.
const PAGE: i64 = 500;
/// Maximum number of events that are read at once: a page, and the events before it that wait because
/// the broker has refused one with their key.
pub(super) const READ: i64 = 5_000;
/// The time for which a refused key waits.
const REFUSED: Duration = Duration::from_secs(1);

/// The keys of events that the broker has refused. Events with these keys wait.
#[derive(Default)]
pub(super) struct RefusedKeys {
    keys: HashSet<String>,
    /// The time at which the events are tried again.
    until: Option<Instant>,
    /// The number of events with these keys in the last page.
    events: i64,
}

impl RefusedKeys {
    /// Ends the wait when its time has come. Returns the number of events to read.
    pub(super) fn next_page(&mut self) -> i64 {
        if self.until.is_some_and(|until| until <= Instant::now()) {
            *self = Self::default();
        }
        PAGE.saturating_add(self.events).min(READ)
    }

    fn add(&mut self, keys: impl IntoIterator<Item = String>) {
        self.keys.extend(keys);
        if !self.keys.is_empty() {
            self.until.get_or_insert_with(|| Instant::now() + REFUSED);
        }
    }

    fn has(&self, event: &StreamedEvent) -> bool {
        !self.keys.is_empty() && self.keys.contains(&event.key())
    }
}
/// The result of publishing a page.
#[derive(Default)]
pub(super) struct Page {
    /// The numbers of the confirmed events.
    pub(super) confirmed: Vec<i64>,
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

/// Publishes a page in waves, without the events whose key is refused.
pub(super) async fn publish_page(
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
        tokio::time::advance(REFUSED).await;
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
