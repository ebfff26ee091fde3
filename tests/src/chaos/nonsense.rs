//! A foreign writer: invalid rows, which no program of this project would write, among the valid
//! ones in every table.
//!
//! Their fate is not judged: they may run, be set aside or stay. The promise is about the other
//! jobs.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use uuid::{Uuid, uuid};

use super::workload::Kind;

/// The correlation id of all nonsense rows, by which the reader leaves them out.
pub const NONSENSE: Uuid = uuid!("00000000-0000-4000-8000-006e6f6e7365");

/// Returns fields of a job's row, as JSON; each makes one row hostile. Fields that a check
/// constraint refuses are tried all the same.
fn oddities(random: &mut SmallRng) -> Vec<Value> {
    let noise = |random: &mut SmallRng, length: usize| -> String {
        (0..length)
            .map(|_| char::from(random.random_range(33..127_u8)))
            .collect()
    };
    let instance = noise(random, 1_024);
    vec![
        json!({ "repeat": "R3/PT1.14S" }),
        json!({ "repeat": "every now and then" }),
        json!({ "repeat": "R4294967296/PT1S" }),
        json!({ "repeat": "R3/P99999999Y", "tenant": noise(random, 1_024) }),
        json!({ "repeat": "R3/PT1S", "repeat_until": "infinity" }),
        json!({ "repeat": "R3/PT1S", "process_definition": noise(random, 3_000) }),
        json!({ "repeat": "R3/PT1S", "retry_policy": "garbage" }),
        json!({ "retry_policy": "PT-1S", "payload": { "fails": 2 } }),
        json!({ "retry_policy": "P1000000Y,P1000000Y", "payload": { "fails": 2 } }),
        json!({ "retries": i32::MAX, "failures": i32::MAX, "payload": { "fails": i64::MAX } }),
        json!({ "retries": i32::MAX, "failures": 1_000_000_000, "payload": { "fails": i64::MAX } }),
        json!({ "retries": 0 }),
        json!({ "revision": i32::MAX }),
        json!({ "revision": 1_000_000_000 }),
        json!({ "hints": 1_000_000_000 }),
        json!({ "seq": i64::MAX }),
        json!({ "seq": i64::MIN }),
        json!({ "priority": i64::MIN }),
        json!({ "kind": "nonsense" }),
        json!({ "type": "no such\ntype \u{1b}[31m" }),
        json!({ "type": "" }),
        json!({ "lane": "no such lane \u{2603}\n" }),
        json!({ "lane": noise(random, 64) }),
        json!({ "lane": "" }),
        json!({ "process_instance": instance, "exclusive": true }),
        json!({ "process_instance": "", "exclusive": true }),
        json!({ "process_instance": "nonsense", "exclusive": true, "type": "no such type" }),
        json!({ "trace_parent": noise(random, 1_000) }),
        json!({ "origin": "\u{1b}]0;\u{7}" }),
        json!({ "due_at": "0001-01-01 00:00:00+00 BC" }),
        json!({ "due_at": "262142-12-31 23:59:59+00" }),
        json!({ "due_at": "-infinity" }),
        json!({ "created_at": "4000-01-01 BC" }),
        json!({ "ready_at": "4000-01-01 BC" }),
        json!({ "ready_at": "262142-12-31 23:59:59+00" }),
        json!({ "custom_values": noise(random, 100_000) }),
        // Rows whose deletion a trigger refuses, as a foreign key of another table would.
        json!({ "execution": "refused as a row's fault" }),
        json!({ "execution": "refused as the database's fault" }),
    ]
}

/// Payloads that handlers do not expect. They are JSON as text, since no decoder would accept all
/// of them.
const PAYLOADS: [&str; 8] = [
    r#""\u0000""#,
    r#""\\u0000""#,
    "1e400",
    r#"{"fails": 1e400}"#,
    r#"{"fails": 1, "fails": 2}"#,
    r#"{"ms": -1}"#,
    "null",
    "[]",
];

/// The row as JSON; missing fields are null.
const ROW: &str = "json_populate_record(NULL::jobwire.job, $1::json)";

/// Writes about `rows` rows, without those that the database refuses.
///
/// # Errors
/// If the database is away.
pub async fn write(
    connection: &mut PgConnection,
    random: &mut SmallRng,
    rows: usize,
) -> Result<(), sqlx::Error> {
    let oddities = oddities(random);
    for _ in 0..rows {
        let odd = oddities.choose(random).cloned().unwrap_or_default();
        let due = odd.get("due_at").is_some() || random.random_bool(0.3);
        let table = if due { "timer_job" } else { "job" };
        let id = Uuid::new_v4();
        let row = row(random, id, odd);
        insert(connection, table, &row).await?;
        if random.random_bool(0.1) {
            let other = ["job", "timer_job", "suspended_job", "dead_letter_job"];
            let other = other.choose(random).copied().unwrap_or("job");
            insert(connection, other, &row).await?;
        }
        if random.random_bool(0.1) {
            lease(connection, random, id).await?;
        }
    }
    Ok(())
}

fn row(random: &mut SmallRng, id: Uuid, odd: Value) -> String {
    let kind = *Kind::ALL.choose(random).unwrap_or(&Kind::Noop);
    let mut row = json!({
        "id": id, "revision": 1, "kind": "message", "type": kind.job_type(),
        "exclusive": false, "retries": 3, "failures": 0, "priority": 0, "correlation_id": NONSENSE,
        "lane": "default", "origin": "sql", "hints": i32::from(random.random_bool(0.2)),
        "seq": random.random_range(1..1_000_000),
        "created_at": "2020-01-01 00:00:00+00", "ready_at": "2020-01-01 00:00:00+00", "due_at": "2020-01-01 00:00:00+00",
    });
    if random.random_bool(0.3)
        && let Some(fields) = row.as_object_mut()
    {
        fields.insert("process_instance".into(), "nonsense".into());
        fields.insert("exclusive".into(), true.into());
    }
    let has_payload = odd.get("payload").is_some();
    if let (Some(fields), Value::Object(odd)) = (row.as_object_mut(), odd) {
        fields.extend(odd);
    }
    let row = row.to_string();
    if has_payload {
        return row;
    }
    let payload = if random.random_bool(0.3) {
        PAYLOADS.choose(random).copied().unwrap_or("{}")
    } else {
        "{}"
    };
    format!("{{\"payload\":{payload},{}", &row[1..])
}

async fn insert(
    connection: &mut PgConnection,
    table: &'static str,
    row: &str,
) -> Result<(), sqlx::Error> {
    let sql = format!("INSERT INTO jobwire.{table} SELECT * FROM {ROW}");
    let inserted = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(row)
        .execute(connection)
        .await;
    refused_is_fine(inserted)
}

/// Writes a lease that no node wrote.
async fn lease(
    connection: &mut PgConnection,
    random: &mut SmallRng,
    job: Uuid,
) -> Result<(), sqlx::Error> {
    let owner = random.random_bool(0.7).then(Uuid::new_v4);
    let expires_at = [
        "4000-01-01 BC",
        "2020-01-01",
        "262142-01-01",
        "infinity",
        "-infinity",
    ];
    let inserted = sqlx::query(
        "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at, strikes)
         SELECT id, $2, $3, clock_timestamp(), $4::timestamptz, $5 FROM jobwire.job WHERE id = $1",
    )
    .bind(job)
    .bind(owner)
    .bind(*[0, 1, -1, i64::MAX, i64::MIN].choose(random).unwrap_or(&0))
    .bind(*expires_at.choose(random).unwrap_or(&"infinity"))
    .bind(*[0, 1, 2, i32::MAX, -1].choose(random).unwrap_or(&0))
    .execute(connection)
    .await;
    refused_is_fine(inserted)
}

fn refused_is_fine<T>(answer: Result<T, sqlx::Error>) -> Result<(), sqlx::Error> {
    match answer {
        Ok(_) | Err(sqlx::Error::Database(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
