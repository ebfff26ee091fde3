//! The producer of a transport: one at a time, replaced when it is beyond repair.
//!
//! Whoever publishes, asks for topics or looks whether the brokers are there shares it and its connections.

use std::sync::{Arc, Mutex, PoisonError};

use jobwire_core::transport::TransportError;
use rdkafka::ClientConfig;
use rdkafka::client::Client;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::producer::{Producer as _, ThreadedProducer};

use crate::connection::Context;
use crate::ending::Elsewhere;
use crate::error::explain_error;
use crate::publisher::PublishContext;

pub(crate) type Producer = Elsewhere<ThreadedProducer<PublishContext>>;

/// See the [module](self).
pub(crate) struct Producers {
    config: ClientConfig,
    context: Context,
    current: Mutex<Arc<Producer>>,
}

impl Producers {
    pub(crate) fn new(config: ClientConfig, context: Context) -> Result<Self, TransportError> {
        let producer = make(&config, &context)?;
        Ok(Self {
            config,
            context,
            current: Mutex::new(producer),
        })
    }

    pub(crate) fn current(&self) -> Arc<Producer> {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Ask the brokers something, with the producer's connections. The question may block.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Client<PublishContext>) -> Result<T, TransportError> + Send + 'static,
    ) -> Result<T, TransportError> {
        let producer = self.current();
        blocking(move || question(producer.client())).await
    }

    /// Its state on the brokers is lost: go on with another one.
    pub(crate) fn replace(&self, broken: &Arc<Producer>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&current, broken) {
            return;
        }
        match make(&self.config, &self.context) {
            Ok(producer) => {
                tracing::warn!(
                    "the brokers lost the state of our producer; going on with a new one"
                );
                *current = producer;
            }
            Err(problem) => tracing::error!(%problem, "no new producer could be made"),
        }
    }
}

fn make(config: &ClientConfig, context: &Context) -> Result<Arc<Producer>, TransportError> {
    ThreadedProducer::from_config_and_context(config, PublishContext(context.clone()))
        .map(|producer| Arc::new(Elsewhere::new(producer)))
        .map_err(|error| explain_error(&error, "producer"))
}

/// Run what waits for the brokers where waiting does no harm.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TransportError> + Send + 'static,
) -> Result<T, TransportError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(TransportError::Unreachable(error.to_string())))
}
