//! All settings, in one table: key in `jobwire.toml`, environment variable, flag, default, meaning.
//!
//! Precedence, lowest first: default, `jobwire.toml` (or `--config FILE`, `JOBWIRE_CONFIG`),
//! environment `JOBWIRE_…`, flag. All mistakes are reported at once, each with the setting, its
//! source, the value and the remedy. Passwords in URLs are never shown. docs/reference/settings.md
//! is generated from the table.

mod allow_list;
mod broker;
mod check;
mod count;
mod engine;
mod environment;
mod file;
pub mod flags;
mod limit_key;
pub mod markdown;
mod mistake;
mod options;
pub(crate) mod remarks;
mod secret_url;
mod type_limit;
mod type_retry_policy;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use jobwire_core::transport::Plaintext;
use jobwire_core::{LaneOrder, LaneShare, RetryFrom, RetryPolicy, StartOrder, TapMode};

pub(crate) use allow_list::canonical;
pub use allow_list::{AllowList, BadHost};
pub use count::{Count0, Within};
pub use limit_key::LimitKey;
pub(crate) use mistake::closest;
pub use mistake::{Mistake, Mistakes, Origin};
pub use remarks::Remark;
pub use secret_url::SecretUrl;
pub use type_limit::TypeLimit;
pub use type_retry_policy::TypeRetryPolicy;
pub use value::{
    EngineExecute, EngineOtherScopes, EngineType, HttpAddress, Interval, LogFormat, QueueType,
    TypeConcurrency, TypeTimeout, Value,
};

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The key in the file.
    pub key: &'static str,
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// The parser's id of the flag, distinct from the arguments of commands.
    pub(crate) argument: &'static str,
    /// The name of the flag's value in the help.
    pub value: &'static str,
    /// The default, in the form of the file.
    pub default: &'static str,
    /// The meaning.
    pub help: &'static str,
}

impl Setting {
    /// Returns the name of the environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.key.to_ascii_uppercase())
    }
}

/// The prefix of every environment variable.
pub const PREFIX: &str = "JOBWIRE_";
/// The file that is read by default.
pub const DEFAULT_FILE: &str = "jobwire.toml";

/// A value that was given for a setting.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// The given values, by key.
pub(crate) type AllGiven = BTreeMap<&'static str, Given>;

macro_rules! settings {
    ($($key:ident: $type:ty = $default:literal, $flag:literal $value:literal, $help:literal;)+) => {
        /// All settings, with the values in effect.
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
            /// Reads every value. An invalid value is reported and replaced by its default, so that
            /// the others can be checked too.
            fn read(given: &AllGiven, mistakes: &mut Vec<Mistake>) -> Option<Self> {
                Some(Self {
                    $($key: read(given, stringify!($key), $default, mistakes)?,)+
                    origins: given.iter().map(|(key, given)| (*key, given.origin.clone())).collect(),
                })
            }

            /// Returns each setting with its value in a form without passwords.
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
        "The database of the jobs: `sqlite:PATH` (`jobwire run`, `jobwire enqueue` \
         and `jobwire migrate up` create the file with its tables; other commands update the tables of \
         an older program) or `postgres://user:password@host/database`.";
    database_plaintext: Plaintext = "loopback", "database-plaintext" "WHERE",
        "The servers with which PostgreSQL may be used without verified TLS: `loopback` (this \
         machine only; for other hosts `sslmode=verify-full` is the default in the URL, and less \
         is refused) or `allow` (all, for networks that are trusted or encrypt by themselves).";
    broker_url: SecretUrl = "in-process:", "broker" "URL",
        "The broker that carries the hints: `in-process:` (one node), `none` (several nodes, which \
         PostgreSQL wakes; on SQLite the same as `in-process:`), \
         `amqps://user:password@host/virtual-host` (RabbitMQ) or \
         `kafka://user:password@host/prefix?tls=true`; `amqp://…`, and `kafka://…` without \
         `?tls=true`, do not use TLS. Separate several hosts of a cluster by commas: \
         `amqps://user:password@host1:5671,host2:5671/virtual-host`.";
    second_broker_url: SecretUrl = "", "second-broker" "URL",
        "The broker for the lanes in `second_broker_lanes`, whose hints do not go over \
         `broker_url`. Must be the same in every program of a fleet.";
    second_broker_lanes: Vec<String> = "", "second-broker-lanes" "LANES",
        "The lanes that go over `second_broker_url`, separated by commas.";
    former_broker_url: SecretUrl = "", "former-broker" "URL",
        "A broker that you move away from: its hints are still received, but none are published to \
         it.";
    broker_tls_ca: Option<PathBuf> = "", "broker-tls-ca" "FILE",
        "PEM file with the authorities that may sign the broker's certificate; no others are \
         trusted. By default, the authorities that this machine trusts.";
    broker_tls_certificate: Option<PathBuf> = "", "broker-tls-certificate" "FILE",
        "PEM file with the certificate that this program presents to the broker. With `amqps://` \
         and no user in the URL it is also the log-in (EXTERNAL). The files are read again for each \
         new connection.";
    broker_tls_key: Option<PathBuf> = "", "broker-tls-key" "FILE",
        "PEM file with the unencrypted private key of `broker_tls_certificate`.";
    broker_plaintext: Plaintext = "loopback", "broker-plaintext" "WHERE",
        "The brokers that may be used without TLS: `loopback` (on this machine only) or `allow` \
         (all, for networks that are trusted or encrypt by themselves).";
    broker_statistics_interval: Interval = "10s", "broker-statistics-interval" "DURATION",
        "Interval at which a node reads the length of its lanes from the broker, for metrics, 100ms \
         to 1h; `off` for never.";
    http: HttpAddress = "127.0.0.1:7070", "http" "ADDRESS",
        "The address on which `run` serves /metrics, /healthz and /readyz; `off` for none. If the \
         default is in use, a free port is chosen and printed.";
    http_allow_hosts: Vec<String> = "", "http-allow-hosts" "HOSTS",
        "Hosts that `http` jobs may call, separated by commas; none by default.";
    concurrency: usize = "64", "concurrency" "N",
        "Maximum number of jobs that a node runs at once, 1 to 100000.";
    concurrency_min: Option<usize> = "", "concurrency-min" "N",
        "Smallest number of jobs that a node runs at once, if that number is to follow the load: it \
         grows while hints wait and the processors are mostly idle, up to `concurrency`, and shrinks \
         after a quiet time. At most `concurrency`. By default, it is always `concurrency`.";
    concurrency_idle: Duration = "30s", "concurrency-idle" "DURATION",
        "Time without a waiting hint after which a node with `concurrency_min` gives up the slots \
         that no job has used. At least 1s.";
    concurrency_cpu: Within<1, 100> = "80", "concurrency-cpu" "PERCENT",
        "Use of the processors by the program at which a node with `concurrency_min` grows no \
         further, 1 to 100. Read on Linux only.";
    lease: Duration = "30s", "lease" "DURATION",
        "Time that a lease lasts without renewal, 1s to 24h. The jobs of a dead node are taken over \
         after this time plus one sweep interval.";
    sweep_interval: Duration = "10s", "sweep-interval" "DURATION",
        "Interval at which the leader looks for expired leases and lost hints while jobs wait or \
         run. If it is longer than half a `lease`, half a lease is used. Twice as long while \
         the fleet is idle. 100ms to 24h.";
    suspect_after: Duration = "15s", "suspect-after" "DURATION",
        "Time for which a job must have been ready before its hint may count as lost. Not shorter \
         than `hint_max_age`; if it is shorter than `hint_max_age` plus the broker's confirm timeout, \
         that sum is used.";
    claim_after: Interval = "5s", "claim-after" "DURATION",
        "Time for which receiving or publishing hints must fail (the broker is away, or accepts no \
         messages) before a node claims jobs from the database, until both work again; `off` lets \
         jobs wait for the broker. At least 100ms.";
    claim_interval: Duration = "10s", "claim-interval" "DURATION",
        "Maximum time for which a job waits after its wake was lost, if `broker_url` is `none`: \
         the leader looks for waiting jobs at this interval, and a node that hears no leader for \
         this time claims. Jobs of plain SQL wait as long if there is no commit tap. 100ms to 24h. \
         See docs/operating/no-broker.md.";
    quarantine_after: Count0 = "3", "quarantine-after" "N",
        "Number of nodes in a row that must die while they run a job before it becomes a dead \
         letter; from the second death on it runs alone on its node. At least 3; 0 for never.";
    row_lock_types: Vec<String> = "", "row-lock-types" "TYPES",
        "Types whose handlers are short and may run twice, separated by commas. When many of their \
         jobs arrive at once, PostgreSQL holds them by row locks, which cost half as much as \
         leases. See docs/operating/deployment.md.";
    row_lock_from: usize = "32", "row-lock-from" "N",
        "The smallest batch of hints whose jobs are held by row locks; the jobs of a smaller batch \
         get leases.";
    type_timeouts: Vec<TypeTimeout> = "", "type-timeouts" "TYPES",
        "Maximum duration of an attempt by type, separated by commas: `http=2m,sleep=1h`. A longer \
         attempt fails, and is tried again by its policy. By default 30s for `http`, and none for \
         other types.";
    type_heartbeat_timeouts: Vec<TypeTimeout> = "", "type-heartbeat-timeouts" "TYPES",
        "Maximum time between two heartbeats of a handler by type, separated by commas: \
         `import=5m`. An attempt without a heartbeat for this time fails like one over its timeout. For \
         types of a program of your own: the built-in types give no heartbeat, so that it ends their \
         attempts like a timeout. None by default.";
    type_concurrency: Vec<TypeConcurrency> = "", "type-concurrency" "TYPES",
        "Maximum number of jobs that run at once on one node by type, separated by commas: \
         `http=8,sleep=2`. Further jobs hold no slot and no lease of this node while they wait. By \
         default, all slots of the node. For limits of the whole fleet see `type_limits`.";
    type_limits: Vec<TypeLimit> = "", "type-limits" "TYPES",
        "Limits of the whole fleet by type, separated by commas. `http=10`: ten jobs run at once. \
         `http=100/1s`: 100 jobs start in any second. `http=100/1s/burst:20`: also at most 20 in any \
         fifth of a second. A burst larger than the number lets that many start at once, and then none \
         until they have cooled down. With `/tenant`, `/category` or `/value:customer` at the end for each \
         tenant, each category, or each value of this field of the custom values. With `/fair:` and one of \
         these for all of them, which take turns. With `/named:mail-server` for all types whose limit has \
         this name. Jobs over the limit wait in the database. None by default. See \
         docs/guides/limits.md.";
    attempt_types: Vec<String> = "", "attempt-types" "TYPES",
        "Types whose attempts are recorded, separated by commas, for `jobwire jobs attempts`. A \
         completion of these types costs one more insert. None by default.";
    attempts_kept: Duration = "7d", "attempts-kept" "DURATION",
        "Time for which a recorded attempt is kept.";
    incidents_kept: Duration = "30d", "incidents-kept" "DURATION",
        "Time for which an incident is kept after its job was revived or deleted.";
    retry_policy: RetryPolicy = "10s", "retry-policy" "POLICY",
        "Wait between attempts, if neither the job nor its handler has a policy: `30s`, \
         `exponential(1s, 2, 1h)`, `PT10M,PT17M`. A count in it has no effect.";
    retry_from: RetryFrom = "now", "retry-from" "TIME",
        "Time from which the wait of a retry policy counts: `now` (the failure) or `due-date` (the \
         due date of the failed attempt, as in Activiti 5 and 6; an attempt whose wait has passed \
         since then is due at once).";
    history_retry_policy: RetryPolicy = "10s", "history-retry-policy" "POLICY",
        "Wait between attempts of history jobs, if neither the job nor its handler has a policy: \
         `30s`, `exponential(1s, 2, 1h)`, `PT10M,PT17M`. A count in it has no effect.";
    type_retry_policies: Vec<TypeRetryPolicy> = "", "type-retry-policies" "TYPES",
        "Wait between attempts by type, separated by commas: \
         `http=exponential(1s, 2, 1h),sleep=PT10M,PT17M`. It holds for jobs without a policy of \
         their own, history jobs included. A count in it has no effect. None by default.";
    periodic_jobs: Option<PathBuf> = "", "periodic-jobs" "FILE",
        "TOML file of the periodic jobs that `run` declares at its start, as `[[periodic]]` \
         tables. See docs/guides/periodic-jobs.md.";
    calendars: Option<PathBuf> = "", "calendars" "FILE",
        "TOML file of the business calendars that this program knows, as `[[calendar]]` tables. Give \
         all programs of a fleet the same one. See docs/guides/calendars.md.";
    shutdown_timeout: Duration = "60s", "shutdown-timeout" "DURATION",
        "Time that running jobs have to end at shutdown before they are released.";
    lanes: Vec<LaneShare> = "default", "lanes" "LANES",
        "The lanes (queues, topics) that a node receives, in order, separated by commas. Lanes \
         that share by weight may have weights of 1 to 1000: `critical=5,default=3,bulk` (the default \
         weight is 1). At most 64 lanes.";
    lane_order: LaneOrder = "weighted", "lane-order" "ORDER",
        "Rule by which lanes share a node's slots while jobs of several wait: `weighted` (each \
         lane gets its share of the starts), `strict` (a lane is served only while no job waits \
         in the lanes before it) or `aging` (strict, but each tenth start goes to the oldest hint \
         that has waited longer than `lane_aging`).";
    lane_aging: Duration = "60s", "lane-aging" "DURATION",
        "Time after which a waiting hint counts as old, if `lane_order` is `aging`. At least 1s.";
    start_order: StartOrder = "", "start-order" "ORDER",
        "Order in which the jobs of a lane start, among those whose hints a node holds: `priority` \
         (larger first), `timers` (before other jobs), `due-date` (earlier first), or several, \
         separated by commas; they apply in this order. By default, the order in which the hints \
         arrive. See docs/guides/priorities.md.";
    deployments: Vec<String> = "", "deployments" "NAMES",
        "The deployments whose jobs this node takes, separated by commas; it also takes jobs \
         without a deployment. By default, jobs of all.";
    categories: Vec<String> = "", "categories" "NAMES",
        "The categories whose jobs this node takes, separated by commas; it also takes jobs \
         without a category. By default, jobs of all.";
    tenants: Vec<String> = "", "tenants" "NAMES",
        "The tenants whose jobs this node takes, separated by commas; it also takes jobs without a \
         tenant. By default, jobs of all.";
    min_priority: Option<i64> = "", "min-priority" "N",
        "The lowest priority of the jobs that this node takes. By default, no bound. Other nodes must \
         take the rest: `jobwire doctor` shows gaps.";
    max_priority: Option<i64> = "", "max-priority" "N",
        "The highest priority of the jobs that this node takes. By default, no bound.";
    hint_max_age: Duration = "10s", "hint-max-age" "DURATION",
        "Maximum time that a hint waits to be published. After that it is dropped, and the sweeper \
         finds its job.";
    hint_buffer: usize = "100000", "hint-buffer" "N",
        "Maximum number of hints that wait to be published. Further hints are dropped, and the \
         sweeper finds their jobs.";
    statement_timeout: Duration = "15s", "statement-timeout" "DURATION",
        "Maximum time of a statement. After that the database cancels it. At least 100ms.";
    database_connections: Within<3, 1000> = "8", "database-connections" "N",
        "Maximum number of connections to PostgreSQL, 3 to 1000; one more is kept for renewing \
         leases.";
    durable_locks: bool = "true", "durable-locks" "BOOL",
        "Whether a lock waits until PostgreSQL has flushed it to disk. `false` starts jobs sooner \
         by the time of one flush, but a crash of the server loses the locks of its last half \
         second, and those jobs run again. Completions always wait.";
    tap: TapMode = "auto", "tap" "WHEN",
        "Whether the leader taps the commits of PostgreSQL, so that jobs of plain SQL start within \
         milliseconds: `auto` (if `jobwire tap create` has set it up and the server allows it), \
         `on` (while it is not possible, a log line has the reason, and the leader looks every \
         second) or `off`. See docs/operating/tap.md.";
    amqp_queue_type: QueueType = "classic", "amqp-queue-type" "TYPE",
        "`classic` (lowest latency) or `quorum` (replicated over a RabbitMQ cluster). Fixed when a \
         queue is declared.";
    amqp_prefix: String = "jobwire", "amqp-prefix" "NAME",
        "Prefix of the name of every queue and exchange; fleets on the same virtual host need \
         different ones.";
    amqp_declare: bool = "true", "amqp-declare" "BOOL",
        "Whether missing queues and exchanges are declared; `false` uses only existing ones.";
    amqp_hints_per_message: Within<1, 512> = "16", "amqp-hints-per-message" "N",
        "Maximum number of hints in one message, 1 to 512.";
    amqp_confirm_timeout: Duration = "5s", "amqp-confirm-timeout" "DURATION",
        "Maximum time for RabbitMQ's confirm of a message, 10ms to 1h.";
    kafka_declare: bool = "true", "kafka-declare" "BOOL",
        "Whether missing topics are created; `false` uses only existing ones.";
    kafka_partitions: Within<1, 10_000> = "12", "kafka-partitions" "N",
        "Number of partitions of a new topic, 1 to 10000, which is the maximum number of nodes that \
         can share a lane.";
    kafka_replication: Option<u32> = "auto", "kafka-replication" "N",
        "Number of copies of a new topic; `auto` is 3, or the number of brokers if that is smaller.";
    kafka_retention: Duration = "24h", "kafka-retention" "DURATION",
        "Time for which Kafka keeps the hints of a new topic, 1m to 366d. If a job waits longer, the \
         sweeper hints it again.";
    kafka_hints_per_message: Within<1, 512> = "16", "kafka-hints-per-message" "N",
        "Maximum number of hints in one message, 1 to 512.";
    kafka_linger: Interval = "off", "kafka-linger" "DURATION",
        "Time that a message waits to be sent together with others, at most 1s; `off` sends it as \
         soon as the connection is free.";
    kafka_confirm_timeout: Duration = "5s", "kafka-confirm-timeout" "DURATION",
        "Maximum time for Kafka's confirm of a message, 100ms to 1h.";
    kafka_session_timeout: Duration = "10s", "kafka-session-timeout" "DURATION",
        "Time without a sign of life of a node after which Kafka gives its partitions to other \
         nodes, 1s to 30m.";
    kafka_instance_id: String = "", "kafka-instance-id" "NAME",
        "Name for static membership: a node that returns under this name within the session \
         timeout gets its partitions back without a rebalance. Must differ for each node.";
    kafka_rack: String = "", "kafka-rack" "NAME",
        "Rack or zone of this node, which fetches from the nearest copy.";
    kafka_release_after: Duration = "10s", "kafka-release-after" "DURATION",
        "Time without a free slot after which a node gives its partitions to other nodes, until a \
         slot is free.";
    kafka_oauth_token_file: Option<PathBuf> = "", "kafka-oauth-token-file" "FILE",
        "File with the token for OAUTHBEARER (a JWT, which another program keeps fresh). Topics \
         must exist already.";
    engine_type: EngineType = "flowable", "engine-type" "TYPE",
        "The process engine: `flowable`, `activiti`, or `camunda` for Camunda 7, Operaton and CIB \
         seven.";
    engine_database_url: SecretUrl = "", "engine-database" "URL",
        "The database of a process engine whose jobs `jobwire engine run` runs: \
         `postgres://user:password@host/database`. Empty, with `engine_execute` = `endpoint`: an \
         engine on another database, over its endpoint alone (docs/engines/other-databases.md). See \
         docs/engines/flowable.md, docs/engines/activiti.md and docs/engines/camunda.md.";
    engine_url: SecretUrl = "", "engine" "URL",
        "URL of the engine's REST interface for processes, with its user: \
         `https://user:password@host/process-api` with Spring Boot, \
         `https://user:password@host/flowable-rest/service` for flowable-rest, \
         `https://user:password@host/engine-rest` for Camunda. With the execution endpoint, its \
         URL: `https://user:password@host/jobwire`. Several engine nodes are several hosts, \
         separated by commas: `https://user:password@host-1,host-2/engine-rest`.";
    engine_deployment_aware: bool = "false", "engine-deployment-aware" "BOOL",
        "Whether a job of Camunda goes only to an engine node of `engine_url` that has registered \
         its deployment, as with the engine's own setting `jobExecutorDeploymentAware`. A job \
         whose deployment no node has waits. Needs REST. Flowable's execution endpoint reports the categories \
         of its node by itself.";
    engine_execute: EngineExecute = "auto", "engine-execute" "HOW",
        "Way in which the engine executes a job: over its REST interface (`rest`) or over the \
         execution endpoint (`endpoint`). `auto` is the endpoint for Activiti and Flowable 8, \
         otherwise REST.";
    engine_token_file: Option<PathBuf> = "", "engine-token-file" "FILE",
        "File with a bearer token for the engine's REST interface or endpoint, instead of a user in \
         `engine_url`.";
    engine_plaintext: Plaintext = "loopback", "engine-plaintext" "WHERE",
        "The hosts on which the engine and its database may be used without TLS: `loopback` (this \
         machine only) or `allow` (all, for networks that are trusted or encrypt by themselves).";
    engine_name: String = "", "engine-name" "NAME",
        "The name of the engine, which distinguishes several engines in one database; by default \
         its type.";
    engine_schema: String = "", "engine-schema" "NAME",
        "The schema of the engine's tables; by default the first one of the role's search path \
         that has them.";
    engine_zone: String = "UTC", "engine-zone" "ZONE",
        "The time zone of the engine's JVM, such as `UTC` or `Europe/Berlin`: the engine writes \
         due dates and lock times in it.";
    engine_lane: String = "", "engine-lane" "LANE",
        "The lane of the hints of the engine's jobs; by default the engine's type.";
    engine_concurrency: Within<1, 1000> = "8", "engine-concurrency" "N",
        "Maximum number of jobs that the engine executes at once for one node, 1 to 1000. Must be smaller \
         than the engine's connection pool: a failing job takes two connections.";
    engine_answer_within: Duration = "60s", "engine-answer-within" "DURATION",
        "Maximum time for the answer of an execution. After that the job stays locked until its \
         row moves.";
    engine_lock_for: Option<Duration> = "", "engine-lock-for" "DURATION",
        "Time for which a job is locked for its execution, at least `lease`. The jobs of a dead node \
         wait for this time. Without a value: 5 minutes for Camunda, whose locks can't be extended; \
         `lease` for Flowable and Activiti, whose locks are renewed. Beside engine nodes that poll, \
         give the length of the longest job: they clear an expired lock, although the engine may \
         still execute the job for a node that has died. Without effect over the endpoint alone.";
    engine_takeover_patience: Duration = "10m", "engine-takeover-patience" "DURATION",
        "Maximum time that the jobs of a dead node wait for transactions of the engine that may \
         still execute them.";
    engine_watchdog: bool = "false", "engine-watchdog" "BOOL",
        "Whether a node may cancel statements of the engine that wait for an idle transaction of \
         the engine itself. Not needed where the engine's connections have a `lock_timeout`.";
    engine_other_scopes: EngineOtherScopes = "refuse", "engine-other-scopes" "WHAT",
        "What a node does if the engine has jobs of other scopes than processes, such as cases (CMMN), \
         which it never runs: `refuse` its start, or `leave` them to an engine node with its own \
         executor for them.";
    log: String = "info", "log" "FILTER",
        "Content of the log: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as \
         `warn,jobwire_core=debug`. Commands other than `run` log `warn` by default.";
    log_format: LogFormat = "text", "log-format" "FORMAT",
        "`text`, or `json` with one object per line.";
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

/// The sources of settings.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// The directory of [`DEFAULT_FILE`].
    pub directory: PathBuf,
    /// Environment variables; those without [`PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// Flags: key and value.
    pub flags: Vec<(&'static str, String)>,
}

impl Settings {
    /// Reads and checks the settings from all sources.
    ///
    /// # Errors
    /// Returns all mistakes at once.
    pub fn load(sources: &Sources) -> Result<Self, Mistakes> {
        let mut mistakes = Vec::new();
        let mut given = AllGiven::new();
        let environment = environment::read(&sources.environment, &mut mistakes);
        let file = match (&sources.file, &environment.file) {
            (Some(named), _) => {
                file::Which::Named(named.clone(), Origin::Flag("config".to_owned()))
            }
            (None, Some(named)) => file::Which::Named(
                named.clone(),
                Origin::Environment(environment::CONFIG.to_owned()),
            ),
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

    /// Returns the source of a setting's value.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// Returns whether a source gave this setting.
    #[must_use]
    pub fn is_given(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }
}

#[cfg(test)]
mod tests;
