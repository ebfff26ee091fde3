//! Creates jobs in a transaction of tokio-postgres.

use chrono::{Duration, Utc};
use serde_json::json;
use tokio_postgres::{Error, NoTls, Transaction};
use uuid::Uuid;

const INVOICE: &str = "SELECT jobwire.create_job(type => 'send-invoice', payload => $1::json,
    process_instance => $2, retries => 5, tenant => 'acme')";
const REMINDER: &str = "SELECT jobwire.create_job(type => 'send-reminder', payload => $1::json,
    due_at => $2, retry_policy => 'exponential(1s, 2, 1h)', tenant => 'acme')";
const SYNC: &str = "SELECT id, created FROM jobwire.create_unique_job(type => 'sync-customer',
    unique_key => $1, payload => $2::json, tenant => 'acme')";

async fn place_order(tx: &Transaction<'_>, order: i32, customer: i32) -> Result<(), Error> {
    let insert = "INSERT INTO orders (number) VALUES ($1)";
    tx.execute(insert, &[&order]).await?;

    let payload = json!({ "order": order });
    let instance = format!("order-{order}");
    let row = tx.query_one(INVOICE, &[&payload, &instance]).await?;
    let invoice: Uuid = row.get(0);
    println!("order {order}: job {invoice}");

    let due = Utc::now() + Duration::days(3);
    tx.execute(REMINDER, &[&payload, &due]).await?;

    let (key, payload) = (
        format!("customer-{customer}"),
        json!({ "customer": customer }),
    );
    let row = tx.query_one(SYNC, &[&key, &payload]).await?;
    let (id, created): (Uuid, bool) = (row.get("id"), row.get("created"));
    println!("customer {customer}: job {id}, created: {created}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);

    let tx = client.transaction().await?;
    place_order(&tx, 17, 4).await?;
    tx.commit().await?;

    let tx = client.transaction().await?;
    place_order(&tx, 18, 5).await?;
    tx.rollback().await?; // neither the order nor its jobs exist

    let tx = client.transaction().await?;
    place_order(&tx, 19, 4).await?; // the job of customer 4 exists already
    tx.commit().await?;

    let refused = "SELECT jobwire.create_job(type => 'send-invoice', retries => 0)";
    let error = client
        .execute(refused, &[])
        .await
        .err()
        .ok_or("it was not refused")?;
    let told = error.as_db_error().ok_or("no answer of the server")?;
    println!("SQLSTATE {}: {}", told.code().code(), told.message());
    Ok(())
}
