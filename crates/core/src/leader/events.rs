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
//! its options are read once a minute. While the broker is away, events wait in the table, and the oldest
//! are dropped after their time. No job waits for this task.
//!
//! The gauges `jobwire_event_stream_waiting` and `jobwire_event_stream_oldest_seconds` are written by the
//! leader every ten seconds.

mod page;

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use metrics::counter;
use tokio::time::Instant;

use crate::event::stream::EventStream;
use crate::store::Result;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use page::{READ, RefusedKeys, publish_page};

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

/// The state of the task while this node leads.
#[derive(Default)]
struct Relay {
    stream: Option<EventStream>,
    tidied: Option<Instant>,
    pause: Duration,
    refused: RefusedKeys,
    /// Whether the broker did not take all events of the last page.
    fails: bool,
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
            self.fails = true;
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
            self.fails = false;
            return Ok(self.longer_pause().max(took));
        }
        // Another leader publishes the events of a node that was frozen.
        let may_publish = || {
            *node.leadership.leads.borrow() && asked.elapsed() < took + node.options.sweep_interval
        };
        let page = publish_page(&*publisher, stream, &events, &mut self.refused, may_publish).await;
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
        self.fails = page.problem.is_some() || self.refused.any();
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

    /// Drops events that have waited for too long, and writes the gauges. While the broker takes events,
    /// old ones are published: the whole fleet was stopped, or the transaction of their writer was long.
    async fn tidy(&mut self, node: &NodeContext) -> Result<()> {
        let mut dropped = 0;
        let slices = if self.fails { SLICES } else { 0 };
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
        (self.tidied, self.fails) = (None, false);
        self.refused = RefusedKeys::default();
    }
}
