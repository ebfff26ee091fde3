//! The harness of Jobwire's tests.
//!
//! Tests run against real servers. The harness starts them privately, with their own data
//! directories and free loopback ports, and does not touch the machine's own services. It removes
//! them afterwards, also if the test process crashes, is killed with `-9` or gets Ctrl-C (see
//! [`reaper`]). The parts that need no client of a broker are the package `jobwire-harness`.
//!
//! | for | use |
//! | --- | --- |
//! | a fresh database on the shared PostgreSQL | [`shared::postgres`]`().await.create_database().await` |
//! | the same with Jobwire's tables | [`shared::postgres`]`().await.migrated_database().await` |
//! | a fresh space on the shared RabbitMQ | [`shared::rabbitmq`]`().await.space().await` |
//! | a prefix of topics of its own on the shared Kafka | [`shared::kafka`]`().await.space()` |
//! | topics, offsets and groups of a Kafka | [`KafkaAdmin`] |
//! | a private PostgreSQL, RabbitMQ or Kafka to stop, kill and start again | [`Postgres::start`], [`RabbitMq::start`], [`Kafka::start`] |
//! | a standby to promote | [`Postgres::start_standby`] |
//! | a PostgreSQL whose clock jumps | [`Postgres::start_with_clock`] |
//! | a pooler in front of a PostgreSQL | [`PgBouncer::start`] |
//! | a faulty network in front of a server | [`Proxy::start`]; for Kafka [`KafkaSettings::proxy`] |
//! | a Prometheus that scrapes the test's nodes | [`Prometheus::start`] |
//! | the `jobwire` program itself | [`Program::jobwire`] |
//! | certificates for TLS, trusted or not | [`Authority::new`] |
//! | three Kafka brokers, one of which may be missing | [`KafkaCluster::start`] |
//! | a disk to fill | [`SmallDisk::mount`] |
//! | a check of a history of jobs | [`history::Checker`] |
//! | all faults at once | [`chaos::run`] |
//! | a process engine: Flowable, Camunda, Activiti | [`EngineServer::start`] |
//! | an engine's database that is not PostgreSQL | [`MariaDb::start`] |
//! | the bridge beside the engines' own executors | [`engine_bench::run`] |
//! | the sample for Spring | [`SpringSample::compile`] |
//! | waiting for a condition | [`eventually`], the only place where a test may pause |
//!
//! Environment variables point [`shared`] at servers that already run:
//! `JOBWIRE_TEST_POSTGRES_URL` (a superuser's URL), `JOBWIRE_TEST_AMQP_URL` and
//! `JOBWIRE_TEST_KAFKA_URL`. `cargo run -p jobwire-tests --bin servers -- COMMAND`
//! starts all of them once and runs a command that finds them there.
//!
//! All functions report failures by panicking: a harness that cannot do its work must fail the
//! test, never skip it.
#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a panic is how a test reports its failure"
)]

mod amqp_handshake;
pub mod cargo;
pub mod chaos;
pub mod engine_bench;
pub mod engines;
pub mod http;
mod jdbc;
pub mod kafka;
pub mod kafka_admin;
pub mod kafka_cluster;
mod kafka_jars;
pub mod kafka_security;
pub mod kafka_settings;
pub mod mariadb;
pub mod program;
pub mod prometheus;
pub mod proxy;
pub mod rabbitmq;
pub mod rabbitmqctl;
pub mod shared;
mod spring_sample;

pub use engines::{EngineProgram, EngineServer, EngineSettings, HintCounts, JobExecutor};
pub use jobwire_harness::{
    Authority, Cases, Identity, PgBouncer, Pooling, Postgres, Scratch, Server, ServerClock, Signal,
    SmallDisk, Stop, certificates, database, eventually, lines, need, pgbouncer, port, postgres,
    reaper, scratch, server, server_clock, small_disk, wait,
};
pub use jobwire_simulation::history::{self, HintAccount};
pub use kafka::Kafka;
pub use kafka_admin::KafkaAdmin;
pub use kafka_cluster::KafkaCluster;
pub use kafka_security::KafkaListener;
pub use kafka_settings::KafkaSettings;
pub use mariadb::MariaDb;
pub use program::{Program, Running};
pub use prometheus::Prometheus;
pub use proxy::{Direction, Flow, Proxy};
pub use rabbitmq::RabbitMq;
pub use rabbitmqctl::RabbitMqCtl;
pub use spring_sample::SpringSample;
