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
