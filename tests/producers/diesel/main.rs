//! Creates jobs in a transaction of Diesel.

use chrono::{DateTime, Duration, Utc};
use diesel::prelude::*;
use diesel::result::Error;
use diesel::sql_query;
use diesel::sql_types::{Bool, Integer, Json, Text, Timestamptz, Uuid as SqlUuid};
use serde_json::{Value, json};
use uuid::Uuid;

const INVOICE: &str = "SELECT jobwire.create_job(type => 'send-invoice', payload => $1,
    process_instance => $2, retries => 5, tenant => 'acme') AS id, true AS created";
const REMINDER: &str = "SELECT jobwire.create_job(type => 'send-reminder', payload => $1,
    due_at => $2, retry_policy => 'exponential(1s, 2, 1h)', tenant => 'acme')";
const SYNC: &str = "SELECT id, created FROM jobwire.create_unique_job(type => 'sync-customer',
    unique_key => $1, payload => $2, tenant => 'acme')";

#[derive(QueryableByName)]
struct Job {
    #[diesel(sql_type = SqlUuid)]
    id: Uuid,
    #[diesel(sql_type = Bool)]
    created: bool,
}

fn place_order(tx: &mut PgConnection, order: i32, customer: i32) -> QueryResult<()> {
    let insert = "INSERT INTO orders (number) VALUES ($1)";
    sql_query(insert).bind::<Integer, _>(order).execute(tx)?;

    let payload = json!({ "order": order });
    let invoice: Job = sql_query(INVOICE)
        .bind::<Json, Value>(payload.clone())
        .bind::<Text, _>(format!("order-{order}"))
        .get_result(tx)?;
    println!("order {order}: job {}", invoice.id);

    let due: DateTime<Utc> = Utc::now() + Duration::days(3);
    sql_query(REMINDER)
        .bind::<Json, Value>(payload)
        .bind::<Timestamptz, _>(due)
        .execute(tx)?;

    let sync: Job = sql_query(SYNC)
        .bind::<Text, _>(format!("customer-{customer}"))
        .bind::<Json, Value>(json!({ "customer": customer }))
        .get_result(tx)?;
    println!(
        "customer {customer}: job {}, created: {}",
        sync.id, sync.created
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut db = PgConnection::establish(&std::env::var("DATABASE_URL")?)?;

    db.transaction(|tx| place_order(tx, 17, 4))?;

    let undone = db.transaction(|tx| {
        place_order(tx, 18, 5)?;
        Err::<(), _>(Error::RollbackTransaction) // neither the order nor its jobs exist
    });
    assert_eq!(undone, Err(Error::RollbackTransaction));

    // The job of customer 4 exists already.
    db.transaction(|tx| place_order(tx, 19, 4))?;

    let refused = "SELECT jobwire.create_job(type => 'send-invoice', retries => 0)";
    match sql_query(refused).execute(&mut db) {
        Err(Error::DatabaseError(_, told)) => {
            println!(
                "field {}: {}",
                told.column_name().unwrap_or_default(),
                told.message()
            );
        }
        other => return Err(format!("it was not refused: {other:?}").into()),
    }
    Ok(())
}
