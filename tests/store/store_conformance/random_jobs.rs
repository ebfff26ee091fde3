//! Random jobs of every state, for queries.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use jobwire_core::{JobId, NodeId};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use uuid::Uuid;

use super::world::{SqlBench, World};

pub(super) const JOBS: usize = 80;
const TABLES: [&str; 4] = ["job", "timer_job", "suspended_job", "dead_letter_job"];
pub(super) const INSTANCES: [&str; 4] = ["i", "I", "i2", "ö"];
pub(super) const DEFINITIONS: [&str; 5] = [
    "invoice",
    "invoice:1:a",
    "invoice:2",
    "invoices:1",
    "in%oice:1",
];
pub(super) const TENANTS: [&str; 4] = ["eu-1", "eu-2", "EU-1", "us_1"];
pub(super) const CATEGORIES: [&str; 3] = ["a", "b*", "[c]"];
pub(super) const MESSAGES: [&str; 4] = ["no luck", "No luck", "50% \\ gone", "line\nbreak"];
pub(super) const TYPES: [&str; 3] = ["work", "other-work", "work-2"];
pub(super) const KEYS: [&str; 3] = ["k1", "k2", "k3"];
pub(super) const PATTERNS: [&str; 9] = [
    "%", "eu-%", "EU%", "___1", "us\\_1", "%luck", "50\\%%", "%\\\\%", "[%]",
];

pub(super) fn node(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

/// Returns a random moment among a few, in whole seconds around now.
pub(super) fn moment(random: &mut SmallRng, start: DateTime<Utc>) -> DateTime<Utc> {
    start + TimeDelta::hours(random.random_range(-3..3)) + TimeDelta::minutes(30)
}

fn maybe<T: Copy>(random: &mut SmallRng, among: &[T]) -> Option<T> {
    among
        .choose(random)
        .copied()
        .filter(|_| random.random_bool(0.7))
}

pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn custom_values() -> [Value; 8] {
    [
        json!({}),
        json!({ "order": 17 }),
        json!({ "order": 17.0, "tags": ["a", "b", ["c"]] }),
        json!({ "order": "17", "tags": [] }),
        json!({ "order": true, "a": { "b": [1, { "c": null, "d": 2.5 }] } }),
        json!({ "order": null, "a": { "b": {} } }),
        json!({ "x\"'y\\": "é\n😀", "big": 9_007_199_254_740_993_i64 }),
        json!([1, { "order": 17 }]),
    ]
}

pub(super) fn wanted_values() -> [Value; 12] {
    [
        json!({}),
        json!({ "order": 17 }),
        json!({ "order": "17" }),
        json!({ "order": true }),
        json!({ "order": null }),
        json!({ "tags": ["b"] }),
        json!({ "tags": [["c"], "a"] }),
        json!({ "tags": [] }),
        json!({ "a": { "b": [{ "c": null }] } }),
        json!({ "a": { "b": [{ "d": 2.5 }, 1] } }),
        json!({ "a": {} }),
        json!({ "x\"'y\\": "é\n😀", "big": 9_007_199_254_740_993_i64 }),
    ]
}

/// Creates random jobs of every state with their leases and unique keys, and two suspensions.
/// Returns the unique keys.
pub(super) async fn populate<S: SqlBench>(
    w: &World<S>,
    random: &mut SmallRng,
    start: DateTime<Utc>,
) -> HashMap<JobId, &'static str> {
    let is_postgres = w.store.name() == "postgres";
    let written = |at: DateTime<Utc>| match is_postgres {
        true => format!("timestamptz '{}'", at.to_rfc3339()),
        false => at.timestamp_micros().to_string(),
    };
    let flag = |is: bool| match (is_postgres, is) {
        (true, is) => is.to_string(),
        (false, is) => u8::from(is).to_string(),
    };
    let text = |text: Option<&str>| text.map_or("NULL".to_owned(), quoted);
    let mut keys = HashMap::new();
    for n in 0..JOBS {
        let table = TABLES[n % TABLES.len()];
        let id = JobId::generate();
        let instance = maybe(random, &INSTANCES);
        let due = (table == "timer_job" || random.random_bool(0.5))
            .then(|| written(moment(random, start)));
        let custom = random.random_bool(0.8).then(|| {
            let values = custom_values();
            quoted(&values[random.random_range(0..values.len())].to_string())
        });
        let correlation = Uuid::from_u128(random.random_range(1..5));
        let row = [
            ("id", format!("'{id}'")),
            ("correlation_id", format!("'{correlation}'")),
            // Another order than that of the ids.
            ("seq", ((n * 37) % JOBS).to_string()),
            (
                "kind",
                quoted(["message", "timer", "history"][random.random_range(0..3)]),
            ),
            ("type", quoted(TYPES[random.random_range(0..TYPES.len())])),
            ("process_instance", text(instance)),
            ("execution", text(maybe(random, &["e1", "e2"]))),
            ("process_definition", text(maybe(random, &DEFINITIONS))),
            ("element", text(maybe(random, &["start", "end"]))),
            ("tenant", text(maybe(random, &TENANTS))),
            ("category", text(maybe(random, &CATEGORIES))),
            ("deployment", text(maybe(random, &["d1", "d2"]))),
            ("priority", random.random_range(-2..3).to_string()),
            (
                "exclusive",
                flag(instance.is_some() && random.random_bool(0.5)),
            ),
            ("retries", random.random_range(0..3).to_string()),
            ("due_at", due.unwrap_or_else(|| "NULL".to_owned())),
            ("created_at", written(moment(random, start))),
            (
                "lane",
                quoted(["default", "mail"][random.random_range(0..2)]),
            ),
            ("exception_message", text(maybe(random, &MESSAGES))),
            ("custom_values", custom.unwrap_or_else(|| "NULL".to_owned())),
        ];
        let (names, values): (Vec<&str>, Vec<String>) = row.into_iter().unzip();
        let (names, values) = (names.join(", "), values.join(", "));
        w.store
            .execute(&format!(
                "INSERT INTO {{s}}{table} ({names}) VALUES ({values})"
            ))
            .await;
        if table == "job" && random.random_bool(0.6) {
            let owner = match random.random_range(0..3) {
                0 => "NULL".to_owned(),
                owner => format!("'{}'", node(owner)),
            };
            let end = ["- {second}", "+ 600 * {second}", "+ 200000 * {second}"];
            let end = end[random.random_range(0..end.len())];
            w.store
                .execute(&format!(
                    "INSERT INTO {{s}}job_lease (job_id, owner, fence, locked_at, expires_at)
                     VALUES ('{id}', {owner}, {n}, {{now}}, {{now}} {end})"
                ))
                .await;
        }
        if let Some(key) = maybe(random, &KEYS).filter(|_| n % 5 == 0) {
            keys.insert(id, key);
            let sql = match n % 2 {
                0 => format!(
                    "INSERT INTO {{s}}unique_job (type, tenant, key, job_id, dead_letters, seen_at)
                     VALUES ('t{n}', '', '{key}', '{id}', {}, {{now}})",
                    flag(false)
                ),
                _ => format!(
                    "INSERT INTO {{s}}unique_dead_letter (type, tenant, key, job_id)
                     VALUES ('t{n}', '', '{key}', '{id}')"
                ),
            };
            w.store.execute(&sql).await;
        }
    }
    w.store
        .execute(
            "INSERT INTO {s}suspension (scope, value, since)
             VALUES ('tenant', 'eu-1', {now}), ('process_instance', 'ö', {now}), ('pause_type', 'work', {now})",
        )
        .await;
    keys
}
