//! What can be set about the Kafka transport beside its URL, and what each setting changes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::MAX_HINTS_PER_MESSAGE;
use jobwire_core::job::duration::write;
use jobwire_core::transport::{BadSetting, BrokerSecurity, TransportError};

use crate::connection::configuration;
use crate::endpoint::Endpoint;
use crate::security::TokenSource;

/// Settings of the Kafka transport.
///
/// ```
/// use jobwire_kafka::KafkaOptions;
/// let options = KafkaOptions {
///     partitions: 24,
///     replication: Some(3),
///     ..KafkaOptions::default()
/// };
/// assert!(options.mistakes().is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// Create topics where they are missing. `false`: only use what exists, for brokers that belong to
    /// somebody else; a missing topic is then [`TransportError::Refused`]. Default: `true`.
    pub declare: bool,
    /// Partitions of a topic that is created here; a lane can be shared by so many nodes. 1 to 10,000.
    /// Default: 12.
    pub partitions: i32,
    /// Copies of each partition of a topic that is created here. Default: 3, or as many as there are
    /// brokers.
    pub replication: Option<i32>,
    /// How long Kafka keeps hints of a topic that is created here. A job that waits longer than that
    /// loses its hint, and the sweeper hints it again. Default: 24 h.
    pub retention: Duration,
    /// The most hints packed into one message, when many for one partition leave together. 1 to 512.
    /// Default: 16.
    pub hints_per_message: usize,
    /// How long a message waits for others, so that they travel together. Default: 0: a message that
    /// finds the connection free leaves at once, and what comes meanwhile leaves together.
    pub linger: Duration,
    /// How long the brokers may take to confirm before a publish gives up
    /// ([`TransportError::Timeout`]). Default: 5 s.
    pub confirm_timeout: Duration,
    /// A node that Kafka has not heard of for so long loses its partitions to the others. 1 s to 30 min;
    /// the brokers limit it too (`group.min.session.timeout.ms`, 6 s by default). Default: 10 s.
    pub session_timeout: Duration,
    /// Static membership (`group.instance.id`): a node that comes back under the same name within the
    /// session timeout finds its partitions as it left them, without a rebalance. It must differ from
    /// node to node, for example a stateful set's pod name. Default: none.
    pub instance_id: Option<String>,
    /// Where this node is (`client.rack`): it then fetches from the nearest copy. Default: nowhere.
    pub rack: Option<String>,
    /// How often what was settled is committed to the group. Default: 1 s.
    pub commit_interval: Duration,
    /// A receiver that was paused for so long gives its partitions up to the others of its group; it
    /// joins again when it is resumed. Default: 10 s.
    pub release_after: Duration,
    /// How often statistics of the brokers become metrics; `None` for never. Default: 10 s.
    pub statistics_interval: Option<Duration>,
    /// TLS: whom to trust, who we are. Certificates are always verified, with the host's name.
    pub security: BrokerSecurity,
    /// Where tokens come from; chooses `OAUTHBEARER` where the URL names no mechanism. Topics must exist
    /// then: the client library can't make them with a token. Default: none.
    pub tokens: Option<Arc<dyn TokenSource>>,
    /// Shown to the brokers (`client.id`). Default: `jobwire`.
    pub client_id: String,
}

impl fmt::Debug for dyn TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSource")
    }
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            declare: true,
            partitions: 12,
            replication: None,
            retention: Duration::from_secs(24 * 3600),
            hints_per_message: 16,
            linger: Duration::ZERO,
            confirm_timeout: Duration::from_secs(5),
            session_timeout: Duration::from_secs(10),
            instance_id: None,
            rack: None,
            commit_interval: Duration::from_secs(1),
            release_after: Duration::from_secs(10),
            statistics_interval: Some(Duration::from_secs(10)),
            security: BrokerSecurity::default(),
            tokens: None,
            client_id: "jobwire".to_owned(),
        }
    }
}

impl KafkaOptions {
    /// Everything that is wrong with the settings; empty if nothing is.
    #[must_use]
    pub fn mistakes(&self) -> Vec<BadSetting> {
        let mut mistakes = Vec::new();
        let mut check = |ok: bool, setting, problem: &str, remedy: String| {
            if !ok {
                mistakes.push(BadSetting {
                    setting,
                    problem: problem.to_owned(),
                    remedy,
                });
            }
        };
        let range = "is out of range";
        check(
            (1..=10_000).contains(&self.partitions),
            "kafka_partitions",
            range,
            "give 1 to 10000".to_owned(),
        );
        check(
            self.replication.is_none_or(|n| (1..=100).contains(&n)),
            "kafka_replication",
            range,
            "give 1 to 100, or `auto`".to_owned(),
        );
        check(
            (1..=MAX_HINTS_PER_MESSAGE).contains(&self.hints_per_message),
            "kafka_hints_per_message",
            range,
            "give 1 to 512".to_owned(),
        );
        for (setting, time, least, most) in [
            ("kafka_linger", self.linger, 0, 1_000),
            ("kafka_retention", self.retention, 60_000, 366 * 86_400_000),
            (
                "kafka_confirm_timeout",
                self.confirm_timeout,
                100,
                3_600_000,
            ),
            (
                "kafka_session_timeout",
                self.session_timeout,
                1_000,
                1_800_000,
            ),
            ("kafka_commit_interval", self.commit_interval, 10, 60_000),
            ("kafka_release_after", self.release_after, 10, 3_600_000),
            (
                "broker_statistics_interval",
                self.statistics_interval.unwrap_or(Duration::from_secs(1)),
                100,
                3_600_000,
            ),
        ] {
            let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
            check(
                (least..=most).contains(&time),
                setting,
                range,
                format!("give {} to {}", write(least), write(most)),
            );
        }
        for (setting, value) in [
            ("kafka_instance_id", &self.instance_id),
            ("kafka_rack", &self.rack),
        ] {
            check(
                value.as_ref().is_none_or(|text| {
                    (1..=200).contains(&text.len()) && !text.chars().any(char::is_control)
                }),
                setting,
                "is empty, too long or not printable",
                "give 1 to 200 printable characters".to_owned(),
            );
        }
        mistakes
    }

    /// The same, with what is wrong with these settings together with a URL. Reads the files that the
    /// settings name, and connects to nothing.
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
    fn all_mistakes_are_reported_at_once() {
        assert!(KafkaOptions::default().mistakes().is_empty());
        let options = KafkaOptions {
            partitions: 0,
            replication: Some(0),
            hints_per_message: 0,
            linger: Duration::from_secs(2),
            session_timeout: Duration::ZERO,
            rack: Some(String::new()),
            ..KafkaOptions::default()
        };
        let settings: Vec<&str> = options.mistakes().iter().map(|bad| bad.setting).collect();
        assert_eq!(
            settings,
            [
                "kafka_partitions",
                "kafka_replication",
                "kafka_hints_per_message",
                "kafka_linger",
                "kafka_session_timeout",
                "kafka_rack"
            ]
        );
    }

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
