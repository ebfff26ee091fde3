//! `jobwire bench`, small: that it measures and checks itself; never how quick it is.

use std::time::Duration;

use jobwire_tests::{Program, Scratch, shared};
use serde_json::Value;

use super::{fails, jobwire};

/// Everything that a slow machine needs for some hundred jobs.
const PATIENCE: Duration = Duration::from_secs(120);

async fn report(program: Program) -> Value {
    let (status, lines) = program.run(PATIENCE).await;
    let said = lines.join("\n");
    assert!(status.success(), "{status}: {said}");
    // Behind what its nodes may have logged.
    let at = lines.iter().position(|line| line == "{");
    let json = lines[at.expect("a report")..].join("\n");
    serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {said}"))
}

async fn on(broker: &str, arguments: &[&str]) -> Value {
    let home = Scratch::new();
    let database = shared::postgres().await.create_database().await;
    let program = jobwire(&home, &["bench", "--json"])
        .args(arguments)
        .env("JOBWIRE_DATABASE_URL", &database)
        .env("JOBWIRE_BROKER_URL", broker);
    report(program).await
}

fn number(report: &Value, path: &str) -> f64 {
    let found = report.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{path} in {report}"))
}

#[tokio::test]
async fn a_bench_measures_rabbitmq() {
    let broker = shared::rabbitmq().await.space().await.url;
    let drained = on(&broker, &["drain", "--jobs", "300", "--nodes", "2"]).await;
    assert_eq!(number(&drained, "/jobs"), 300.0);
    assert!(number(&drained, "/jobs_per_second") > 0.0);
    assert!(number(&drained, "/cost/wal_bytes_per_job") > 0.0);
    let steady = on(&broker, &["steady", "--rate", "20", "--seconds", "2"]).await;
    assert_eq!(number(&steady, "/jobs"), 40.0);
    assert!(number(&steady, "/commit_to_start/p50") <= number(&steady, "/commit_to_start/max"));
    assert!(number(&steady, "/arrival_to_start/p50") > 0.0);
}

#[tokio::test]
async fn a_bench_measures_kafka() {
    let space = shared::kafka().await.space();
    let broker = format!("{}/{}", space.url, space.prefix);
    let drained = on(&broker, &["drain", "--jobs", "300", "--nodes", "2"]).await;
    assert_eq!(number(&drained, "/jobs"), 300.0);
    let steady = on(&broker, &["steady", "--rate", "20", "--seconds", "2"]).await;
    assert_eq!(number(&steady, "/jobs"), 40.0);
}

#[tokio::test]
async fn a_bench_runs_embedded_and_takes_nobodys_jobs() {
    let home = Scratch::new();
    let drained = report(jobwire(
        &home,
        &["bench", "drain", "--jobs", "200", "--json"],
    ))
    .await;
    assert_eq!(number(&drained, "/jobs"), 200.0);
    let _ = home.write("in.jsonl", "{\"type\":\"noop\"}\n");
    super::succeeds(jobwire(&home, &["enqueue", "in.jsonl"])).await;
    let said = fails(jobwire(&home, &["bench", "drain", "--jobs", "1"]), 2).await;
    assert!(said.contains("holds 1 jobs"), "{said}");
    let said = fails(jobwire(&home, &["bench", "steady"]), 2).await;
    assert!(said.contains("--broker"), "{said}");
}
