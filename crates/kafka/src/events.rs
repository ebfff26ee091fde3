//! Publishes the event stream: a topic, structured `CloudEvents`, confirms.
//!
//! The topic is `<prefix>.events`. The key of a record is the process instance of the job, or its id, so
//! that the events of an instance are in one partition. The value is the event as JSON, and the header
//! `content-type` says so: the structured mode of the Kafka binding of CloudEvents.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use jobwire_core::event::stream::{CONTENT_TYPE, OutgoingEvent};
use jobwire_core::transport::{EventPublisher, TransportError};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::connection::Link;
use crate::delivery::Batch;
use crate::error::{explain, is_missing_topic, is_outage};
use crate::partitioner::partition;
use crate::producers::Producers;
use crate::publisher::{COUNT_AGAIN, GRACE};
use crate::topology::Topology;

/// Publishes events with the producer of the hints.
pub(crate) struct Events {
    link: Link,
    topology: Topology,
    producers: Arc<Producers>,
    closing: CancellationToken,
    /// The number of partitions of the topic, and when it was counted.
    partitions: Mutex<Option<(i32, Instant)>>,
}

impl Events {
    pub(crate) fn new(
        link: Link,
        topology: Topology,
        producers: Arc<Producers>,
        closing: CancellationToken,
    ) -> Self {
        Self {
            link,
            topology,
            producers,
            closing,
            partitions: Mutex::default(),
        }
    }

    /// Returns the number of partitions of the topic; creates the topic if it is missing.
    async fn partitions(&self) -> Result<i32, TransportError> {
        if self.closing.is_cancelled() {
            return Err(TransportError::Closed);
        }
        if let Some(problem) = self.link.problem() {
            return Err(problem);
        }
        let mut known = self.partitions.lock().await;
        if let Some((partitions, at)) = *known
            && at.elapsed() < COUNT_AGAIN
        {
            return Ok(partitions);
        }
        let patience = self.topology.options.confirm_timeout;
        let counted = timeout(patience, self.topology.ensure_events()).await;
        let partitions = counted.unwrap_or(Err(TransportError::Timeout(patience)))?;
        *known = Some((partitions, Instant::now()));
        Ok(partitions)
    }

    async fn failed(&self, code: Code, topic: &str) -> TransportError {
        if is_missing_topic(code) {
            *self.partitions.lock().await = None;
        }
        if code == Code::MessageTimedOut {
            return TransportError::Timeout(self.topology.options.confirm_timeout);
        }
        let problem = explain(code, &format!("topic '{topic}'"));
        if is_outage(code) {
            self.link.suspect(problem.clone());
        }
        problem
    }
}

#[async_trait]
impl EventPublisher for Events {
    async fn publish_events(&self, events: &[OutgoingEvent]) -> Vec<Result<(), TransportError>> {
        let partitions = match self.partitions().await {
            Ok(partitions) => partitions,
            Err(problem) => return vec![Err(problem); events.len()],
        };
        let topic = self.topology.endpoint.events_topic();
        let producer = self.producers.current();
        let sent: Vec<Arc<Batch>> = events
            .iter()
            .map(|event| {
                let report = Batch::of(1);
                let headers = OwnedHeaders::new().insert(Header {
                    key: "content-type",
                    value: Some(CONTENT_TYPE),
                });
                let record = BaseRecord::with_opaque_to(&topic, report.clone())
                    .partition(partition(event.key.as_bytes(), partitions))
                    .key(&event.key)
                    .payload(&event.body)
                    .headers(headers);
                if let Err((error, _)) = producer.send(record) {
                    report.report(Err(error.rdkafka_error_code().unwrap_or(Code::Fail)));
                }
                report
            })
            .collect();
        let patience = self.topology.options.confirm_timeout + GRACE;
        let reports = join_all(sent.iter().map(|report| timeout(patience, report.wait()))).await;
        let mut results = Vec::with_capacity(events.len());
        for report in reports {
            results.push(match report {
                Ok(Ok(())) => Ok(()),
                Ok(Err(code)) => Err(self.failed(code, &topic).await),
                Err(_) => Err(TransportError::Timeout(patience)),
            });
        }
        if producer.client().fatal_error().is_some() {
            self.producers
                .replace(&producer, "the brokers lost the producer's state");
        }
        results
    }
}
