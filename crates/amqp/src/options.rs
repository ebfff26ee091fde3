//! The settings of the RabbitMQ transport and their effects.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jobwire_core::hint::MAX_HINTS_PER_MESSAGE;
use jobwire_core::transport::{BadSetting, BrokerSecurity, TransportError};

use crate::endpoint::Endpoint;

/// Settings of the RabbitMQ transport. The defaults suit a single broker; in a cluster set
/// [`queue_type`](Self::queue_type) to [`QueueType::Quorum`].
///
/// ```
/// use jobwire_amqp::{AmqpOptions, QueueType};
/// let options = AmqpOptions::default().prefix("billing".into()).queue_type(QueueType::Quorum);
/// assert!(options.mistakes().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AmqpOptions {
    /// The prefix of all names on the broker: queues `<prefix>.lane.<lane>` and
    /// `<prefix>.control.<process>`, the exchange `<prefix>.control`. Two fleets on one virtual
    /// host need two prefixes. Default: `jobwire`.
    pub prefix: String,
    /// The type of the lanes' queues. It is fixed when a queue is declared: to change it, delete
    /// the queue (no job is lost) or use another prefix. Default: [`QueueType::Classic`]; see
    /// docs/adr/0002-queue-type.md.
    pub queue_type: QueueType,
    /// Whether the broker writes hints to disk before it confirms them. Quorum queues always do.
    /// Default: [`DeliveryMode::Transient`].
    pub delivery_mode: DeliveryMode,
    /// Whether to declare missing queues and exchanges. If `false`, for a broker that another team
    /// manages, only existing ones are used: each name is checked, and a missing one is
    /// [`TransportError::Refused`]. The control queue of the process is always declared; it is
    /// exclusive to its connection. Default: `true`.
    pub declare: bool,
    /// Maximum number of hints in one message, when many leave together. More hints are cheaper for
    /// the broker; fewer hints spread work more evenly, since a message is settled as a whole. 1 to
    /// 512. Default: 16.
    pub hints_per_message: usize,
    /// Maximum time that a publish waits for the broker's confirm; it then fails with
    /// [`TransportError::Timeout`]. Default: 5 s.
    pub confirm_timeout: Duration,
    /// Maximum number of unconfirmed messages of one lane. A larger window raises the maximum rate
    /// and, under load, the latency (window / rate). 1 to 10,000. Default: 64.
    pub confirm_window: usize,
    /// The interval of heartbeats; a connection without traffic for twice as long is closed. 1 s to
    /// 10 min, whole seconds. Default: 10 s.
    pub heartbeat: Duration,
    /// Timeout of an attempt to connect, including name resolution, TLS and log-in. Several hosts
    /// share it, with at least two seconds each. Default: 10 s.
    pub connect_timeout: Duration,
    /// The longest pause between two attempts to reconnect. Pauses start at 50 ms and double, with
    /// jitter. Default: 5 s.
    pub max_reconnect_wait: Duration,
    /// The name of the connections in the broker's tools, followed by the direction.
    /// Default: `jobwire`.
    pub connection_name: String,
    /// Trusted authorities, the client certificate, and where connections without TLS are allowed.
    /// Default: the machine's trust store, no certificate, and without TLS to this machine only.
    pub security: BrokerSecurity,
    /// The interval at which the broker is asked for the lengths of the lanes' queues, for metrics.
    /// `None`: never. 100 ms to 1 h. Default: 10 s.
    pub statistics_interval: Option<Duration>,
}

jobwire_core::setters! {
    AmqpOptions {
        prefix: String,
        queue_type: QueueType,
        delivery_mode: DeliveryMode,
        declare: bool,
        hints_per_message: usize,
        confirm_timeout: Duration,
        confirm_window: usize,
        heartbeat: Duration,
        connect_timeout: Duration,
        max_reconnect_wait: Duration,
        connection_name: String,
        security: BrokerSecurity,
        statistics_interval: Option<Duration>,
    }
}

impl Default for AmqpOptions {
    fn default() -> Self {
        Self {
            prefix: "jobwire".to_owned(),
            queue_type: QueueType::default(),
            delivery_mode: DeliveryMode::default(),
            declare: true,
            hints_per_message: 16,
            confirm_timeout: Duration::from_secs(5),
            confirm_window: 64,
            heartbeat: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            max_reconnect_wait: Duration::from_secs(5),
            connection_name: "jobwire".to_owned(),
            security: BrokerSecurity::default(),
            statistics_interval: Some(Duration::from_secs(10)),
        }
    }
}

impl AmqpOptions {
    /// Returns all mistakes in the settings, one sentence each.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut check = |ok: bool, mistake: &str| {
            if !ok {
                mistakes.push(mistake.to_owned());
            }
        };
        let prefix = self.prefix.as_str();
        check(
            (1..=100).contains(&prefix.len())
                && prefix
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'))
                && !prefix.starts_with("amq."),
            "the prefix must have 1 to 100 letters, digits, '-', '_', '.' or ':', and must not \
             begin with 'amq.'",
        );
        check(
            (1..=MAX_HINTS_PER_MESSAGE).contains(&self.hints_per_message),
            "hints per message must be 1 to 512",
        );
        check(
            (1..=10_000).contains(&self.confirm_window),
            "the confirm window must be 1 to 10000 messages",
        );
        check(
            self.heartbeat >= Duration::from_secs(1) && self.heartbeat <= Duration::from_secs(600),
            "the heartbeat must be 1s to 10m",
        );
        for (name, wait) in [
            ("confirm timeout", self.confirm_timeout),
            ("connect timeout", self.connect_timeout),
            ("longest wait before reconnecting", self.max_reconnect_wait),
        ] {
            check(
                wait >= Duration::from_millis(10) && wait <= Duration::from_secs(3600),
                &format!("the {name} must be 10ms to 1h"),
            );
        }
        let interval = self.statistics_interval;
        check(
            interval.is_none_or(|interval| {
                interval >= Duration::from_millis(100) && interval <= Duration::from_secs(3600)
            }),
            "the interval of statistics must be 100ms to 1h, or none",
        );
        mistakes
    }

    /// Returns the mistakes in a URL and in [`security`](Self::security), without connecting or
    /// reading a file.
    #[must_use]
    pub fn mistakes_with(&self, url: &str) -> Vec<BadSetting> {
        match Endpoint::parse(url, &self.security) {
            Ok(endpoint) => endpoint.mistakes(&self.security),
            Err(mistake) => vec![mistake],
        }
    }

    /// Returns all mistakes as one error.
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

/// The type of a lane's queue. Both keep every guarantee: a lost hint costs latency, never a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueType {
    /// Lives on one node of the broker, with half the latency of a quorum queue. While that node is
    /// down, jobs wait; they run when it is back.
    #[default]
    Classic,
    /// Replicated over the nodes of a cluster: hints still flow while one of them is down.
    Quorum,
}

impl QueueType {
    /// Returns the value of `x-queue-type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for QueueType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "classic" => Ok(Self::Classic),
            "quorum" => Ok(Self::Quorum),
            other => Err(format!(
                "the queue type must be 'classic' or 'quorum', not '{other}'"
            )),
        }
    }
}

/// The effect of a broker's restart on hints in classic queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveryMode {
    /// Hints are lost, and the sweeper publishes them again. The broker confirms them without a
    /// flush to disk.
    #[default]
    Transient,
    /// Hints survive.
    Persistent,
}

impl DeliveryMode {
    /// Returns the number that the protocol uses.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Transient => 1,
            Self::Persistent => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_are_reported_at_once() {
        assert!(AmqpOptions::default().mistakes().is_empty());
        let options = AmqpOptions::default()
            .prefix("amq.mine".into())
            .hints_per_message(0)
            .confirm_window(0)
            .heartbeat(Duration::ZERO)
            .confirm_timeout(Duration::ZERO)
            .statistics_interval(Some(Duration::ZERO));
        assert_eq!(options.mistakes().len(), 6);
        assert!(options.validate().is_err());
    }

    #[test]
    fn queue_types_are_words() {
        for kind in [QueueType::Classic, QueueType::Quorum] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("stream".parse::<QueueType>().is_err());
    }
}
