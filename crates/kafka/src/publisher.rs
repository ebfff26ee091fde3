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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jobwire_core::hint::Hint;
use jobwire_core::hint::packing::pack;
use jobwire_core::job::Lane;
use jobwire_core::transport::{KnownLanes, Lifetime, TransportError};
use rdkafka::ClientConfig;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::statistics::Statistics;
use tokio::sync::{Notify, RwLock};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::connection::{Context, Link};
use crate::error::{explain, is_missing_topic, is_outage};
use crate::keys::Keys;
use crate::options::KafkaOptions;
use crate::partitioner::partition;
use crate::producers::{Producer, Producers};
use crate::topology::Topology;

/// How long the number of partitions of a topic is cached.
const COUNT_AGAIN: Duration = Duration::from_secs(60);
/// The time that a call waits beyond the confirm timeout for librdkafka's report of a failed
/// message.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum number of messages in librdkafka's queue, and their maximum size in kilobytes.
const QUEUE: (&str, &str) = ("100000", "65536");

/// The messages of one call: the number without a delivery report, and the first failure.
#[derive(Default)]
pub(crate) struct Batch {
    left: AtomicUsize,
    failure: Mutex<Option<Code>>,
    done: Notify,
}

impl Batch {
    fn report(&self, result: Result<(), Code>) {
        if let Err(code) = result {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(code);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }

    async fn wait(&self) -> Result<(), Code> {
        while self.left.load(Ordering::Acquire) > 0 {
            self.done.notified().await;
        }
        let failure = *self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(()), Err)
    }
}

/// The shared callbacks, and the delivery reports.
pub(crate) struct PublishContext(pub(crate) Context);

impl ClientContext for PublishContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.0.log(level, facility, line);
    }

    fn stats(&self, statistics: Statistics) {
        self.0.stats(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.error(error, reason);
    }

    fn generate_oauth_token(
        &self,
        config: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.0.generate_oauth_token(config)
    }
}

impl ProducerContext for PublishContext {
    type DeliveryOpaque = Arc<Batch>;

    fn delivery(&self, result: &DeliveryResult<'_>, batch: Arc<Batch>) {
        let reported = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Fail)),
        };
        batch.report(reported);
    }
}

/// The number of partitions of a lane's topic.
struct Counted {
    partitions: i32,
    at: Instant,
}

impl Counted {
    fn is_recent(&self) -> bool {
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
    lanes: RwLock<KnownLanes<Counted>>,
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
            lanes: RwLock::default(),
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
        let batch = Arc::new(Batch::default());
        batch.left.store(messages.len(), Ordering::Release);
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

    /// Returns how long a publish waits: the client reports a failure after the confirm timeout.
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
            self.lanes.write().await.forget(lane);
        }
        if producer.client().fatal_error().is_some() {
            self.producers.replace(producer);
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
        match self.lanes.read().await.get(lane, &self.topology.own) {
            Some(Ok(counted)) if counted.is_recent() => return Ok(counted.partitions),
            Some(Err(problem)) => return Err(problem),
            _ => {}
        }
        // The timeout is the same as for a confirm.
        let patience = self.options.confirm_timeout;
        match timeout(patience, self.count(lane)).await {
            Ok(counted) => counted,
            Err(_) => {
                let late = TransportError::Timeout(patience);
                self.link.suspect(late.clone());
                Err(late)
            }
        }
    }

    async fn count(&self, lane: &Lane) -> Result<i32, TransportError> {
        let mut lanes = self.lanes.write().await;
        // Another task may have counted meanwhile.
        if let Some(Ok(counted)) = lanes.get(lane, &self.topology.own)
            && counted.is_recent()
        {
            return Ok(counted.partitions);
        }
        if let Some(problem) = self.link.problem() {
            return Err(problem);
        }
        let at = Instant::now();
        let ensured = self.topology.ensure_lane(lane).await;
        match &ensured {
            Ok(partitions) => {
                let partitions = *partitions;
                lanes.open(lane.clone(), Counted { partitions, at });
            }
            // A lane without a topic says nothing about the brokers.
            Err(problem) if problem.is_transient() && !is_without_topic(problem) => {
                self.link.suspect(problem.clone());
            }
            Err(problem) => lanes.refuse(lane, problem),
        }
        ensured
    }

    /// Sends a message without waiting for its report. Returns false if the producer refuses it.
    pub(crate) fn send_and_forget(&self, topic: &str, key: &str, message: &[u8]) -> bool {
        let batch = Arc::new(Batch::default());
        batch.left.store(1, Ordering::Release);
        let record = BaseRecord::with_opaque_to(topic, batch)
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
            tracing::debug!(%error, "hints were unconfirmed when the producer ended; the sweeper publishes lost hints again");
        }
    }
}

fn is_without_topic(problem: &TransportError) -> bool {
    matches!(problem, TransportError::NoReceiver(_))
}
