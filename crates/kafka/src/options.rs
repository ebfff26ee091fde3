//! What can be set about the Kafka transport beside its URL, and what each setting changes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::MAX_HINTS_PER_MESSAGE;
use jobwire_core::transport::{BrokerSecurity, TransportError};

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
    /// How often librdkafka's statistics become metrics. Default: 10 s.
    pub statistics_interval: Duration,
    /// TLS: whom to trust, who we are. Certificates are always verified, with the host's name.
    pub security: BrokerSecurity,
    /// Where tokens come from; chooses `OAUTHBEARER` where the URL names no mechanism. Default: none.
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
            statistics_interval: Duration::from_secs(10),
            security: BrokerSecurity::default(),
            tokens: None,
            client_id: "jobwire".to_owned(),
        }
    }
}

impl KafkaOptions {
    /// Everything that is wrong with the settings, one sentence each; empty if nothing is.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut check = |ok: bool, mistake: String| {
            if !ok {
                mistakes.push(mistake);
            }
        };
        check(
            (1..=10_000).contains(&self.partitions),
            "a topic has 1 to 10000 partitions".to_owned(),
        );
        check(
            self.replication.is_none_or(|n| (1..=100).contains(&n)),
            "the replication is 1 to 100 copies".to_owned(),
        );
        check(
            (1..=MAX_HINTS_PER_MESSAGE).contains(&self.hints_per_message),
            "hints per message are 1 to 512".to_owned(),
        );
        check(
            self.linger <= Duration::from_secs(1),
            "the linger is at most 1s: every hint waits so long".to_owned(),
        );
        for (name, time, least, most) in [
            ("retention", self.retention, 60_000, 366 * 86_400_000),
            ("confirm timeout", self.confirm_timeout, 100, 3_600_000),
            ("session timeout", self.session_timeout, 1_000, 1_800_000),
            ("commit interval", self.commit_interval, 10, 60_000),
            ("release time", self.release_after, 10, 3_600_000),
            (
                "statistics interval",
                self.statistics_interval,
                100,
                3_600_000,
            ),
        ] {
            let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
            check(
                (least..=most).contains(&time),
                format!("the {name} is {least:?} to {most:?}"),
            );
        }
        for (name, value) in [("instance id", &self.instance_id), ("rack", &self.rack)] {
            check(
                value.as_ref().is_none_or(|text| {
                    (1..=200).contains(&text.len()) && !text.chars().any(char::is_control)
                }),
                format!("the {name} has 1 to 200 printable characters"),
            );
        }
        mistakes
    }

    /// All mistakes at once, as an error.
    pub(crate) fn validate(&self) -> Result<(), TransportError> {
        let mistakes = self.mistakes();
        if mistakes.is_empty() {
            return Ok(());
        }
        Err(TransportError::Refused {
            problem: mistakes.join("; "),
            remedy: "correct the settings of the broker".to_owned(),
        })
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
        assert_eq!(options.mistakes().len(), 6);
        assert!(options.validate().is_err());
    }
}
