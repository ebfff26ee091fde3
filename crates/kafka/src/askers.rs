//! The clients that read the offsets of the lanes' groups. They join no group.
//!
//! librdkafka (2.12) can lose its last broker when that broker comes back ([`crate::stall`]), and the
//! client then fails for ever. The caller asks only after the brokers have answered another client, so a
//! client that fails several times in a row is replaced.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jobwire_core::job::Lane;
use jobwire_core::transport::TransportError;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::BaseConsumer;

use crate::blocking::blocking;
use crate::connection::Context;
use crate::ending::Elsewhere;
use crate::error::explain_error;
use crate::offsets::ISOLATION;

pub(crate) type Asker = Elsewhere<BaseConsumer<Context>>;

/// Number of failures in a row after which a client is replaced.
const FAILURES: u32 = 3;

struct Known {
    asker: Arc<Asker>,
    failures: u32,
}

/// See the [module](self).
pub(crate) struct Askers {
    config: ClientConfig,
    context: Context,
    of: Mutex<HashMap<Lane, Known>>,
}

impl Askers {
    pub(crate) fn new(mut config: ClientConfig, context: Context) -> Self {
        config
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", ISOLATION);
        Self {
            config,
            context,
            of: Mutex::default(),
        }
    }

    /// Runs `question`, which may block, with the client of a lane and its group.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        lane: &Lane,
        group: &str,
        question: impl FnOnce(&Asker) -> Result<T, TransportError> + Send + 'static,
    ) -> Result<T, TransportError> {
        let asker = self.of_lane(lane, group)?;
        let asked = asker.clone();
        let answer = blocking(move || {
            // Serves the client's events: errors, and requests for a token.
            while asked.poll(std::time::Duration::ZERO).is_some() {}
            question(&asked)
        })
        .await;
        // A refusal is an answer, and a new client would be refused, too.
        let failed = answer.as_ref().is_err_and(TransportError::is_transient);
        self.note(lane, &asker, failed);
        answer
    }

    /// Drops all clients.
    pub(crate) fn forget(&self) {
        self.known().clear();
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Lane, Known>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_lane(&self, lane: &Lane, group: &str) -> Result<Arc<Asker>, TransportError> {
        let mut known = self.known();
        if let Some(known) = known.get(lane) {
            return Ok(known.asker.clone());
        }
        let mut config = self.config.clone();
        config.set("group.id", group);
        let asker = BaseConsumer::from_config_and_context(&config, self.context.clone())
            .map_err(|error| explain_error(&error, "offsets"))?;
        let asker = Arc::new(Elsewhere::new(asker));
        known.insert(
            lane.clone(),
            Known {
                asker: asker.clone(),
                failures: 0,
            },
        );
        Ok(asker)
    }

    fn note(&self, lane: &Lane, asker: &Arc<Asker>, failed: bool) {
        let mut all = self.known();
        let Some(known) = all.get_mut(lane).filter(|k| Arc::ptr_eq(&k.asker, asker)) else {
            return;
        };
        known.failures = if failed { known.failures + 1 } else { 0 };
        if known.failures >= FAILURES {
            tracing::debug!(%lane, "the client that reads the lane's offsets has no answer; a new one replaces it");
            all.remove(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::Offset;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
    use std::time::Duration;

    use super::*;
    use crate::connection::Link;
    use crate::offsets::edges;

    /// The brokers of the first client are gone for ever, as for one that has lost its last broker.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_without_an_answer_is_replaced() {
        let context = Context {
            link: Link::new(),
            tokens: None,
            statistics: |_| {},
        };
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1");
        let mut askers = Askers::new(config.clone(), context);
        let lane = Lane::default();
        let ask = async |askers: &Askers| {
            let ends = |asker: &Asker| edges(&**asker, "asked", 0..1, Offset::End);
            askers.ask(&lane, "asked", ends).await
        };
        for _ in 1..FAILURES {
            assert!(ask(&askers).await.is_err());
        }
        assert_eq!(askers.known().len(), 1, "one failure may be a broker's");

        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("asked", 1, 1).unwrap();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        let producer: BaseProducer = config.create().unwrap();
        let record = BaseRecord::<(), str>::to("asked").payload("a message");
        producer.send(record).unwrap();
        producer.flush(Duration::from_secs(30)).unwrap();
        askers.config = config;
        assert!(ask(&askers).await.is_err());
        let mut answers = Vec::new();
        for _ in 0..FAILURES {
            // The first answers of a new client may be late.
            answers.push(ask(&askers).await);
            if answers.last().is_some_and(Result::is_ok) {
                break;
            }
        }
        let last = answers.pop().unwrap();
        assert_eq!(last.unwrap(), [(0, 1)], "{answers:?}");
    }
}
