//! Converts settings to the options of the library.

use jobwire_core::transport::BrokerSecurity;
use jobwire_core::{Elastic, HookOptions, NodeOptions, PgOptions, SqliteOptions};
use std::collections::BTreeSet;

use super::Settings;

impl Settings {
    /// Returns the options of the commit hook.
    #[must_use]
    pub fn hook_options(&self) -> HookOptions {
        let mut options = HookOptions::default();
        options.buffer = self.hint_buffer;
        options.max_age = self.hint_max_age;
        options
    }

    /// Returns the options of a node.
    #[must_use]
    pub fn node_options(&self) -> NodeOptions {
        let mut options = NodeOptions::default();
        options.concurrency = self.concurrency;
        options.elastic = self.concurrency_min.map(|min| {
            Elastic::from_min(min)
                .idle_after(self.concurrency_idle)
                .cpu_below(u8::try_from(self.concurrency_cpu.0).unwrap_or(100))
        });
        options.lease = self.lease;
        options.sweep_interval = self.sweep_interval;
        options.suspect_after = self.suspect_after;
        options.claim_after = self.claim_after.duration();
        options.claim_interval = self.claim_interval;
        options.quarantine_after = self.quarantine_after.0;
        options.row_lock_from = self.row_lock_from;
        options.incidents_kept = self.incidents_kept;
        options.retry = self.retry_policy.clone();
        options.retry_from = self.retry_from;
        options.history_retry = self.history_retry_policy.clone();
        options.shutdown_timeout = self.shutdown_timeout;
        options.lanes = self.lanes.clone();
        options.lane_order = self.lane_order;
        options.lane_aging = self.lane_aging;
        options.start_order = self.start_order;
        let only = |names: &[String]| {
            let names = names.iter().cloned().collect();
            Some(names).filter(|names: &BTreeSet<String>| !names.is_empty())
        };
        options.scope.deployments = only(&self.deployments);
        options.scope.categories = only(&self.categories);
        options.scope.tenants = only(&self.tenants);
        options.scope.min_priority = self.min_priority;
        options.scope.max_priority = self.max_priority;
        options.tap = self.tap;
        options.hook = self.hook_options();
        options
    }

    /// Returns the options of PostgreSQL.
    #[must_use]
    pub fn pg_options(&self) -> PgOptions {
        let mut options = PgOptions::default();
        options.max_connections = self.database_connections.0;
        options.statement_timeout = self.statement_timeout;
        // A node that froze in a transaction must hold row locks no longer than its leases.
        options.idle_in_transaction_timeout = self.lease;
        options.durable_locks = self.durable_locks;
        options.plaintext = self.database_plaintext;
        options
    }

    /// Returns the options of SQLite.
    #[must_use]
    pub fn sqlite_options(&self) -> SqliteOptions {
        let mut options = SqliteOptions::default();
        options.deadline = self.statement_timeout;
        options
    }

    /// Returns the security options of connections to any broker.
    #[must_use]
    pub fn broker_security(&self) -> BrokerSecurity {
        BrokerSecurity {
            ca: self.broker_tls_ca.clone(),
            certificate: self.broker_tls_certificate.clone(),
            key: self.broker_tls_key.clone(),
            plaintext: self.broker_plaintext,
        }
    }

    /// Returns the options of RabbitMQ.
    #[cfg(feature = "amqp")]
    #[must_use]
    pub fn amqp_options(&self) -> jobwire_amqp::AmqpOptions {
        jobwire_amqp::AmqpOptions::default()
            .prefix(self.amqp_prefix.clone())
            .queue_type(match self.amqp_queue_type {
                super::QueueType::Classic => jobwire_amqp::QueueType::Classic,
                super::QueueType::Quorum => jobwire_amqp::QueueType::Quorum,
            })
            .declare(self.amqp_declare)
            .hints_per_message(self.amqp_hints_per_message.size())
            .confirm_timeout(self.amqp_confirm_timeout)
            .security(self.broker_security())
            .statistics_interval(self.broker_statistics_interval.duration())
    }

    /// Returns the options of Kafka.
    #[cfg(feature = "kafka")]
    #[must_use]
    pub fn kafka_options(&self) -> jobwire_kafka::KafkaOptions {
        use std::sync::Arc;

        use jobwire_kafka::{KafkaOptions, TokenFile, TokenSource};

        let named = |text: &String| (!text.is_empty()).then(|| text.clone());
        KafkaOptions::default()
            .declare(self.kafka_declare)
            .partitions(i32::try_from(self.kafka_partitions.0).unwrap_or(i32::MAX))
            .replication(
                self.kafka_replication
                    .map(|copies| i32::try_from(copies).unwrap_or(i32::MAX)),
            )
            .retention(self.kafka_retention)
            .hints_per_message(self.kafka_hints_per_message.size())
            .linger(self.kafka_linger.duration().unwrap_or_default())
            .confirm_timeout(self.kafka_confirm_timeout)
            .session_timeout(self.kafka_session_timeout)
            .instance_id(named(&self.kafka_instance_id))
            .rack(named(&self.kafka_rack))
            .release_after(self.kafka_release_after)
            .statistics_interval(self.broker_statistics_interval.duration())
            .security(self.broker_security())
            .tokens(
                self.kafka_oauth_token_file
                    .clone()
                    .map(|file| Arc::new(TokenFile(file)) as Arc<dyn TokenSource>),
            )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use jobwire_core::job::scope::Scope;
    use jobwire_core::{LaneOrder, LaneShare, RetryFrom, RetryPolicy, StartOrder, TapMode};

    use super::*;
    use crate::handlers::{BuiltIn, apply, built_in};
    use crate::settings::{DEFAULT_FILE, Sources, TABLE};

    /// Each setting of a node, its handlers and its stores, with a value that is not its default. All
    /// together are valid.
    const OF_NODES: &[(&str, &str)] = &[
        ("database_plaintext", "allow"),
        ("concurrency", "63"),
        ("concurrency_min", "2"),
        ("concurrency_idle", "31s"),
        ("concurrency_cpu", "70"),
        ("lease", "32s"),
        ("sweep_interval", "11s"),
        ("suspect_after", "16s"),
        ("claim_after", "6s"),
        ("claim_interval", "12s"),
        ("quarantine_after", "4"),
        ("row_lock_types", "sleep"),
        ("row_lock_from", "33"),
        ("type_timeouts", "http=2m"),
        ("type_heartbeat_timeouts", "http=5m"),
        ("type_concurrency", "http=8"),
        ("type_limits", "http=10"),
        ("attempt_types", "http"),
        ("attempts_kept", "36h"),
        ("incidents_kept", "37h"),
        ("retry_policy", "13s"),
        ("retry_from", "due-date"),
        ("history_retry_policy", "14s"),
        ("type_retry_policies", "http=15s"),
        ("shutdown_timeout", "61s"),
        ("lanes", "critical,bulk"),
        ("lane_order", "aging"),
        ("lane_aging", "62s"),
        ("start_order", "due-date"),
        ("deployments", "d"),
        ("categories", "c"),
        ("tenants", "t"),
        ("min_priority", "1"),
        ("max_priority", "9"),
        ("hint_max_age", "9s"),
        ("hint_buffer", "99"),
        ("statement_timeout", "17s"),
        ("database_connections", "9"),
        ("durable_locks", "false"),
        ("tap", "off"),
    ];
    /// The settings of other parts of the program. Those of brokers and engines have prefixes.
    const ELSEWHERE: &[&str] = &[
        "database_url",
        "second_broker_url",
        "second_broker_lanes",
        "former_broker_url",
        "http",
        "http_allow_hosts",
        "periodic_jobs",
        "calendars",
        "log",
        "log_format",
    ];
    const PREFIXES: &[&str] = &["broker_", "amqp_", "kafka_", "engine_"];
    /// The options of a node that only the library sets.
    const WITHOUT_SETTING: &[&str] = &["slot_limit", "encryption", "host", "database"];

    /// Reads the settings from a file.
    fn with(given: &[(&str, &str)]) -> Settings {
        let directory = tempfile::tempdir().expect("a directory");
        let line = |(key, value): &(&str, &str)| format!("{key} = \"{value}\"\n");
        let file: String = given.iter().map(line).collect();
        std::fs::write(directory.path().join(DEFAULT_FILE), file).expect("written");
        Settings::load(&Sources {
            directory: directory.path().to_owned(),
            ..Sources::default()
        })
        .expect("all is well")
    }

    /// Returns the options of a node, its stores and its handlers as a text.
    fn effects(settings: &Settings) -> String {
        let mut handlers = built_in(&BuiltIn::default());
        apply(&mut handlers, settings).expect("the types are served");
        let of_types =
            ["http", "sleep"].map(|of| handlers.get(of).expect("built in").options.clone());
        format!(
            "{:?} {:?} {:?} {of_types:?}",
            settings.node_options(),
            settings.pg_options(),
            settings.sqlite_options()
        )
    }

    /// Returns the fields of the options, with their values as a text.
    fn fields(options: &NodeOptions) -> BTreeMap<String, String> {
        let mut fields: BTreeMap<String, String> = BTreeMap::new();
        let mut name = String::new();
        for line in format!("{options:#?}").lines() {
            let Some(rest) = line.strip_prefix("    ") else {
                continue;
            };
            if rest.starts_with(|first: char| first.is_ascii_lowercase()) {
                name = rest.split(':').next().unwrap_or_default().to_owned();
            }
            fields.entry(name.clone()).or_default().push_str(rest);
        }
        fields
    }

    #[test]
    fn each_setting_of_a_node_reaches_its_option() {
        let seconds = Duration::from_secs;
        let scope = Scope::default()
            .deployments(["d"])
            .categories(["c"])
            .tenants(["t"])
            .min_priority(1)
            .max_priority(9);
        let elastic = Elastic::from_min(2).idle_after(seconds(31)).cpu_below(70);
        let expected = NodeOptions::default()
            .concurrency(63)
            .elastic(Some(elastic))
            .lease(seconds(32))
            .sweep_interval(seconds(11))
            .suspect_after(seconds(16))
            .claim_after(Some(seconds(6)))
            .claim_interval(seconds(12))
            .quarantine_after(4)
            .row_lock_from(33)
            .incidents_kept(seconds(37 * 3_600))
            .retry(RetryPolicy::fixed(seconds(13)))
            .retry_from(RetryFrom::DueDate)
            .history_retry(RetryPolicy::fixed(seconds(14)))
            .shutdown_timeout(seconds(61))
            .lanes(vec![
                LaneShare::new("critical", 1),
                LaneShare::new("bulk", 1),
            ])
            .lane_order(LaneOrder::Aging)
            .lane_aging(seconds(62))
            .start_order(StartOrder::default().by_due_date())
            .scope(scope)
            .tap(TapMode::Off)
            .hook(HookOptions::default().buffer(99).max_age(seconds(9)));
        let ours = with(OF_NODES).node_options();
        assert_eq!(format!("{ours:#?}"), format!("{expected:#?}"));

        // An option without a setting is one on purpose.
        let (ours, defaults) = (fields(&ours), fields(&NodeOptions::default()));
        assert!(defaults.len() > 20, "{defaults:?}");
        for (field, default) in &defaults {
            let is_default = ours.get(field) == Some(default);
            let has_no_setting = WITHOUT_SETTING.contains(&field.as_str());
            assert_eq!(is_default, has_no_setting, "`{field}` is {default}");
        }
    }

    #[test]
    fn no_setting_of_a_node_is_without_effect() {
        let all = effects(&with(OF_NODES));
        for (left_out, _) in OF_NODES {
            let others: Vec<(&str, &str)> = OF_NODES
                .iter()
                .filter(|(key, _)| key != left_out)
                .copied()
                .collect();
            assert_ne!(effects(&with(&others)), all, "`{left_out}` has no effect");
        }
    }

    /// So a new setting gets a test of its effect, or is of another part.
    #[test]
    fn each_setting_is_one_of_a_node_or_of_another_part() {
        for setting in TABLE {
            let of_nodes = OF_NODES.iter().any(|(key, _)| *key == setting.key);
            let elsewhere = ELSEWHERE.contains(&setting.key)
                || PREFIXES.iter().any(|of| setting.key.starts_with(of));
            assert!(of_nodes != elsewhere, "`{}` is in no list", setting.key);
        }
    }
}
