//! Every setting, in one table: key in `jobwire.toml`, environment variable, flag, default, meaning.
//!
//! Precedence, rising: default, `jobwire.toml` (or `--config FILE`, `JOBWIRE_CONFIG`), environment
//! `JOBWIRE_…`, flag. All mistakes are reported at once, each with the setting, where it came from, the
//! value and what to do. Passwords in URLs are never shown. docs/reference/settings.md is made from the table.

mod broker;
mod check;
mod environment;
mod file;
pub mod flags;
pub mod markdown;
mod mistake;
mod options;
mod secret_url;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use jobwire_core::transport::Plaintext;
use jobwire_core::{LaneOrder, LaneShare};

pub(crate) use mistake::closest;
pub use mistake::{Mistake, Mistakes, Origin};
pub use secret_url::SecretUrl;
pub use value::{HttpAddress, Interval, LogFormat, QueueType, Value};

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The key in the file.
    pub key: &'static str,
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// Names the flag to the parser, apart from the arguments of commands.
    pub(crate) argument: &'static str,
    /// What the flag's value is called.
    pub value: &'static str,
    /// The default, as it would be written.
    pub default: &'static str,
    /// What it means.
    pub help: &'static str,
}

impl Setting {
    /// The environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.key.to_ascii_uppercase())
    }
}

/// Begins the name of every environment variable.
pub const PREFIX: &str = "JOBWIRE_";
/// The file that is read where none is named.
pub const DEFAULT_FILE: &str = "jobwire.toml";

/// What somebody wrote for a setting.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// What was given, by key.
pub(crate) type AllGiven = BTreeMap<&'static str, Given>;

macro_rules! settings {
    ($($key:ident: $type:ty = $default:literal, $flag:literal $value:literal, $help:literal;)+) => {
        /// Every setting, with the value that holds.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $(#[doc = $help] pub $key: $type,)+
            origins: BTreeMap<&'static str, Origin>,
        }

        /// The table.
        pub const TABLE: &[Setting] = &[$(Setting {
            key: stringify!($key), flag: $flag,
            argument: concat!("setting:", stringify!($key)), value: $value, default: $default, help: $help,
        }),+];

        impl Settings {
            /// Read every value; one that can't be read is reported and replaced by its default, so
            /// that the others can be checked too.
            fn read(given: &AllGiven, mistakes: &mut Vec<Mistake>) -> Option<Self> {
                Some(Self {
                    $($key: read(given, stringify!($key), $default, mistakes)?,)+
                    origins: given.iter().map(|(key, given)| (*key, given.origin.clone())).collect(),
                })
            }

            /// Each setting with its value as it may be shown.
            #[must_use]
            pub fn shown(&self) -> Vec<(&'static Setting, String)> {
                let values = [$(Value::shown(&self.$key)),+];
                TABLE.iter().zip(values).collect()
            }
        }
    };
}

settings! {
    database_url: SecretUrl = "sqlite:jobwire.db", "database" "URL",
        "Where the jobs live: `sqlite:PATH` (made and migrated by itself) or `postgres://user:password@host/database`.";
    database_plaintext: Plaintext = "loopback", "database-plaintext" "WHERE",
        "Where PostgreSQL may be spoken to without verified TLS: `loopback` (this machine only; elsewhere `sslmode=verify-full` is the default in the URL, and less is refused) or `allow` (anywhere: for networks that are trusted or encrypt by themselves).";
    broker_url: SecretUrl = "in-process:", "broker" "URL",
        "What carries the hints: `in-process:` (one node), `amqps://user:password@host/virtual-host` (RabbitMQ) or `kafka://user:password@host/prefix?tls=true`; `amqp://…`, and `kafka://…` without `?tls=true`, are without TLS. Several hosts of a cluster are separated by commas: `amqps://user:password@host1:5671,host2:5671/virtual-host`.";
    second_broker_url: SecretUrl = "", "second-broker" "URL",
        "Carries the hints of the lanes in `second_broker_lanes`, which then don't go over `broker_url`. The same on every program of a fleet.";
    second_broker_lanes: Vec<String> = "", "second-broker-lanes" "LANES",
        "The lanes that go over `second_broker_url`, separated by commas.";
    former_broker_url: SecretUrl = "", "former-broker" "URL",
        "A broker that is moved away from: nothing is published there any longer, what is there is still received.";
    broker_tls_ca: Option<PathBuf> = "", "broker-tls-ca" "FILE",
        "PEM file with the authorities that sign the broker's certificate; only these are then trusted. Where none is given: those that this machine trusts.";
    broker_tls_certificate: Option<PathBuf> = "", "broker-tls-certificate" "FILE",
        "PEM file with the certificate that this program shows to the broker. With `amqps://` and no user in the URL it is also the log-in (EXTERNAL). The files are read again with each new connection.";
    broker_tls_key: Option<PathBuf> = "", "broker-tls-key" "FILE",
        "PEM file with the private key of `broker_tls_certificate`, not encrypted.";
    broker_plaintext: Plaintext = "loopback", "broker-plaintext" "WHERE",
        "Where a broker may be spoken to without TLS: `loopback` (this machine only) or `allow` (anywhere: for networks that are trusted or encrypt by themselves).";
    broker_statistics_interval: Interval = "10s", "broker-statistics-interval" "DURATION",
        "How often a node asks the broker how much waits in its lanes, for metrics; `off` for never.";
    http: HttpAddress = "127.0.0.1:7070", "http" "ADDRESS",
        "Where `run` serves /metrics, /healthz and /readyz; `off` for nowhere. Where the default is taken, a free port is used and printed.";
    http_allow_hosts: Vec<String> = "", "http-allow-hosts" "HOSTS",
        "Hosts that `http` jobs may call, separated by commas; none until named.";
    concurrency: usize = "64", "concurrency" "N",
        "Jobs that a node runs at once.";
    lease: Duration = "30s", "lease" "DURATION",
        "How long a lock lasts without being renewed: a dead node's jobs are taken over that much later, plus one sweep.";
    sweep_interval: Duration = "10s", "sweep-interval" "DURATION",
        "How often the leading node looks for expired locks and lost hints while anything waits or runs; at least twice a lease.";
    suspect_after: Duration = "15s", "suspect-after" "DURATION",
        "A job is suspected to have lost its hint only when it has been ready for so long; at least `hint_max_age` and the broker's confirm timeout.";
    claim_after: Interval = "5s", "claim-after" "DURATION",
        "When hints could not be received or not be published for so long (the broker is away, or takes no messages), a node takes jobs from the database until they can; `off` lets jobs wait for the broker.";
    quarantine_after: u32 = "3", "quarantine-after" "N",
        "A job at whose hands so many nodes in a row have died goes to the dead letters; it runs alone on its node from the second death on. At least 3; 0 for never.";
    row_lock_types: Vec<String> = "", "row-lock-types" "TYPES",
        "Types whose handlers are short and may run twice, separated by commas: where many of their jobs arrive at once, PostgreSQL holds them by locks of their rows, which costs half of what leases do. See docs/operating/deployment.md.";
    row_lock_from: usize = "32", "row-lock-from" "N",
        "The smallest batch of hints of which jobs are held by row locks; the jobs of a smaller batch get leases.";
    shutdown_timeout: Duration = "60s", "shutdown-timeout" "DURATION",
        "How long running jobs may take to end at shutdown before they are given back.";
    lanes: Vec<LaneShare> = "default", "lanes" "LANES",
        "The lanes (queues, topics) that a node receives, in their order, separated by commas; with a weight each where they share by weight: `critical=5,default=3,bulk` (no weight is 1).";
    lane_order: LaneOrder = "weighted", "lane-order" "ORDER",
        "How lanes share a node's slots while several wait: `weighted` (each its share of the starts) or `strict` (nothing of a lane while anything of one before it waits).";
    deployments: Vec<String> = "", "deployments" "NAMES",
        "Take jobs of these deployments only, and jobs that name none; separated by commas. Without one, jobs of all.";
    categories: Vec<String> = "", "categories" "NAMES",
        "Take jobs of these categories only, and jobs that name none; separated by commas. Without one, jobs of all.";
    tenants: Vec<String> = "", "tenants" "NAMES",
        "Take jobs of these tenants only, and jobs that name none; separated by commas. Without one, jobs of all.";
    hint_max_age: Duration = "10s", "hint-max-age" "DURATION",
        "A hint that could not be published for so long is left to the sweeper.";
    hint_buffer: usize = "100000", "hint-buffer" "N",
        "Hints that may wait to be published; one more is left to the sweeper.";
    statement_timeout: Duration = "15s", "statement-timeout" "DURATION",
        "The database ends a statement that takes longer.";
    database_connections: u32 = "8", "database-connections" "N",
        "The most connections to PostgreSQL; one more is kept for renewing locks.";
    durable_locks: bool = "true", "durable-locks" "BOOL",
        "Whether a lock waits until PostgreSQL's disk has it. `false` starts jobs sooner by the time of one flush; a crash of the server then forgets the locks of its last half second, and those jobs run again. Completions always wait.";
    amqp_queue_type: QueueType = "classic", "amqp-queue-type" "TYPE",
        "`classic` (lowest latency) or `quorum` (replicated over a RabbitMQ cluster). Fixed when a queue is declared.";
    amqp_prefix: String = "jobwire", "amqp-prefix" "NAME",
        "Begins the name of every queue and exchange; two fleets on one virtual host need two.";
    amqp_declare: bool = "true", "amqp-declare" "BOOL",
        "Declare queues and exchanges where they are missing; `false` only uses what exists.";
    amqp_hints_per_message: usize = "16", "amqp-hints-per-message" "N",
        "The most hints in one message, 1 to 512.";
    amqp_confirm_timeout: Duration = "5s", "amqp-confirm-timeout" "DURATION",
        "How long RabbitMQ may take to confirm a message.";
    kafka_declare: bool = "true", "kafka-declare" "BOOL",
        "Create topics where they are missing; `false` only uses what exists.";
    kafka_partitions: usize = "12", "kafka-partitions" "N",
        "Partitions of a topic that is created: a lane can be shared by so many nodes.";
    kafka_replication: Option<u32> = "auto", "kafka-replication" "N",
        "Copies of a topic that is created; `auto` is 3, or as many as there are brokers.";
    kafka_retention: Duration = "24h", "kafka-retention" "DURATION",
        "How long Kafka keeps hints of a topic that is created; a job that waits longer is hinted again by the sweeper.";
    kafka_hints_per_message: usize = "16", "kafka-hints-per-message" "N",
        "The most hints in one message, 1 to 512.";
    kafka_linger: Interval = "off", "kafka-linger" "DURATION",
        "How long a message waits for others to travel with; `off` sends at once what finds the connection free.";
    kafka_confirm_timeout: Duration = "5s", "kafka-confirm-timeout" "DURATION",
        "How long Kafka may take to confirm a message.";
    kafka_session_timeout: Duration = "10s", "kafka-session-timeout" "DURATION",
        "A node that Kafka has not heard of for so long loses its partitions to the others.";
    kafka_instance_id: String = "", "kafka-instance-id" "NAME",
        "Static membership: a node that comes back under this name within the session timeout finds its partitions without a rebalance. Another one for each node.";
    kafka_rack: String = "", "kafka-rack" "NAME",
        "Where this node is: it fetches from the nearest copy.";
    kafka_release_after: Duration = "10s", "kafka-release-after" "DURATION",
        "A node without a free slot for so long gives its partitions to others until it has one.";
    kafka_oauth_token_file: Option<PathBuf> = "", "kafka-oauth-token-file" "FILE",
        "File with the token (a JWT, kept fresh by somebody else) for OAUTHBEARER. Topics must exist then.";
    log: String = "info", "log" "FILTER",
        "What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `warn,jobwire_core=debug`. Commands other than `run` log `warn` where nothing is given.";
    log_format: LogFormat = "text", "log-format" "FORMAT",
        "`text` or `json`, one object a line.";
}

fn read<T: Value>(
    given: &AllGiven,
    key: &'static str,
    default: &str,
    mistakes: &mut Vec<Mistake>,
) -> Option<T> {
    if let Some(Given { text, origin }) = given.get(key) {
        match T::read(text) {
            Ok(value) => return Some(value),
            Err(problem) => mistakes.push(Mistake {
                setting: key.to_owned(),
                value: Some(T::safe(text)),
                origin: origin.clone(),
                problem,
            }),
        }
    }
    T::read(default).ok()
}

/// Where settings come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// The directory in which [`DEFAULT_FILE`] is looked for.
    pub directory: PathBuf,
    /// Environment variables; those without [`PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// Flags: key and value.
    pub flags: Vec<(&'static str, String)>,
}

impl Settings {
    /// Put the sources together.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn load(sources: &Sources) -> Result<Self, Mistakes> {
        let mut mistakes = Vec::new();
        let mut given = AllGiven::new();
        let environment = environment::read(&sources.environment, &mut mistakes);
        let file = match (&sources.file, &environment.file) {
            (Some(named), _) => file::Which::Named(named.clone()),
            (None, Some(named)) => file::Which::Named(named.clone()),
            (None, None) => file::Which::Default(sources.directory.join(DEFAULT_FILE)),
        };
        given.extend(file::read(&file, &mut mistakes));
        given.extend(environment.given);
        given.extend(flags::given(&sources.flags));
        let settings = Self::read(&given, &mut mistakes);
        if let Some(settings) = &settings {
            let reported: Vec<String> = mistakes.iter().map(|m| m.setting.clone()).collect();
            let found = check::check(settings);
            mistakes.extend(found.into_iter().filter(|m| !reported.contains(&m.setting)));
        }
        match settings {
            Some(settings) if mistakes.is_empty() => Ok(settings),
            _ => Err(Mistakes(mistakes)),
        }
    }

    /// Where a setting's value came from.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// Did somebody write it?
    #[must_use]
    pub fn is_given(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }
}

#[cfg(test)]
mod tests;
