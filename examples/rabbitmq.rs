//! Two nodes share the work of one database; RabbitMQ carries the hints.
//!
//! ```sh
//! cargo run -p jobwire --features postgres,amqp --example rabbitmq -- \
//!     postgres://user:password@host/database amqps://user:password@host/virtual-host
//! ```
//! Both nodes run in this process to keep the example short; in production each is a process of its
//! own.

use std::sync::Arc;
use std::time::Duration;

use jobwire::amqp::{AmqpOptions, AmqpTransport};
use jobwire::{NewJob, Node, Outcome, PgStore, Running, Transport};
use tokio::sync::mpsc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(database), Some(broker)) = (arguments.next(), arguments.next()) else {
        return Err("usage: rabbitmq DATABASE_URL BROKER_URL".into());
    };
    for (job, node) in run(&database, &broker, "jobwire-example").await? {
        println!("job {job} ran on node {node}");
    }
    Ok(())
}

/// Returns each job with the node that ran it, in creation order.
pub(crate) async fn run(database: &str, broker: &str, prefix: &str) -> Result<Vec<(i64, char)>> {
    let store = PgStore::connect(database).await?;
    store.migrate().await?;

    let (done, mut ran) = mpsc::unbounded_channel();
    let mut nodes = Vec::new();
    for name in ['A', 'B'] {
        let options = AmqpOptions::default().prefix(prefix.to_owned());
        let transport = Arc::new(AmqpTransport::connect(broker, options).await?);
        let done = done.clone();
        let node = Node::builder(store.clone(), transport.clone())
            .handler("greet", move |job: Running<i64>| {
                let done = done.clone();
                async move {
                    done.send((job.payload, name))?;
                    Ok(Outcome::Done)
                }
            })
            .start()
            .await?;
        nodes.push((node, transport));
    }

    let jobs = store.client(nodes[0].0.hook());
    let mut tx = jobs.begin().await?;
    tx.create_many((1..=20).map(|n| NewJob::of("greet", &n)).collect())
        .await?;
    tx.commit().await?;

    let mut all = Vec::new();
    while all.len() < 20 {
        all.push(ran.recv().await.ok_or("the nodes have stopped")?);
    }
    for (node, transport) in nodes {
        node.stop().await;
        transport.close(Duration::from_secs(5)).await;
    }
    all.sort_unstable();
    Ok(all)
}
