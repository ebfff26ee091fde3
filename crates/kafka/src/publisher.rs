//! Publishes hints: one idempotent producer, packing by partition, confirms, a bounded queue.
//!
//! The hints of one call are grouped by partition (protocol rule 17: a message holds ids of one
//! partition only), packed, and handed to librdkafka. It batches them by partition and sends them
//! in order, with `acks=all`, each exactly once into the log. A call ends when every message has
//! its delivery report, at the latest after
//! [`confirm_timeout`](crate::KafkaOptions::confirm_timeout), which is librdkafka's
//! `message.timeout.ms`. The queue of librdkafka is bounded; when it is full, a publish fails at
//! once with [`TransportError::Full`].
//!
//! A producer that can no longer be idempotent (its state on the broker is lost) is replaced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use jobwire_core::hint::Hint;
use jobwire_core::hint::packing::pack;
use jobwire_core::job::Lane;
use jobwire_core::transport::{Lifetime, OpenLane, OpenLanes, TransportError, is_remembered};
use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::{BaseRecord, Producer as _};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::connection::Link;
use crate::delivery::Batch;
use crate::error::{explain, is_missing_topic, is_outage};
use crate::keys::Keys;
use crate::options::KafkaOptions;
use crate::partitioner::partition;
use crate::producers::{Producer, Producers};
use crate::topology::Topology;

/// The time for which the number of partitions of a topic is cached.
pub(crate) const COUNT_AGAIN: Duration = Duration::from_secs(60);
/// The session of all lanes. There is only one, because librdkafka connects again by itself.
const SESSION: u64 = 0;
/// The time that a call waits beyond the confirm timeout for librdkafka's report of a failed
/// message.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// Maximum number of messages in librdkafka's queue, and their maximum size in kilobytes.
const QUEUE: (&str, &str) = ("100000", "65536");

/// The number of partitions of a lane's topic.
struct Counted {
    partitions: i32,
    at: Instant,
}

impl OpenLane for Counted {
    fn is_usable(&self) -> bool {
        self.at.elapsed() < COUNT_AGAIN
    }
}

/// Returns the configuration of the producer.
pub(crate) fn configuration(mut config: ClientConfig, options: &KafkaOptions) -> ClientConfig {
    let millis = |time: Duration| time.as_millis().to_string();
    config
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.timeout.ms", millis(options.confirm_timeout))
        .set(
            "linger.ms",
            format!("{}", options.linger.as_secs_f64() * 1_000.0),
        )
        .set("queue.buffering.max.messages", QUEUE.0)
        .set("queue.buffering.max.kbytes", QUEUE.1)
        .set(
            "statistics.interval.ms",
            millis(options.statistics_interval.unwrap_or_default()),
        );
    config
}

/// Publishes to lanes.
pub(crate) struct LanePublishers {
    link: Link,
    topology: Topology,
    options: KafkaOptions,
    producers: Arc<Producers>,
    closing: CancellationToken,
    lanes: OpenLanes<Counted>,
    keys: Keys,
}

impl LanePublishers {
    pub(crate) fn new(
        link: Link,
        topology: Topology,
        options: KafkaOptions,
        producers: Arc<Producers>,
        lifetime: &Lifetime,
    ) -> Self {
        Self {
            keys: Keys::new(options.hints_per_message),
            link,
            topology,
            options,
            producers,
            closing: lifetime.closing(),
            lanes: OpenLanes::default(),
        }
    }

    /// Publishes hints to a lane, and waits until they are confirmed or have failed.
    pub(crate) async fn publish(
        &self,
        lane: &Lane,
        hints: Vec<Hint>,
    ) -> Result<(), TransportError> {
        if hints.is_empty() {
            return Ok(());
        }
        if self.closing.is_cancelled() {
            return Err(TransportError::Closed);
        }
        if let Some(problem) = self.link.problem() {
            return Err(problem);
        }
        let partitions = self.partitions(lane).await?;
        let mut by_partition: BTreeMap<i32, (String, Vec<Hint>)> = BTreeMap::new();
        for (key, hint) in self.keys.of(hints, Instant::now()) {
            let at = partition(key.as_bytes(), partitions);
            let group = by_partition.entry(at).or_insert_with(|| (key, Vec::new()));
            group.1.push(hint);
        }
        let messages: Vec<(i32, String, Vec<u8>)> = by_partition
            .into_iter()
            .flat_map(|(at, (key, hints))| {
                pack(hints, self.options.hints_per_message)
                    .into_iter()
                    .map(move |message| (at, key.clone(), message))
            })
            .collect();
        let producer = self.producers.current();
        let topic = self.topology.endpoint.topic(lane);
        let batch = Batch::of(messages.len());
        let mut rest = messages.len();
        for (at, key, message) in &messages {
            let record = BaseRecord::with_opaque_to(&topic, batch.clone())
                .partition(*at)
                .key(key)
                .payload(message);
            rest -= 1;
            if let Err((error, _)) = producer.send(record) {
                batch.report(Err(error.rdkafka_error_code().unwrap_or(Code::Fail)));
                for _ in 0..rest {
                    batch.report(Err(Code::QueueFull));
                }
                break;
            }
        }
        match timeout(self.patience(), batch.wait()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(code)) => Err(self.failed(lane, &topic, code, &producer).await),
            Err(_) => {
                let late = TransportError::Timeout(self.options.confirm_timeout);
                self.link.suspect(late.clone());
                Err(late)
            }
        }
    }

    /// Returns the time that a publish waits. It is longer than the confirm timeout, after which
    /// the client reports a failure.
    pub(crate) fn patience(&self) -> Duration {
        self.options.confirm_timeout + GRACE
    }

    async fn failed(
        &self,
        lane: &Lane,
        topic: &str,
        code: Code,
        producer: &Arc<Producer>,
    ) -> TransportError {
        if is_missing_topic(code) {
            // The next publish creates the topic again, or counts its partitions again.
            self.lanes.forget(lane);
        }
        if producer.client().fatal_error().is_some() {
            self.producers
                .replace(producer, "the brokers lost the producer's state");
        }
        if code == Code::MessageTimedOut {
            let late = TransportError::Timeout(self.options.confirm_timeout);
            self.link.suspect(late.clone());
            return late;
        }
        let problem = explain(code, &format!("topic '{topic}'"));
        if is_outage(code) {
            self.link.suspect(problem.clone());
        }
        problem
    }

    /// Returns the number of partitions of a lane; creates its topic if it is missing.
    pub(crate) async fn partitions(&self, lane: &Lane) -> Result<i32, TransportError> {
        let (own, patience) = (&self.topology.own, self.options.confirm_timeout);
        let counting = self.lanes.get(SESSION, lane, own, |_| self.count(lane));
        // The timeout is the same as for a confirm.
        match timeout(patience, counting).await {
            Ok(counted) => Ok(counted?.partitions),
            Err(_) => {
                let late = TransportError::Timeout(patience);
                self.link.suspect(late.clone());
                Err(late)
            }
        }
    }

    async fn count(&self, lane: &Lane) -> Result<Arc<Counted>, TransportError> {
        if let Some(problem) = self.link.problem() {
            return Err(problem);
        }
        let at = Instant::now();
        match self.topology.ensure_lane(lane).await {
            Ok(partitions) => Ok(Arc::new(Counted { partitions, at })),
            Err(problem) => {
                // A remembered refusal is not news about the brokers.
                if !is_remembered(&problem) {
                    self.link.suspect(problem.clone());
                }
                Err(problem)
            }
        }
    }

    /// Sends a message without waiting for its report. Adds it to `taken` when a broker has taken it. Returns
    /// false if the producer refuses it.
    pub(crate) fn send_and_forget(
        &self,
        topic: &str,
        key: &str,
        message: &[u8],
        taken: &Arc<AtomicU64>,
    ) -> bool {
        let record = BaseRecord::with_opaque_to(topic, Batch::counted(taken))
            .partition(0)
            .key(key)
            .payload(message);
        self.producers.current().send(record).is_ok()
    }

    /// Waits until every sent message has its report, at most `within`.
    pub(crate) async fn flush(&self, within: Duration) {
        let producer = self.producers.current();
        let flushed = tokio::task::spawn_blocking(move || producer.flush(within));
        if let Ok(Err(error)) = flushed.await {
            tracing::debug!(
                %error,
                "hints were unconfirmed when the producer ended; the sweeper publishes lost hints \
                 again"
            );
        }
    }
}
