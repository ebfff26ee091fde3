//! Publishes the event stream: a topic exchange, structured `CloudEvents`, confirms.
//!
//! | property | value |
//! | --- | --- |
//! | exchange | `<prefix>.events`, durable, of type topic |
//! | routing key | `<kind>.<type>`, with each other character than letters, digits, `-`, `_` and `.` replaced by `_`, cut to 255 bytes |
//! | content type | `application/cloudevents+json; charset=UTF-8` |
//! | delivery mode | persistent |
//!
//! CloudEvents has no binding to AMQP 0-9-1, so the message has the form that its JSON format has
//! everywhere. The messages are not mandatory: an event without a bound queue is confirmed and gone.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures_util::future::join_all;
use jobwire_core::event::stream::{CONTENT_TYPE, OutgoingEvent};
use jobwire_core::transport::{EventPublisher, TransportError};
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::connection::Link;
use crate::error::Operation;
use crate::options::AmqpOptions;
use crate::session::Session;
use crate::topology::Topology;

/// The delivery mode of a persistent message.
const PERSISTENT: u8 = 2;
/// Maximum length of a routing key, by the protocol.
const MAX_ROUTING_KEY: usize = 255;

/// Publishes events over one channel, which is opened with the first event of a session.
pub(crate) struct Events {
    link: Link,
    topology: Topology,
    options: AmqpOptions,
    closing: CancellationToken,
    /// The channel, and the number of its session.
    channel: Mutex<Option<(u64, Channel)>>,
}

impl Events {
    pub(crate) fn new(
        link: Link,
        topology: Topology,
        options: AmqpOptions,
        closing: CancellationToken,
    ) -> Self {
        Self {
            link,
            topology,
            options,
            closing,
            channel: Mutex::default(),
        }
    }

    /// Returns the channel of this session. Declares the exchange with the first one.
    async fn channel(&self, session: &Arc<Session>) -> Result<Channel, TransportError> {
        let mut kept = self.channel.lock().await;
        if let Some((number, channel)) = &*kept
            && *number == session.number
            && channel.status().connected()
        {
            return Ok(channel.clone());
        }
        self.topology.ensure_events(session).await?;
        let channel = session.confirming_channel().await?;
        *kept = Some((session.number, channel.clone()));
        Ok(channel)
    }

    async fn ready(&self) -> Result<(Arc<Session>, Channel), TransportError> {
        if self.closing.is_cancelled() {
            return Err(TransportError::Closed);
        }
        let session = self.link.session()?;
        if let Some(reason) = session.blocked() {
            return Err(TransportError::Blocked(reason));
        }
        let channel = self.channel(&session).await?;
        Ok((session, channel))
    }

    async fn confirmed(
        &self,
        channel: &Channel,
        exchange: &str,
        event: &OutgoingEvent,
    ) -> Result<(), TransportError> {
        let properties = BasicProperties::default()
            .with_content_type(CONTENT_TYPE.into())
            .with_delivery_mode(PERSISTENT);
        let written = channel.basic_publish(
            exchange.into(),
            routing_key(event).into(),
            BasicPublishOptions::default(),
            &event.body,
            properties,
        );
        let confirmed = match written.await {
            Ok(confirm) => confirm.await,
            Err(e) => Err(e),
        };
        match confirmed {
            Ok(Confirmation::Ack(_)) => Ok(()),
            Ok(Confirmation::Nack(_)) => Err(TransportError::Refused {
                problem: format!(
                    "a queue that is bound to '{exchange}' rejected an event, because it is full or \
                     unavailable"
                ),
                remedy: "empty the queue, or bound it with the overflow `drop-head`".to_owned(),
            }),
            Ok(Confirmation::NotRequested) => Err(TransportError::Unreachable(
                "the channel does not confirm".to_owned(),
            )),
            Err(e) => Err(self.topology.explain(&e, Operation::Publish(exchange))),
        }
    }
}

/// Returns the routing key of an event.
fn routing_key(event: &OutgoingEvent) -> String {
    let plain = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => c,
        _ => '_',
    };
    let parts = event.kind.chars().chain(['.']);
    let key = parts.chain(event.job_type.chars()).map(plain);
    key.take(MAX_ROUTING_KEY).collect()
}

#[async_trait]
impl EventPublisher for Events {
    async fn publish_events(&self, events: &[OutgoingEvent]) -> Vec<Result<(), TransportError>> {
        let all = |problem: TransportError| vec![Err(problem); events.len()];
        let (session, channel) = match self.ready().await {
            Ok(ready) => ready,
            Err(problem) => return all(problem),
        };
        let exchange = self.topology.events_exchange();
        // The confirms that have come count, whatever becomes of the others.
        let results: Vec<OnceLock<Result<(), TransportError>>> =
            events.iter().map(|_| OnceLock::new()).collect();
        let publishing = join_all(events.iter().zip(&results).map(async |(event, result)| {
            let _ = result.set(self.confirmed(&channel, &exchange, event).await);
        }));
        let problem = tokio::select! {
            biased;
            () = session.over() => Some(session.why()),
            reason = session.becomes_blocked() => Some(TransportError::Blocked(reason)),
            done = tokio::time::timeout(self.options.confirm_timeout, publishing) => {
                done.err().map(|_| TransportError::Timeout(self.options.confirm_timeout))
            }
        };
        // lapin keeps a list of confirms that are not awaited; it ends with the channel.
        if problem.is_some()
            && let Some((_, channel)) = self.channel.lock().await.take()
        {
            tokio::spawn(async move {
                let _ = channel.close(200, "OK".into()).await;
            });
        }
        let unconfirmed = problem.unwrap_or(TransportError::Closed);
        let results = results.into_iter().map(OnceLock::into_inner);
        results
            .map(|result| result.unwrap_or_else(|| Err(unconfirmed.clone())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routing_key_has_plain_characters_and_a_bounded_length() {
        let key = |job_type: &str| {
            let event: OutgoingEvent = OutgoingEvent::new("k", "failed", job_type, Vec::new());
            routing_key(&event)
        };
        assert_eq!(key("send-invoice"), "failed.send-invoice");
        assert_eq!(key("rechnung für #1*"), "failed.rechnung_f_r__1_");
        assert_eq!(key(&"x".repeat(1_000)).len(), 255);
        let foreign = OutgoingEvent::new("k", "größer", "work", Vec::new());
        assert_eq!(routing_key(&foreign), "gr__er.work");
    }
}
