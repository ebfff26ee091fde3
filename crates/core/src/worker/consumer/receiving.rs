//! Receiving: messages and own hints become pending hints, and go back when no slot is free.

use std::time::Duration;

use chrono::Utc;
use futures_util::FutureExt;
use metrics::counter;
use tokio::time::Instant;

use super::lock_size::LOCK_BATCH;
use super::waiting::{Arrival, Ranked, Tried};
use super::{Consumer, FIRST_PAUSE, LONGEST_PAUSE};
use crate::hint::{Body, Ready};
use crate::job::JobId;
use crate::producer::commit_hook::Cause;
use crate::store::Refusal;
use crate::telemetry::metrics as m;
use crate::transport::{Delivery, TransportError};
use crate::worker::own_hints::OwnHint;

/// The maximum number of forwarded jobs that wait here, or four times the slots if that is more.
/// The sweeper finds the others.
const MOST_FORWARDED: usize = 1_024;
/// The time that the consumer waits for the first messages of the other lanes after receiving has
/// begun. Before that it cannot choose the next lane.
const GATHER: Duration = Duration::from_millis(100);
/// The time without a failure after which receiving counts as working again. It is longer than the
/// time that a transport takes to report that its broker is away.
const WELL: Duration = Duration::from_secs(3);

/// A message with undecided hints.
pub(super) struct Unsettled {
    pub(super) lane: usize,
    pub(super) jobs: Box<[JobId]>,
    /// The number of undecided hints.
    pub(super) left: usize,
}

impl Consumer {
    /// Waits for messages and stores them, if there is room for them, or for a question and answers
    /// it. Cancel-safe.
    pub(super) async fn receive(&mut self) {
        let questions = self.node.inbox.questions.clone();
        let has_room = self.has_room();
        tokio::select! {
            biased;
            question = questions.next() => self.answer(&question),
            () = self.receive_messages(), if has_room => {}
        }
    }

    /// Stores the messages that the broker has already delivered.
    pub(super) fn receive_at_once(&mut self) {
        while self.has_room() && self.receive_messages().now_or_never().is_some() {}
    }

    /// Waits for messages and stores them. Cancel-safe.
    pub(super) async fn receive_messages(&mut self) {
        let Some((moment, _)) = self.receive_after else {
            let received = self.receiver.receive(LOCK_BATCH).await;
            return self.received(received);
        };
        tokio::time::sleep_until(moment).await;
        // There may be no message for hours, so a call that does not fail counts as success.
        let receiving = self.receiver.receive(LOCK_BATCH);
        // The moment is not put off by calls that were cut short, for example by own hints.
        let received = tokio::time::timeout_at(moment + WELL, receiving).await;
        let received = received.unwrap_or_else(|_| Ok(Vec::new()));
        self.received(received);
    }

    pub(super) fn received(&mut self, received: Result<Vec<Delivery>, TransportError>) {
        match received {
            Ok(deliveries) => {
                crash_point!("hints-received");
                if self.receive_after.take().is_some() {
                    self.node.reports.part("consumer", None);
                }
                self.note(deliveries);
            }
            Err(error) => {
                tracing::debug!(%error, "could not receive hints; retrying");
                self.node.reports.part("consumer", Some(error.to_string()));
                let pause = self.receive_after.map_or(FIRST_PAUSE, |(_, pause)| pause);
                let next = (pause * 2).min(LONGEST_PAUSE);
                self.receive_after = Some((Instant::now() + pause, next));
            }
        }
    }

    pub(super) fn note(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            let ticket = delivery.ticket;
            let place = self.pending.place(&delivery.lane);
            if let Some(metrics) = self.metrics.get(place) {
                metrics.received(&delivery);
            }
            match delivery.body {
                Body::Marker(marker) => self.pending.push_marker(place, marker, ticket),
                Body::Hints(hints) => {
                    let hints = self.pass_on_by_type(place, hints);
                    if hints.is_empty() {
                        self.passed_on.push(ticket);
                        continue;
                    }
                    let unsettled = Unsettled {
                        lane: place,
                        jobs: hints.iter().map(|hint| hint.id).collect(),
                        left: hints.len(),
                    };
                    self.undecided.insert(ticket, unsettled);
                    let of = Arrival {
                        lane: place,
                        ticket: Some(ticket),
                        received_at: delivery.received_at,
                        published_at: delivery.published_at,
                        rescued: false,
                        woken: false,
                        forwarded: false,
                        tried: Tried::Never,
                        full_since: None,
                        rank: Ranked::Unread,
                    };
                    for hint in hints {
                        self.pending.push_hint(hint, of);
                    }
                }
            }
        }
    }

    pub(super) fn note_own(&mut self, hint: OwnHint) {
        let rescued = matches!(hint, OwnHint::Rescued(_));
        let woken = matches!(hint, OwnHint::Woken(_));
        let forwarded = matches!(hint, OwnHint::Forwarded(_));
        let ready = hint.into_ready();
        self.node.inbox.taken(ready.hint.id);
        let of = Arrival {
            lane: self.pending.place(&ready.lane),
            ticket: None,
            received_at: Utc::now(),
            published_at: None,
            rescued,
            woken,
            forwarded,
            tried: Tried::Never,
            full_since: None,
            rank: Ranked::Unread,
        };
        if rescued {
            self.pending.push_rescued(ready.hint, of);
        } else if woken {
            self.pending.push_woken(ready.hint, of);
        } else if forwarded {
            let most = MOST_FORWARDED.max(self.node.options.concurrency * 4);
            if !self.pending.push_forwarded(ready.hint, of, most) {
                let reason = Refusal::Unserved.as_str();
                counter!(m::HINTS_REFUSED, "reason" => reason).increment(1);
            }
        } else {
            self.pending.push_hint(ready.hint, of);
        }
    }

    /// Waits up to [`GATHER`] for the first messages of the other lanes.
    pub(super) async fn gather(&mut self) {
        let draining = self.node.signals.draining.clone();
        let moment = tokio::time::sleep(GATHER);
        tokio::pin!(moment);
        loop {
            tokio::select! {
                // Further arrivals do not prolong the wait.
                biased;
                () = draining.cancelled() => return,
                () = &mut moment => return,
                () = self.receive(), if self.has_room() => {}
            }
        }
    }

    /// Publishes hints of a lane again, at its end. They count as held for a time, like requeued
    /// ones.
    pub(super) fn publish_again(&mut self, cause: Cause, place: usize, hints: Vec<Ready>) {
        let jobs = hints.iter().map(|ready| ready.hint.id);
        self.returned.note(place, jobs);
        self.node.hook.publish(cause, hints);
    }

    pub(super) async fn return_hints(&mut self) {
        for place in 0..self.node.options.lanes.len() {
            self.requeue(place).await;
        }
    }

    /// Requeues all undecided messages of one lane.
    pub(super) async fn requeue(&mut self, place: usize) {
        let undecided = self.pending.take(place);
        self.count_returned(place, undecided.hints);
        self.publish_again(Cause::Sweep, place, undecided.own);
        for ticket in &undecided.tickets {
            if let Some(unsettled) = self.undecided.remove(ticket) {
                self.returned.note(place, unsettled.jobs);
            }
        }
        if !undecided.tickets.is_empty() {
            self.receiver.requeue(&undecided.tickets).await;
        }
    }
}
