//! A node that one of its job types takes down: `poison` ends the process as an out-of-memory kill would,
//! `innocent` sleeps a moment. For the tests of quarantine.

use std::sync::Arc;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::{Node, NodeOptions, Outcome, PgStore, Running, Transport};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

#[tokio::main]
async fn main() {
    let store = PgStore::connect(&variable("NODE_DATABASE")).await.unwrap();
    let mut broker = AmqpOptions::default();
    broker.prefix = variable("NODE_PREFIX");
    let transport = AmqpTransport::connect(&variable("NODE_BROKER"), broker)
        .await
        .unwrap();
    let transport: Arc<dyn Transport> = Arc::new(transport);
    let mut options = NodeOptions::default();
    options.concurrency = 8;
    options.lease = Duration::from_secs(2);
    options.sweep_interval = Duration::from_millis(500);
    options.suspect_after = Duration::from_secs(2);
    options.hook.max_age = Duration::from_secs(1);
    Node::builder(store, transport)
        .options(options)
        .handler("poison", |_: Running<serde_json::Value>| async {
            std::process::abort()
        })
        .handler("innocent", |_: Running<serde_json::Value>| async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(Outcome::Done)
        })
        .run_until(std::future::pending())
        .await
        .unwrap();
}
