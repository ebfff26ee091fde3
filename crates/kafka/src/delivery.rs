//! The delivery reports of a publish.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::statistics::Statistics;
use tokio::sync::Notify;

use crate::connection::Context;

/// The messages of one call: the number without a delivery report, and the first failure.
pub(crate) struct Batch {
    left: AtomicUsize,
    failure: Mutex<Option<Code>>,
    done: Notify,
}

impl Batch {
    /// Creates a batch of this many messages.
    pub(crate) fn of(messages: usize) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(messages),
            failure: Mutex::default(),
            done: Notify::new(),
        })
    }

    /// Records the report of one message.
    pub(crate) fn report(&self, result: Result<(), Code>) {
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
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Fail)),
        };
        batch.report(reported);
    }
}
