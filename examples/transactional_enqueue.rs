//! A job that exists if and only if its order exists.
//!
//! ```sh
//! cargo run -p jobwire --features postgres --example transactional_enqueue -- \
//!     postgres://user:password@host/database
//! ```
//! Migrates the database, creates a table `example_orders`, and runs a node over the in-process
//! transport: no broker is needed.

use std::sync::Arc;

use jobwire::{InProcessTransport, NewJob, Node, Outcome, PgStore, Running};
use tokio::sync::mpsc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let usage = "usage: transactional_enqueue postgres://user:password@host/database";
    let database = std::env::args().nth(1).ok_or(usage)?;
    for order in run(&database).await? {
        println!("an invoice was sent for order {order}");
    }
    Ok(())
}

/// Returns the orders for which an invoice was sent: 1 and 3, never 2.
pub(crate) async fn run(database: &str) -> Result<Vec<i64>> {
    let store = PgStore::connect(database).await?;
    store.migrate().await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS example_orders (id bigint, placed_at timestamptz DEFAULT now())")
        .execute(store.pool())
        .await?;

    let (sent, mut invoices) = mpsc::unbounded_channel();
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .handler("send-invoice", move |job: Running<i64>| {
            let sent = sent.clone();
            async move {
                sent.send(job.payload)?;
                Ok(Outcome::Done)
            }
        })
        .start()
        .await?;
    let jobs = store.client(node.hook());

    // Jobwire's transaction: `commit` publishes.
    let mut tx = jobs.begin().await?;
    place(&mut tx, 1).await?;
    tx.create(NewJob::of("send-invoice", &1)).await?;
    tx.commit().await?;

    // Rolled back: neither the order nor the job exists, and no hint is published.
    let mut tx = jobs.begin().await?;
    place(&mut tx, 2).await?;
    tx.create(NewJob::of("send-invoice", &2)).await?;
    tx.rollback().await?;

    // Your own transaction: fire the hook after your commit.
    let mut tx = store.pool().begin().await?;
    let mut hook = jobs.hook();
    place(&mut tx, 3).await?;
    hook.create(&mut tx, NewJob::of("send-invoice", &3)).await?;
    tx.commit().await?;
    hook.fire();

    let mut orders = Vec::new();
    while orders.len() < 2 {
        orders.push(invoices.recv().await.ok_or("the node has stopped")?);
    }
    node.stop().await;
    orders.sort_unstable();
    Ok(orders)
}

async fn place(connection: &mut sqlx::PgConnection, order: i64) -> Result<()> {
    sqlx::query("INSERT INTO example_orders (id) VALUES ($1)")
        .bind(order)
        .execute(connection)
        .await?;
    Ok(())
}
