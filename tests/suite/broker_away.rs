//! Protocol rule 28, with real brokers and real programs. While hints cannot be published or
//! received, nodes claim jobs from the database; afterwards jobs come by hints again. No process
//! restarts.
//!
//! Time budget: 120 s, most of it starts of RabbitMQ and of Kafka.

mod backlog;
mod commits;
mod cut_short;
mod fleet;
mod kafka;
mod rabbitmq;
mod two_brokers;
