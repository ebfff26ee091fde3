//! `jobwire bench` with small workloads: each measures and checks itself. Speed is not tested.

mod comparison;
mod refused;

use std::time::Duration;

use jobwire_tests::{Program, Scratch, eventually, shared};
use serde_json::Value;
use sqlx::{Connection, PgConnection};

use super::{fails, jobwire};

/// The time that a slow machine needs for some hundred jobs.
const PATIENCE: Duration = Duration::from_secs(120);

async fn report(program: Program) -> Value {
    let (status, lines) = program.run(PATIENCE).await;
    let said = lines.join("\n");
    assert!(status.success(), "{status}: {said}");
    // The report follows the log lines of its nodes.
    let at = lines.iter().position(|line| line == "{" || line == "[");
    let json = lines[at.expect("a report")..].join("\n");
    serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// A fleet's database and broker, for one workload after another.
struct Fleet {
    home: Scratch,
    database: String,
    broker: String,
}

impl Fleet {
    async fn on(broker: String) -> Self {
        let database = shared::postgres().await.create_database().await;
        let mut connection = PgConnection::connect(&database).await.unwrap();
        sqlx::raw_sql("CREATE EXTENSION pg_stat_statements")
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        Self {
            home: Scratch::new(),
            database,
            broker,
        }
    }

    async fn on_rabbitmq() -> Self {
        Self::on(shared::rabbitmq().await.space().await.url).await
    }

    async fn bench(&self, arguments: &[&str]) -> Value {
        let program = jobwire(&self.home, &["bench", "--json"])
            .args(arguments)
            .env("JOBWIRE_DATABASE_URL", &self.database)
            .env("JOBWIRE_BROKER_URL", &self.broker);
        report(program).await
    }
}

/// Runs a bench on SQLite with one node.
async fn embedded(home: &Scratch, arguments: &[&str]) -> Value {
    report(jobwire(home, &["bench", "--json"]).args(arguments)).await
}

fn number(report: &Value, path: &str) -> f64 {
    let found = report.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{path} in {report}"))
}

fn assert_percentiles(report: &Value, of: &str) {
    let at = |rank: &str| number(report, &format!("/{of}/{rank}"));
    let ranks = ["p50", "p95", "p99", "p999", "max"].map(at);
    assert!(ranks.is_sorted(), "{of} in {report}");
}

#[tokio::test]
async fn a_bench_measures_rabbitmq() {
    let fleet = Fleet::on_rabbitmq().await;
    let cpu = |group| format!("/cost/{group}_cpu_micros_per_job");
    // The bench adds up the time of all servers of a name. If a server of another test ends
    // meanwhile, that time is unknown.
    let drained = eventually("a drain while no other server ends", PATIENCE, async || {
        let drained = fleet.bench(&["drain", "--jobs", "300", "--nodes", "2"]);
        let drained = drained.await;
        let known = |group| drained.pointer(&cpu(group)).is_some_and(Value::is_number);
        (known("database") && known("broker")).then_some(drained)
    });
    let drained = drained.await;
    assert_eq!(number(&drained, "/jobs"), 300.0);
    assert!(number(&drained, "/jobs_per_second") > 0.0);
    for cost in [
        "statements_per_job",
        // The nodes connect, and one runs a leader cycle.
        "housekeeping_statements_per_job",
        "wal_bytes_per_job",
        "node_memory_mib",
        "node_peak_memory_mib",
    ] {
        assert!(number(&drained, &format!("/cost/{cost}")) > 0.0, "{cost}");
    }
    // So little that the kernel may report no time at all.
    for group in ["database", "broker", "nodes", "bench", "machine"] {
        number(&drained, &cpu(group));
    }
    assert!(number(&drained, "/rows/inserted_per_job") > 0.0);
    assert!(number(&drained, "/rows/dead_per_job") > 0.0);
    let notes = drained["notes"].to_string();
    assert!(!notes.contains("not measured"), "{notes}");

    let steady = fleet
        .bench(&["steady", "--rate", "20", "--seconds", "2"])
        .await;
    assert_eq!(number(&steady, "/jobs"), 40.0);
    assert_percentiles(&steady, "commit_to_start");
    assert_percentiles(&steady, "arrival_to_start");
    assert!(number(&steady, "/arrival_to_start/p50") > 0.0);
    let after_creation = number(&steady, "/cost/statements_per_job_after_creation");
    assert!(after_creation < number(&steady, "/cost/statements_per_job"));
    assert!(number(&steady, "/cost/housekeeping_statements_per_job") < after_creation);
}

#[tokio::test]
async fn a_bench_measures_kafka() {
    let space = shared::kafka().await.space();
    let fleet = Fleet::on(format!("{}/{}", space.url, space.prefix)).await;
    let drained = fleet
        .bench(&["drain", "--jobs", "300", "--nodes", "2"])
        .await;
    assert_eq!(number(&drained, "/jobs"), 300.0);
    let steady = fleet
        .bench(&["steady", "--rate", "20", "--seconds", "2"])
        .await;
    assert_eq!(number(&steady, "/jobs"), 40.0);
}

#[tokio::test]
async fn a_bench_measures_jobs_that_are_created_while_nodes_run() {
    let fleet = Fleet::on_rabbitmq().await;
    let burst = ["burst", "--jobs", "60", "--clients", "4", "--nodes", "2"];
    let burst = fleet.bench(&burst).await;
    assert_eq!(number(&burst, "/jobs"), 60.0);
    assert_percentiles(&burst, "commit_to_start");
    assert_percentiles(&burst, "arrival_to_start");
    let continuous = [
        "continuous",
        "--seconds",
        "1",
        "--clients",
        "2",
        "--per-transaction",
        "10",
        "--ahead",
        "50",
    ];
    let continuous = fleet.bench(&continuous).await;
    assert!(number(&continuous, "/jobs") >= 10.0);
    assert!(number(&continuous, "/seconds") > 0.0);
    assert_percentiles(&continuous, "commit_to_start");
}

#[tokio::test]
async fn a_bench_measures_timers_and_exclusive_jobs() {
    let fleet = Fleet::on_rabbitmq().await;
    let timers = fleet
        .bench(&["timers", "--jobs", "200", "--ahead", "5"])
        .await;
    assert_eq!(number(&timers, "/jobs"), 200.0);
    assert_percentiles(&timers, "due_to_start");
    let spread = [
        "timers", "--jobs", "50", "--ahead", "5", "--spread", "2", "--nodes", "2",
    ];
    let spread = fleet.bench(&spread).await;
    assert_percentiles(&spread, "due_to_start");
    let exclusive = [
        "exclusive",
        "--instances",
        "20",
        "--jobs",
        "5",
        "--nodes",
        "2",
    ];
    let exclusive = fleet.bench(&exclusive).await;
    assert_eq!(number(&exclusive, "/jobs"), 100.0);
}

#[tokio::test]
async fn a_bench_compares_backlogs_and_fleets() {
    let fleet = Fleet::on_rabbitmq().await;
    let backlogs = ["backlog", "--waiting", "50,150", "--jobs", "60"];
    let backlogs = fleet.bench(&backlogs).await;
    let of = |path: &str| [0, 1].map(|run| number(&backlogs, &format!("/{run}/{path}")));
    assert_eq!(of("waiting"), [50.0, 150.0]);
    assert_eq!(of("jobs"), [50.0, 60.0]);
    assert!(of("cost/node_peak_memory_mib").iter().all(|mib| *mib > 0.0));

    let fleets = fleet
        .bench(&["fleet", "--nodes", "1,2", "--jobs", "100"])
        .await;
    let of = |path: &str| [0, 1].map(|run| number(&fleets, &format!("/{run}/{path}")));
    assert_eq!(of("nodes"), [1.0, 2.0]);
    let [first, second] = of("jobs_per_second");
    let [own, ratio] = of("ratio");
    assert_eq!(own, 1.0);
    assert!((ratio - second / first).abs() < 0.000_001, "{fleets}");
    let load = [
        "fleet",
        "--nodes",
        "2",
        "--load",
        "continuous",
        "--seconds",
        "1",
    ];
    assert_eq!(number(&fleet.bench(&load).await, "/0/nodes"), 2.0);
}

#[tokio::test]
async fn a_bench_measures_a_fleet_that_idles() {
    let fleet = Fleet::on_rabbitmq().await;
    let idle = fleet
        .bench(&["idle", "--nodes", "2", "--seconds", "2"])
        .await;
    assert_eq!(number(&idle, "/nodes"), 2.0);
    let seconds = number(&idle, "/seconds");
    let statements = number(&idle, "/statements");
    let per_minute = number(&idle, "/statements_per_minute");
    assert!(
        (per_minute - statements * 60.0 / seconds).abs() < 0.001,
        "{idle}"
    );
    assert!(number(&idle, "/node_memory_mib") > 0.0);
}

#[tokio::test]
async fn a_bench_runs_embedded_and_says_what_it_cannot_measure() {
    let home = Scratch::new();
    let drained = embedded(&home, &["drain", "--jobs", "200"]).await;
    assert_eq!(number(&drained, "/jobs"), 200.0);
    for missing in [
        "/cost/statements_per_job",
        "/cost/wal_bytes_per_job",
        "/cost/database_cpu_micros_per_job",
        "/cost/broker_cpu_micros_per_job",
        "/rows",
    ] {
        assert_eq!(drained.pointer(missing), Some(&Value::Null), "{missing}");
    }
    let notes = drained["notes"].to_string();
    assert!(notes.contains("SQLite runs inside the nodes"), "{notes}");
    let timers = embedded(&home, &["timers", "--jobs", "20", "--ahead", "3"]).await;
    assert_percentiles(&timers, "due_to_start");
    let exclusive = ["exclusive", "--instances", "5", "--jobs", "4"];
    assert_eq!(number(&embedded(&home, &exclusive).await, "/jobs"), 20.0);
}

#[tokio::test]
async fn a_bench_takes_nobodys_jobs() {
    let home = Scratch::new();
    let _ = home.write("in.jsonl", "{\"type\":\"noop\"}\n");
    super::succeeds(jobwire(&home, &["enqueue", "in.jsonl"])).await;
    let said = fails(jobwire(&home, &["bench", "drain", "--jobs", "1"]), 2).await;
    assert!(said.contains("the database has 1 jobs"), "{said}");
}
