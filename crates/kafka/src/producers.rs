//! The producer of a transport: one at a time, replaced after a fatal error.
//!
//! Publishers, requests for topics and the check of the brokers share the producer and its
//! connections.

use std::sync::{Arc, Mutex, PoisonError};

use jobwire_core::transport::TransportError;
use rdkafka::ClientConfig;
use rdkafka::client::Client;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::producer::{Producer as _, ThreadedProducer};

use crate::blocking::blocking;
use crate::connection::Context;
use crate::delivery::PublishContext;
use crate::ending::Elsewhere;
use crate::error::explain_error;

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

    /// Runs `question`, which may block, with the producer's client and connections.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Client<PublishContext>) -> Result<T, TransportError> + Send + 'static,
    ) -> Result<T, TransportError> {
        let producer = self.current();
        blocking(move || question(producer.client())).await
    }

    /// Replaces a broken producer.
    pub(crate) fn replace(&self, broken: &Arc<Producer>, why: &str) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&current, broken) {
            return;
        }
        match make(&self.config, &self.context) {
            Ok(producer) => {
                tracing::warn!("{why}; a new producer replaces it");
                *current = producer;
            }
            Err(problem) => {
                tracing::error!(
                    %problem,
                    "the producer could not be replaced; hints can't be published until it is"
                )
            }
        }
    }
}

fn make(config: &ClientConfig, context: &Context) -> Result<Arc<Producer>, TransportError> {
    ThreadedProducer::from_config_and_context(config, PublishContext(context.clone()))
        .map(|producer| Arc::new(Elsewhere::new(producer)))
        .map_err(|error| explain_error(&error, "producer"))
}
