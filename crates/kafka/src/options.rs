//! The settings of the Kafka transport besides its URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::MAX_HINTS_PER_MESSAGE;
use jobwire_core::job::duration::write;
#[cfg(doc)]
use jobwire_core::transport::TransportError;
use jobwire_core::transport::{BadSetting, BrokerSecurity};

use crate::security::TokenSource;

/// Settings of the Kafka transport.
///
/// ```
/// use jobwire_kafka::KafkaOptions;
/// let options = KafkaOptions::default().partitions(24).replication(Some(3));
/// assert!(options.mistakes().is_empty());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KafkaOptions {
    /// Whether to create missing topics. If `false`, for brokers that others administer, only
    /// existing topics are used, and a missing one is [`TransportError::Refused`]. Default: `true`.
    pub declare: bool,
    /// The number of partitions of a topic that Jobwire creates, and so the maximum number of nodes
    /// that share a lane. 1 to 10,000. Default: 12.
    pub partitions: i32,
    /// The number of copies of each partition of a topic that Jobwire creates. Default: 3, or the
    /// number of brokers if that is smaller.
    pub replication: Option<i32>,
    /// The time for which Kafka keeps hints in a topic that Jobwire creates. A job that waits
    /// longer loses its hint, and the sweeper publishes it again. Default: 24 h.
    pub retention: Duration,
    /// Maximum number of hints in one message; hints of one partition that are published together
    /// share messages. 1 to 512. Default: 16.
    pub hints_per_message: usize,
    /// The time that a message waits for others, to be sent with them. With 0, a message is sent at
    /// once if the connection is free, and messages that arrive meanwhile are sent together.
    /// Default: 0.
    pub linger: Duration,
    /// The time that a publish waits for the brokers' confirm before it fails with
    /// [`TransportError::Timeout`]. Default: 5 s.
    pub confirm_timeout: Duration,
    /// The time without a heartbeat of a node after which its partitions go to other nodes. 1 s to
    /// 30 min; the brokers limit it, too (`group.min.session.timeout.ms`, 6 s by default).
    /// Default: 10 s.
    pub session_timeout: Duration,
    /// The name for static membership (`group.instance.id`): a node that comes back under the same
    /// name within the session timeout keeps its partitions, without a rebalance. It must be unique
    /// for each node, for example the name of a stateful set's pod. Default: none.
    pub instance_id: Option<String>,
    /// The node's location (`client.rack`), to fetch from the nearest copy. Default: none.
    pub rack: Option<String>,
    /// The interval at which settled offsets are committed to the group. Default: 1 s.
    pub commit_interval: Duration,
    /// The time after which a paused receiver gives its partitions to the other members of its
    /// group. It joins again when it is resumed. Default: 10 s.
    pub release_after: Duration,
    /// The interval at which the brokers' statistics become metrics; `None` for never.
    /// Default: 10 s.
    pub statistics_interval: Option<Duration>,
    /// The TLS options: trusted authorities and the client's certificate. The brokers' certificates
    /// are always verified, with the host's name.
    pub security: BrokerSecurity,
    /// The source of tokens; selects `OAUTHBEARER` if the URL names no mechanism. Topics must exist
    /// then: the client library can't create them with a token. Default: none.
    pub tokens: Option<Arc<dyn TokenSource>>,
    /// The client's name in the brokers' logs and metrics (`client.id`). Default: `jobwire`.
    pub client_id: String,
}

jobwire_core::setters! {
    KafkaOptions {
        declare: bool,
        partitions: i32,
        replication: Option<i32>,
        retention: Duration,
        hints_per_message: usize,
        linger: Duration,
        confirm_timeout: Duration,
        session_timeout: Duration,
        instance_id: Option<String>,
        rack: Option<String>,
        commit_interval: Duration,
        release_after: Duration,
        statistics_interval: Option<Duration>,
        security: BrokerSecurity,
        tokens: Option<Arc<dyn TokenSource>>,
        client_id: String,
    }
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
    /// Returns every invalid setting.
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
                "is empty, longer than 200 bytes, or contains a control character",
                "give 1 to 200 bytes without control characters".to_owned(),
            );
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
        let options = KafkaOptions::default()
            .partitions(0)
            .replication(Some(0))
            .hints_per_message(0)
            .linger(Duration::from_secs(2))
            .session_timeout(Duration::ZERO)
            .rack(Some(String::new()));
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
}
