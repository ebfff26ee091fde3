//! A node for the tests of quarantine. The type `poison` ends the process as an out-of-memory kill
//! would; the type `innocent` sleeps a moment.

use std::sync::Arc;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::{HandlerOptions, Node, NodeOptions, Outcome, PgStore, Running, Transport};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = PgStore::connect(&std::env::var("NODE_DATABASE")?).await?;
    let broker = AmqpOptions::default().prefix(std::env::var("NODE_PREFIX")?);
    let transport = AmqpTransport::connect(&std::env::var("NODE_BROKER")?, broker).await?;
    let transport: Arc<dyn Transport> = Arc::new(transport);
    let mut options = NodeOptions::default();
    options.concurrency = 8;
    // A machine that stalls for longer than this counts as a death, also against an innocent job
    // that runs alone.
    options.lease = Duration::from_secs(10);
    options.sweep_interval = Duration::from_millis(500);
    options.suspect_after = Duration::from_secs(2);
    options.hook.max_age = Duration::from_secs(1);
    let recorded = HandlerOptions::default().keep_attempts(Duration::from_secs(3_600));
    Node::builder(store, transport)
        .options(options)
        .handler_with::<_, _, _, ()>("poison", recorded, |_: Running<serde_json::Value>| async {
            std::process::abort()
        })
        .handler("innocent", |_: Running<serde_json::Value>| async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(Outcome::Done)
        })
        .run_until(std::future::pending())
        .await?;
    Ok(())
}
