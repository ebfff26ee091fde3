//! Creates jobs in a transaction of SeaORM.

use chrono::{Duration, Utc};
use sea_orm::prelude::{Json, Uuid};
use sea_orm::{
    ConnectionTrait, Database, DatabaseTransaction, DbBackend, DbErr, RuntimeErr, Statement,
    TransactionTrait, Value,
};

const INVOICE: &str = "SELECT jobwire.create_job(type => 'send-invoice', payload => $1::json,
    process_instance => $2, retries => 5, tenant => 'acme') AS id";
const REMINDER: &str = "SELECT jobwire.create_job(type => 'send-reminder', payload => $1::json,
    due_at => $2, retry_policy => 'exponential(1s, 2, 1h)', tenant => 'acme')";
const SYNC: &str = "SELECT id, created FROM jobwire.create_unique_job(type => 'sync-customer',
    unique_key => $1, payload => $2::json, tenant => 'acme')";

fn sql(text: &str, values: impl IntoIterator<Item = Value>) -> Statement {
    Statement::from_sql_and_values(DbBackend::Postgres, text, values)
}

async fn place_order(tx: &DatabaseTransaction, order: i32, customer: i32) -> Result<(), DbErr> {
    let insert = "INSERT INTO orders (number) VALUES ($1)";
    tx.execute_raw(sql(insert, [order.into()])).await?;

    let payload: Json = [("order".to_owned(), Json::from(order))]
        .into_iter()
        .collect();
    let instance = format!("order-{order}");
    let statement = sql(INVOICE, [payload.clone().into(), instance.into()]);
    let row = tx.query_one_raw(statement).await?;
    let row = row.ok_or(DbErr::RecordNotFound("the job's id".to_owned()))?;
    let invoice: Uuid = row.try_get("", "id")?;
    println!("order {order}: job {invoice}");

    let due = Utc::now() + Duration::days(3);
    tx.execute_raw(sql(REMINDER, [payload.into(), due.into()]))
        .await?;

    let key = format!("customer-{customer}");
    let payload: Json = [("customer".to_owned(), Json::from(customer))]
        .into_iter()
        .collect();
    let row = tx
        .query_one_raw(sql(SYNC, [key.into(), payload.into()]))
        .await?;
    let row = row.ok_or(DbErr::RecordNotFound("the job's id".to_owned()))?;
    let (id, created): (Uuid, bool) = (row.try_get("", "id")?, row.try_get("", "created")?);
    println!("customer {customer}: job {id}, created: {created}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let db = Database::connect(std::env::var("DATABASE_URL")?).await?;

    let tx = db.begin().await?;
    place_order(&tx, 17, 4).await?;
    tx.commit().await?;

    let tx = db.begin().await?;
    place_order(&tx, 18, 5).await?;
    tx.rollback().await?; // neither the order nor its jobs exist

    let tx = db.begin().await?;
    place_order(&tx, 19, 4).await?; // the job of customer 4 exists already
    tx.commit().await?;

    let refused = "SELECT jobwire.create_job(type => 'send-invoice', retries => 0)";
    match db.execute_unprepared(refused).await {
        Err(DbErr::Exec(RuntimeErr::SqlxError(error))) => {
            let told = error.as_database_error().ok_or("no answer of the server")?;
            println!(
                "SQLSTATE {}: {}",
                told.code().unwrap_or_default(),
                told.message()
            );
        }
        other => return Err(format!("it was not refused: {other:?}").into()),
    }
    Ok(())
}
