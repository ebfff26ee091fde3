//! The configuration of librdkafka that all clients of a transport share.

use jobwire_core::transport::{BadSetting, TransportError};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::endpoint::Endpoint;
use crate::options::KafkaOptions;
use crate::security;

/// Returns the configuration that all clients of a transport share.
pub(crate) fn configuration(
    endpoint: &Endpoint,
    options: &KafkaOptions,
) -> Result<ClientConfig, TransportError> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", endpoint.bootstrap())
        .set("client.id", &options.client_id)
        .set("allow.auto.create.topics", "false")
        // A client turns from a silent broker to another one earlier than by default (60 s).
        .set("socket.timeout.ms", "10000")
        .set("socket.connection.setup.timeout.ms", "5000")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "2000")
        // A client that has lost all brokers begins again with those of the URL (default: 5 min).
        .set("metadata.recovery.rebootstrap.trigger.ms", "10000")
        // The time within which a client notices that a topic was deleted and created again.
        .set("topic.metadata.refresh.interval.ms", "10000")
        .set("topic.metadata.propagation.max.ms", "2000")
        .set_log_level(RDKafkaLogLevel::Warning);
    security::apply(
        &options.security,
        options.tokens.as_ref(),
        endpoint,
        &mut config,
    )?;
    Ok(config)
}

impl KafkaOptions {
    /// Returns every invalid setting, and the error of these settings in combination with a URL.
    /// Reads the files that the settings name. Does not connect.
    #[must_use]
    pub fn mistakes_with(&self, url: &str) -> Vec<BadSetting> {
        let mut mistakes = self.mistakes();
        let configured = Endpoint::parse(url)
            .map_err(TransportError::from)
            .and_then(|endpoint| configuration(&endpoint, self).map(drop));
        match configured {
            Err(TransportError::Setting(bad)) => mistakes.push(bad),
            Err(other) => mistakes.push(BadSetting {
                setting: "broker_url",
                problem: other.to_string(),
                remedy: "write kafka://[user:password@]host[:port][,…][/prefix][?tls=true]"
                    .to_owned(),
            }),
            Ok(()) => {}
        }
        mistakes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_does_not_go_with_the_settings_is_a_mistake() {
        let options = KafkaOptions::default();
        assert!(options.mistakes_with("kafka://localhost").is_empty());
        for url in ["kafka://broker", "kafka://", "kafka://bob@localhost"] {
            let settings: Vec<&str> = options
                .mistakes_with(url)
                .iter()
                .map(|bad| bad.setting)
                .collect();
            assert_eq!(settings, ["broker_url"], "{url}");
        }
    }
}
