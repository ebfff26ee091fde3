//! `jobwire demo`: its report adds up in every mode, and a replay that ends early leaves no process
//! behind. Budget: 90 s.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use jobwire_tests::shared::{self, Space};
use jobwire_tests::{Program, Running, Scratch, Signal, eventually};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// Writes a log of `cases` interleaved cases with `each` events; each event is a second after the
/// one before it.
fn log(scratch: &Scratch, cases: usize, each: usize) -> String {
    let mut text = String::new();
    for n in 0..cases * each {
        let (case, position) = (n % cases, n / cases + 1);
        let at = chrono::DateTime::UNIX_EPOCH + chrono::Duration::seconds(n.try_into().unwrap());
        writeln!(
            text,
            r#"{{"type": "Step {position}", "process_instance": "case-{case}", "sequence": {position}, "at": "{}", "resource": "R"}}"#,
            at.to_rfc3339()
        )
        .unwrap();
    }
    scratch.write("log.jsonl", text).display().to_string()
}

fn demo(scratch: &Scratch, arguments: &[&str]) -> Program {
    Program::jobwire()
        .in_directory(scratch.path())
        .env("TMPDIR", scratch.path())
        .args(["demo"])
        .args(arguments)
}

/// A demo with PostgreSQL and RabbitMQ, and leases short enough for takeovers within seconds.
fn fleet(scratch: &Scratch, database: &str, space: &Space, arguments: &[&str]) -> Program {
    demo(scratch, arguments)
        .env("JOBWIRE_DATABASE_URL", database)
        .env("JOBWIRE_BROKER_URL", &space.url)
        .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
        .env("JOBWIRE_LEASE", "5s")
        // Short leases expire on a busy machine even if their nodes live.
        .env("JOBWIRE_QUARANTINE_AFTER", "1000")
        .env("JOBWIRE_SWEEP_INTERVAL", "500ms")
        .env("JOBWIRE_HINT_MAX_AGE", "1s")
        .env("JOBWIRE_SUSPECT_AFTER", "1s")
        .env("JOBWIRE_AMQP_CONFIRM_TIMEOUT", "1s")
        .env("JOBWIRE_KAFKA_CONFIRM_TIMEOUT", "1s")
}

/// Returns the report of `--json`, without progress lines and logs.
fn account(lines: &[String]) -> Value {
    let lines: Vec<&str> = lines
        .iter()
        .map(String::as_str)
        .filter(|line| !line.contains(" s  replay: ") && !line.contains(" s  permits: "))
        .filter(|line| line.starts_with([' ', '{', '}']))
        .collect();
    let begin = lines
        .iter()
        .position(|line| *line == "{")
        .unwrap_or_default();
    let end = lines
        .iter()
        .rposition(|line| *line == "}")
        .unwrap_or_default();
    let text = lines.get(begin..=end).unwrap_or_default().join("\n");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("no account ({e}): {lines:?}"))
}

async fn succeeds(program: Program) -> Value {
    let (status, lines) = program.run(SOON).await;
    assert!(status.success(), "{status}: {}", lines.join("\n"));
    let account = account(&lines);
    let checks = account["checks"].as_array().unwrap();
    assert!(
        checks.len() >= 6 && checks.iter().all(|c| c["holds"] == true),
        "{account:#}"
    );
    account
}

async fn fails(program: Program, code: i32, said: &str) {
    let (status, lines) = program.run(SOON).await;
    let lines = lines.join("\n");
    assert_eq!(status.code(), Some(code), "{lines}");
    assert!(lines.contains(said), "{lines}");
}

fn assert_replayed(account: &Value, events: u64) {
    assert_eq!(account["created"], events, "{account:#}");
    assert_eq!(account["executed"], events, "{account:#}");
    assert_eq!(account["left"], 0, "{account:#}");
}

/// Returns the nodes of this database, found by the URL in their environment.
fn processes_of(database: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in Path::new("/proc").read_dir().unwrap().flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_node = arguments.ends_with(b"\0run\0");
        if is_node
            && environment
                .windows(database.len())
                .any(|part| part == database.as_bytes())
        {
            found.push(Pid::from_raw(id));
        }
    }
    found
}

async fn eventually_no_process_of(database: &str) {
    eventually("the demo's nodes to end", SOON, || async {
        processes_of(database).is_empty().then_some(())
    })
    .await;
}

/// Waits until the replay has run some jobs.
async fn under_way(running: &Running) {
    eventually("some jobs to run", SOON, || async {
        let lines = running.lines().all();
        let told = |line: &String| line.contains(" s  replay: ") && !line.contains("replay: 0 ");
        lines.iter().any(told).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_demo_needs_nothing_leaves_nothing_and_adds_up() {
    let scratch = Scratch::new();
    let account = succeeds(demo(&scratch, &["--instances", "40", "--json"])).await;
    assert_eq!(account["created"], 320);
    assert_eq!(account["rolled_back"], 4);
    assert_eq!(account["executed"], 318);
    assert_eq!(account["dead_lettered"], 2);
    assert_eq!(account["timers"], 80);
    assert!(account["retried"].as_u64().unwrap() >= 9, "{account:#}");
    let left: Vec<_> = scratch.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn the_demo_explains_itself_and_warns_of_nothing_that_it_does_on_purpose() {
    let scratch = Scratch::new();
    let demo = demo(&scratch, &["--instances", "40"]);
    let (status, lines) = demo.run(SOON).await;
    let said = lines.join("\n");
    assert!(status.success(), "{status}: {said}");
    let first = "A town hall receives 40 applications";
    for part in [
        first,
        "On purpose",
        "(paced)",
        "dead-lettered    2",
        "removed",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let scratch = scratch.path().display().to_string();
    for part in [" WARN ", "jobs/s", &scratch] {
        assert!(!said.contains(part), "{part} in {said}");
    }
}

#[tokio::test]
async fn the_demo_adds_up_on_postgresql_too() {
    let scratch = Scratch::new();
    let database = shared::postgres().await.create_database().await;
    let account = succeeds(demo(
        &scratch,
        &["--database", &database, "--instances", "40", "--json"],
    ))
    .await;
    assert_eq!(account["created"], 320);
    assert_eq!(account["dead_lettered"], 2);
}

#[tokio::test]
async fn a_log_is_replayed_on_the_embedded_default() {
    let scratch = Scratch::new();
    let log = log(&scratch, 20, 15);
    assert_replayed(
        &succeeds(demo(&scratch, &["--input", &log, "--json"])).await,
        300,
    );
}

#[tokio::test]
async fn a_log_is_replayed_on_postgresql_without_a_broker() {
    let scratch = Scratch::new();
    let log = log(&scratch, 20, 15);
    let database = shared::postgres().await.create_database().await;
    let program = demo(
        &scratch,
        &["--input", &log, "--database", &database, "--json"],
    );
    assert_replayed(&succeeds(program).await, 300);
}

#[tokio::test]
async fn a_log_is_replayed_by_a_fleet_that_ends_with_it() {
    let scratch = Scratch::new();
    let log = log(&scratch, 20, 30);
    let database = shared::postgres().await.create_database().await;
    let space = shared::rabbitmq().await.space().await;
    let arguments = ["--input", &log, "--nodes", "3", "--json"];
    let account = succeeds(fleet(&scratch, &database, &space, &arguments)).await;
    assert_replayed(&account, 600);
    assert_eq!(account["nodes"], 3);
    assert!(processes_of(&database).is_empty());
}

#[tokio::test]
async fn a_replay_adds_up_although_a_node_dies() {
    let scratch = Scratch::new();
    let log = log(&scratch, 20, 30);
    let database = shared::postgres().await.create_database().await;
    let space = shared::rabbitmq().await.space().await;
    // 600 events, one a second, at twenty times real time: half a minute, long enough to kill a
    // node on any machine.
    let arguments = ["--input", &log, "--nodes", "3", "--speed", "20", "--json"];
    let mut running = fleet(&scratch, &database, &space, &arguments).start();
    under_way(&running).await;
    let nodes = eventually("three nodes", SOON, || async {
        Some(processes_of(&database)).filter(|nodes| nodes.len() == 3)
    })
    .await;
    kill(nodes[0], Signal::SIGKILL).unwrap();
    let status = running.exit(SOON).await;
    let lines = running.lines().all();
    assert!(status.success(), "{}", lines.join("\n"));
    assert!(
        lines.iter().any(|l| l.contains("ended: signal: 9")),
        "{}",
        lines.join("\n")
    );
    assert_replayed(&account(&lines), 600);
    eventually_no_process_of(&database).await;
}

#[tokio::test]
async fn a_replay_that_is_stopped_says_what_is_left_and_ends_its_nodes() {
    let scratch = Scratch::new();
    let log = log(&scratch, 20, 30);
    let database = shared::postgres().await.create_database().await;
    let space = shared::rabbitmq().await.space().await;
    let arguments = ["--input", &log, "--nodes", "2", "--speed", "10"];
    let mut running = fleet(&scratch, &database, &space, &arguments).start();
    under_way(&running).await;
    running.signal(Signal::SIGINT);
    assert_eq!(running.exit(SOON).await.code(), Some(1));
    let said = running.lines().all().join("\n");
    assert!(
        said.contains("the demo was stopped; ") && said.contains("left in the database"),
        "{said}"
    );
    eventually_no_process_of(&database).await;
}

#[tokio::test]
async fn a_database_with_an_earlier_replay_is_refused_unless_it_is_kept() {
    let scratch = Scratch::new();
    let log = log(&scratch, 3, 3);
    let arguments = ["--input", &log, "--database", "sqlite:kept.db", "--json"];
    assert_replayed(&succeeds(demo(&scratch, &arguments)).await, 9);
    fails(demo(&scratch, &arguments), 2, "9 rows of earlier replays").await;
    assert_replayed(
        &succeeds(demo(&scratch, &arguments).args(["--keep"])).await,
        9,
    );
}

#[tokio::test]
async fn a_bad_line_is_told_with_its_number_before_anything_is_touched() {
    let scratch = Scratch::new();
    let good =
        r#"{"type": "A", "process_instance": "1", "sequence": 1, "at": "2010-10-02T07:20:39Z"}"#;
    let _ = scratch.write("bad.jsonl", format!("{good}\n\n{{\"type\": 7}}\n"));
    let arguments = ["--input", "bad.jsonl", "--database", "sqlite:untouched.db"];
    fails(demo(&scratch, &arguments), 1, "bad.jsonl, line 3: ").await;
    assert!(!scratch.join("untouched.db").exists());
    fails(
        demo(&scratch, &["--input", "none.jsonl"]),
        2,
        "can't read the event log none.jsonl",
    )
    .await;
}

#[tokio::test]
async fn several_nodes_need_a_database_and_a_broker_that_all_of_them_reach() {
    let scratch = Scratch::new();
    let log = log(&scratch, 1, 1);
    fails(
        demo(&scratch, &["--input", &log, "--nodes", "3"]),
        2,
        "--broker amqps://",
    )
    .await;
    let arguments = [
        "--input",
        &log,
        "--nodes",
        "3",
        "--broker",
        "amqp://127.0.0.1:1",
    ];
    fails(demo(&scratch, &arguments), 2, "--database postgres://").await;
    fails(demo(&scratch, &["--nodes", "3"]), 2, "--input").await;
    fails(
        demo(&scratch, &["--input", &log, "--speed", "0"]),
        2,
        "above zero",
    )
    .await;
}
