//! Protocol rule 28, on real brokers and with real programs: while hints can't come or go, jobs are claimed
//! from the database; when they can again, they come by hints again; nothing is restarted for it.
//!
//! Time budget: 120 s, most of it starts of RabbitMQ and of Kafka.

mod backlog;
mod commits;
mod kafka;
mod rabbitmq;
mod two_brokers;
mod world;
