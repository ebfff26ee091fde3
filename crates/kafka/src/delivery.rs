//! The delivery reports of a publish.
//!
//! A report without an offset confirms nothing. librdkafka (2.12) takes a message as delivered when a later
//! one of its partition is (`rd_kafka_handle_Produce`, "implicitly acked"), and reports it without an
//! offset. But a new partition may refuse the first messages, because its broker does not lead it yet, and
//! accept a later one: brokers accept any first sequence number of a producer. The first messages are then
//! in no log. So they count as failed, and are published again.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::statistics::Statistics;
use tokio::sync::Notify;

use crate::connection::Context;

/// The messages of one call: the number without a delivery report, and the first failure.
pub(crate) struct Batch {
    left: AtomicUsize,
    failure: Mutex<Option<Code>>,
    done: Notify,
    /// Counts the messages that brokers have taken, of several batches.
    taken: Option<Arc<AtomicU64>>,
}

impl Batch {
    /// Creates a batch of this many messages.
    pub(crate) fn of(messages: usize) -> Arc<Self> {
        Self::with(messages, None)
    }

    /// Creates a batch of one message, which is counted when a broker has taken it.
    pub(crate) fn counted(taken: &Arc<AtomicU64>) -> Arc<Self> {
        Self::with(1, Some(taken.clone()))
    }

    fn with(messages: usize, taken: Option<Arc<AtomicU64>>) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(messages),
            failure: Mutex::default(),
            done: Notify::new(),
            taken,
        })
    }

    /// Records the report of one message.
    pub(crate) fn report(&self, result: Result<(), Code>) {
        if let (Ok(()), Some(taken)) = (result, &self.taken) {
            taken.fetch_add(1, Ordering::Relaxed);
        }
        if let Err(code) = result {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(code);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }

    /// Waits for all reports, and returns the first failure.
    pub(crate) async fn wait(&self) -> Result<(), Code> {
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
            Ok(message) if message.offset() >= 0 => Ok(()),
            Ok(_) => Err(Code::Fail),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Fail)),
        };
        batch.report(reported);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdkafka::ClientConfig;
    use rdkafka::config::FromClientConfigAndContext;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseRecord, Producer as _, ThreadedProducer};
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::connection::Link;

    /// The broker of a new partition does not know yet that it leads it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_only_a_later_one_confirms_is_not_confirmed() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("new", 1, 1).unwrap();
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .set("enable.idempotence", "true")
            // All messages wait, and each is a request.
            .set("linger.ms", "300")
            .set("batch.num.messages", "1");
        let context = Context {
            link: Link::new(),
            tokens: None,
            statistics: |_| {},
        };
        let producer =
            ThreadedProducer::from_config_and_context(&config, PublishContext(context)).unwrap();
        let send = |batch: &Arc<Batch>| {
            let record = BaseRecord::<(), str, _>::with_opaque_to("new", batch.clone());
            assert!(producer.send(record.payload("a message")).is_ok());
        };
        let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
        cluster.request_errors(RDKafkaApiKey::Produce, &[refusal, refusal]);
        // All are sent before the first answer.
        let round_trip = Duration::from_millis(200);
        cluster.broker_round_trip_time(1, round_trip).unwrap();
        let batches: Vec<Arc<Batch>> = (0..4).map(|_| Batch::of(1)).collect();
        batches.iter().for_each(send);
        let mut confirmed = 0;
        for batch in &batches {
            let report = tokio::time::timeout(Duration::from_secs(30), batch.wait());
            confirmed += i64::from(report.await.unwrap().is_ok());
        }
        let within = Duration::from_secs(30);
        let (_, end) = producer
            .client()
            .fetch_watermarks("new", 0, within)
            .unwrap();
        assert_eq!((confirmed, end), (2, 2));
    }
}
