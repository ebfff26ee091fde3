//! Jobs of one process instance run one at a time, in creation order; jobs of different instances
//! run at the same time.
//!
//! ```sh
//! cargo run -p jobwire --features sqlite --example exclusive -- sqlite:exclusive.db
//! ```

use std::sync::Arc;
use std::time::Duration;

use jobwire::{
    CommitHook, HookOptions, InProcessTransport, NewJob, Node, Outcome, Running, SqliteStore,
    Transport,
};
use tokio::sync::mpsc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const STEPS: [&str; 4] = ["check", "charge", "pack", "ship"];
const ORDERS: [&str; 3] = ["order-1", "order-2", "order-3"];

#[tokio::main]
async fn main() -> Result<()> {
    let usage = "usage: exclusive sqlite:FILE";
    let database = std::env::args().nth(1).ok_or(usage)?;
    for (order, step) in run(&database).await? {
        println!("{order}: {step}");
    }
    Ok(())
}

/// Returns every order's steps in the order in which they ran.
pub(crate) async fn run(database: &str) -> Result<Vec<(String, String)>> {
    let store = SqliteStore::connect(database).await?;
    store.migrate().await?;
    let transport = InProcessTransport::new();
    let hook = CommitHook::start(transport.publisher(), HookOptions::default());

    // A job with an instance is exclusive in it, unless it is created with `.concurrent()`.
    let mut tx = store.client(hook.clone()).begin().await?;
    for step in STEPS {
        for order in ORDERS {
            tx.create(NewJob::of("step", step).instance(order)).await?;
        }
    }
    tx.commit().await?;

    let (done, mut steps) = mpsc::unbounded_channel();
    let node = Node::builder(store, Arc::new(transport))
        .hook(hook)
        .handler("step", move |job: Running<String>| {
            let done = done.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let order = job.job.process_instance.clone().unwrap_or_default();
                done.send((order, job.payload))?;
                Ok(Outcome::Done)
            }
        })
        .start()
        .await?;
    let mut ran = Vec::new();
    while ran.len() < STEPS.len() * ORDERS.len() {
        ran.push(steps.recv().await.ok_or("the node has stopped")?);
    }
    node.stop().await;
    Ok(ran)
}
