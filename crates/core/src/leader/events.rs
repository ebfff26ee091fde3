//! The task of the event stream: publishes the events that wait, in the order of their keys, and
//! deletes those that the broker has confirmed ([`crate::event::stream`]).
//!
//! Only the leader publishes. It reads a page of events, publishes them in waves (`events/page.rs`), and
//! deletes what is confirmed in one statement. The events with the key of a refused one wait for a
//! second, and those with other keys are published meanwhile: the leader reads behind the events that
//! wait, up to 5,000 from the first.
//!
//! A page that was published and not deleted, because the leader died or the database was away, is
//! published again, by this leader or the next: with the same ids. Two leaders at once publish the same
//! events, and neither sends an event before the earlier ones of its key.
//!
//! An idle stream is read once a second, a busy one without a pause. While the stream is switched off,
//! its options are read once a minute. No job waits for this task.
//!
//! While the broker is away, events wait in the table. Events that are older than the stream keeps them are
//! dropped once the broker has taken nothing for an hour (for the time that the stream keeps events, if that
//! is shorter), and those of one key once it has taken nothing of this key for as long ([`tried_for`]). This
//! time is measured by the leader, from its first failure: events that waited because no node ran are
//! published. A new leader begins the time anew, so it is short beside the usual time between deployments.
//!
//! The gauges `jobwire_event_stream_waiting` and `jobwire_event_stream_oldest_seconds` are written by the
//! leader every ten seconds.

mod page;

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use metrics::counter;
use tokio::time::Instant;
use uuid::Uuid;

use crate::event::stream::EventStream;
use crate::store::Result;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use page::{Page, READ, RefusedKeys, publish_page};

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
/// Maximum number of such statements at a time.
const SLICES: usize = 100;

/// The longest time for which the leader tries to publish events that are too old.
const TRIED: Duration = Duration::from_secs(3_600);

/// Returns the time for which the leader tries to publish an event before it drops it as too old.
fn tried_for(keep: Duration) -> Duration {
    keep.min(TRIED)
}

/// The state of the task while this node leads.
#[derive(Default)]
struct Relay {
    stream: Option<EventStream>,
    tidied: Option<Instant>,
    pause: Duration,
    refused: RefusedKeys,
    /// Since when the broker has taken nothing although events wait.
    fails_since: Option<Instant>,
    /// The numbers and ids of events whose keys have failed for as long as the stream keeps events.
    stale: Vec<(i64, Uuid)>,
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
            if let Some(stream) = &self.stream {
                let keep = stream.keep;
                self.tidy(node, keep).await?;
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
            self.fails();
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
        // Another leader publishes the events of a node that was frozen, after its lease has ended.
        let may_publish = node.leadership.watch_lease();
        let asked = Instant::now();
        let events = node.store.next_events(at_most).await?;
        let took = asked.elapsed();
        if events.is_empty() {
            self.succeeds();
            return Ok(self.longer_pause().max(took));
        }
        let mut page =
            publish_page(&*publisher, stream, &events, &mut self.refused, may_publish).await;
        crash_point!("events-published");
        if !page.confirmed.is_empty() {
            node.store.forget_events(&page.confirmed).await?;
        }
        let is_full = i64::try_from(events.len()).is_ok_and(|read| read >= at_most);
        self.note(&mut page, is_full && at_most >= READ);
        let pause = if !page.confirmed.is_empty() {
            self.pause = Duration::ZERO;
            if page.problem.is_some() || !is_full {
                SOON
            } else {
                Duration::ZERO
            }
        } else if page.is_outage {
            AGAIN
        } else if page.is_ended {
            // The lease of the leader is over: its next cycle says whether it still leads.
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

    /// Records whether the broker takes events. `is_longest` says that no later events can be read.
    fn note(&mut self, page: &mut Page, is_longest: bool) {
        self.stale = std::mem::take(&mut page.stale);
        if !page.confirmed.is_empty() {
            self.succeeds();
        } else if page.is_outage || is_longest {
            self.fails();
        }
    }

    fn fails(&mut self) {
        self.fails_since.get_or_insert_with(Instant::now);
    }

    fn succeeds(&mut self) {
        self.fails_since = None;
    }

    /// Returns whether the broker has taken nothing for so long that old events are dropped.
    fn drops_old(&self, keep: Duration) -> bool {
        self.fails_since
            .is_some_and(|since| since.elapsed() >= tried_for(keep))
    }

    /// Returns the pause after a page of which nothing was published.
    fn longer_pause(&mut self) -> Duration {
        self.pause = (self.pause * 2).clamp(SOON, IDLE);
        self.pause
    }

    /// Drops events that have waited for too long and that the broker did not take for as long, and writes
    /// the gauges. Other old events are published: the whole fleet was stopped, or the transaction of their
    /// writer was long.
    async fn tidy(&mut self, node: &NodeContext, keep: Duration) -> Result<()> {
        let mut dropped = 0;
        if !self.stale.is_empty() {
            dropped += node.store.drop_failed_events(&self.stale).await?;
            self.stale.clear();
        }
        let slices = if self.drops_old(keep) { SLICES } else { 0 };
        for _ in 0..slices {
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
        (self.tidied, self.fails_since) = (None, None);
        self.stale.clear();
        self.refused = RefusedKeys::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(24 * 3_600);

    fn page(confirmed: &[(i64, Uuid)], is_outage: bool) -> Page {
        Page {
            confirmed: confirmed.to_vec(),
            is_outage,
            ..Page::default()
        }
    }

    /// What waits for the broker is dropped only if the broker has taken nothing for the whole time.
    #[tokio::test(start_paused = true)]
    async fn only_a_broker_that_takes_nothing_for_the_whole_time_loses_events() {
        let mut relay = Relay::default();
        relay.note(&mut page(&[], true), false);
        tokio::time::advance(HOUR - TIDY).await;
        assert!(relay.drops_old(HOUR - TIDY));
        assert!(!relay.drops_old(DAY));
        relay.note(&mut page(&[], true), false);
        tokio::time::advance(TIDY).await;
        assert!(relay.drops_old(DAY));
        // A confirm begins the time anew, and a refused key is no failure of the broker.
        relay.note(&mut page(&[(1, Uuid::nil())], true), true);
        relay.note(&mut page(&[], false), false);
        tokio::time::advance(HOUR).await;
        assert!(!relay.drops_old(DAY));
        // Refused events fill the longest page: nothing behind them can be read.
        relay.note(&mut page(&[], false), true);
        tokio::time::advance(HOUR).await;
        assert!(relay.drops_old(DAY));
    }
}
