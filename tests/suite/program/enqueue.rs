//! `jobwire enqueue`.

use std::fmt::Write;

use jobwire_cli::commands::enqueue::FIELDS;
use jobwire_core::{Batch, BatchId, Client, JobKind, JobQuery, JobState, NewJob, PgStore, Store};
use jobwire_tests::{Scratch, Signal, shared};

use super::home::{Base, Home};
use super::{SOON, all, fails, jobwire, lines, start, store, succeeds, until_empty};

#[tokio::test]
async fn the_lines_and_fields_of_the_guide_are_accepted() {
    let guide =
        std::fs::read_to_string(crate::docs::root().join("docs/reference/jobs.md")).unwrap();
    let home = Scratch::new();
    let sample = guide.split("```json\n").nth(1).unwrap();
    let sample = sample.split("```").next().unwrap();
    let _ = home.write("jobs.jsonl", sample);
    let said = succeeds(jobwire(&home, &["enqueue", "jobs.jsonl"])).await;
    let count = sample.lines().count();
    assert!(said.contains(&format!("{count} jobs created")), "{said}");
    // The page and the help name each field that a line may have.
    let help = succeeds(jobwire(&home, &["enqueue", "--help"])).await;
    for field in FIELDS {
        assert!(guide.contains(&format!("`{field}`")), "{field}");
        assert!(help.contains(field), "{field} in {help}");
    }
}

pub(super) async fn the_ids_of_created_jobs_are_printed<S: Base>(home: &Home<S>) {
    let text = "{\"type\":\"noop\"}\n\n{\"type\":\"noop\"}\n{\"type\":\"noop\"}\n";
    let _ = home.write("in.jsonl", text);
    let enqueue = ["enqueue", "in.jsonl", "--per-transaction", "2"];
    let said = succeeds(jobwire(home, &enqueue)).await;
    let store = &home.store;
    let ids = async || -> Vec<String> {
        let jobs = all(store).await;
        jobs.iter().map(|job| job.id.to_string()).collect()
    };
    let first = ids().await;
    let lines: Vec<&str> = said.lines().filter(|line| line.len() == 36).collect();
    assert_eq!(lines, first, "{said}");

    let said = succeeds(jobwire(home, &[&enqueue[..], &["--json"]].concat())).await;
    let objects = said.lines().filter(|line| line.starts_with('{'));
    let objects: Vec<serde_json::Value> = objects
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let second = &ids().await[3..];
    let expected = [1, 3, 4].into_iter().zip(second);
    let expected = expected.map(|(line, id)| serde_json::json!({"id": id, "line": line}));
    assert_eq!(objects, expected.collect::<Vec<_>>(), "{said}");

    let said = succeeds(jobwire(home, &[&enqueue[..], &["--quiet"]].concat())).await;
    assert!(!said.lines().any(|line| line.len() == 36), "{said}");
    assert_eq!(all(store).await.len(), 9);
}

pub(super) async fn a_line_whose_key_a_job_has_tells_that_job<S: Base>(home: &Home<S>) {
    let line = r#"{"type":"noop","unique_key":"k"}"#;
    let file = lines(home, line, 2);
    let said = succeeds(jobwire(home, &["enqueue", &file, "--json"])).await;
    let store = &home.store;
    let jobs = all(store).await;
    let [job] = jobs.as_slice() else {
        panic!("one job: {jobs:?}")
    };
    for answer in [
        serde_json::json!({"id": job.id, "line": 1}),
        serde_json::json!({"id": job.id, "line": 2, "existing": true}),
    ] {
        let told = |line: &str| {
            serde_json::from_str(line).is_ok_and(|told: serde_json::Value| told == answer)
        };
        assert!(said.lines().any(told), "{answer} in {said}");
    }
    assert!(said.contains("1 job created"), "{said}");
    assert!(said.contains("1 job not created"), "{said}");
}

pub(super) async fn a_line_adds_its_job_to_an_open_batch<S: Base>(home: &Home<S>) {
    let store = &home.store;
    let client = Client::without_hints(store.clone());
    let batch = Batch::named("import").job(NewJob::of("noop", &()));
    let batch = client.create_batch(batch).await.unwrap();
    let line = format!(r#"{{"type":"noop","batch":"{batch}"}}"#);
    let file = lines(home, &line, 2);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let members = async || client.batch(batch).await.unwrap().unwrap().members;
    assert_eq!(members().await, 3);

    client.cancel_batch(batch).await.unwrap();
    let _ = home.write("in.jsonl", format!("{{\"type\":\"noop\"}}\n{line}\n"));
    let said = fails(jobwire(home, &["enqueue", "in.jsonl"]), 1).await;
    for part in [
        "in.jsonl:2: batch",
        "has ended, was cancelled, or does not exist",
        "No job was created",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let nobody = format!(r#"{{"type":"noop","batch":"{}"}}"#, BatchId::generate());
    let file = lines(home, &nobody, 1);
    let said = fails(jobwire(home, &["enqueue", &file]), 1).await;
    assert!(said.contains(":1: batch"), "{said}");
    assert!(all(store).await.is_empty());
}

pub(super) async fn a_bad_line_is_named_and_nothing_of_its_transaction_is_kept<S: Base>(
    home: &Home<S>,
) {
    let mut text = String::new();
    for line in 1..=20 {
        match line {
            13 => text.push_str("{\"type\":\"noop\",\"retries\":-1}\n"),
            // An empty line is counted, although it contains no job.
            5 => text.push('\n'),
            _ => writeln!(text, "{{\"type\":\"noop\",\"element\":\"line-{line}\"}}").unwrap(),
        }
    }
    let _ = home.write("in.jsonl", &text);
    let said = fails(
        jobwire(home, &["enqueue", "in.jsonl", "--per-transaction", "5"]),
        1,
    )
    .await;
    for part in [
        "in.jsonl:13: field `retries` is -1; give 1 or more",
        "10 jobs of lines 1 to 11 created",
        "continue with --skip 11",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let store = &home.store;
    assert_eq!(all(store).await.len(), 10);

    let _ = home.write("in.jsonl", text.replace(",\"retries\":-1", ""));
    succeeds(jobwire(home, &["enqueue", "in.jsonl", "--skip", "11"])).await;
    let mut elements: Vec<_> = all(store)
        .await
        .into_iter()
        .filter_map(|j| j.element)
        .collect();
    elements.sort();
    elements.dedup();
    assert_eq!(elements.len(), 18);
}

pub(super) async fn every_field_reaches_its_job<S: Base>(home: &Home<S>) {
    let line = r#"{"type":"noop","payload":{"n":1.50},"process_instance":"p","exclusive":false,"priority":7,"lane":"bulk",
        "retries":5,"due_at":"2091-01-31T08:00:00Z","tenant":"t","element":"e","process_definition":"d",
        "correlation_id":"0198c0de-0000-7000-8000-000000000001"}"#;
    let file = lines(home, &line.replace('\n', " "), 1);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let store = &home.store;
    let jobs = all(store).await;
    let [view] = jobs.as_slice() else {
        panic!("one job: {jobs:?}")
    };
    assert_eq!(view.state, JobState::Timer);
    assert_eq!((view.priority, view.retries, view.exclusive), (7, 5, false));
    assert_eq!(view.lane.as_str(), "bulk");
    assert_eq!(view.process_instance.as_deref(), Some("p"));
    assert_eq!(view.tenant.as_deref(), Some("t"));
    assert_eq!(view.element.as_deref(), Some("e"));
    assert_eq!(view.process_definition.as_deref(), Some("d"));
    assert_eq!(
        view.correlation_id.to_string(),
        "0198c0de-0000-7000-8000-000000000001"
    );
    let (_, job, _) = store.get(view.id).await.unwrap().unwrap();
    assert_eq!(job.payload.get(), r#"{"n":1.50}"#);
}

pub(super) async fn a_line_creates_a_history_job<S: Base>(home: &Home<S>) {
    let line = r#"{"type":"noop","process_instance":"p","kind":"history"}"#;
    let file = lines(home, line, 1);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let jobs = all(&home.store).await;
    let [view] = jobs.as_slice() else {
        panic!("one job: {jobs:?}")
    };
    assert_eq!(
        (view.kind, view.state),
        (JobKind::History, JobState::Executable)
    );
    assert_eq!((view.retries, view.exclusive), (10, false));
    assert_eq!(view.lane.as_str(), "history");
}

#[tokio::test]
async fn standard_input_unknown_fields_and_a_default_type() {
    let home = Scratch::new();
    let path = home.write(
        "in",
        "{\"order\":17}\n{\"order\":18,\"payload\":{\"a\":1}}\n",
    );
    let input = || std::fs::File::open(&path).unwrap();
    let said = fails(
        jobwire(&home, &["enqueue", "--type", "noop"]).input(input()),
        1,
    )
    .await;
    assert!(
        said.contains("standard input:1: field `order` is no field of a job"),
        "{said}"
    );
    assert!(said.contains("No job was created"), "{said}");
    assert!(!said.contains("0 jobs created"), "{said}");
    let merge = [
        "enqueue",
        "-",
        "--type",
        "noop",
        "--unknown-fields",
        "payload",
    ];
    succeeds(jobwire(&home, &merge).input(input())).await;
    let store = store(&home).await;
    let jobs = all(&store).await;
    let (_, job, _) = store.get(jobs[1].id).await.unwrap().unwrap();
    assert_eq!(job.payload.get(), r#"{"a":1,"order":18}"#);
}

#[tokio::test]
async fn input_of_any_kind_is_refused_with_a_reason_and_never_a_panic() {
    let home = Scratch::new();
    for (text, part) in [
        (b"\xff\xfe\n".to_vec(), "in:1: this is not a JSON object"),
        (b"[1,2]\n".to_vec(), "in:1: this is not a JSON object"),
        (
            b"{\"type\":\"noop\"}\n{\"type\":\"noop\"".to_vec(),
            "in:2: this is not a JSON object",
        ),
        (
            vec![b'x'; 5 << 20],
            "in:1: the line is longer than 4194304 bytes",
        ),
        (
            format!(
                "{{\"type\":\"noop\",\"payload\":\"{}\"}}",
                "x".repeat(2 << 20)
            )
            .into_bytes(),
            "in:1: field `payload` has 2097154 bytes, more than 1048576",
        ),
        (
            b"{\"type\":\"noop\",\"repeat_until\":\"2091-01-01T00:00:00Z\"}".to_vec(),
            "in:1: field `repeat_until` is set without `repeat`; give `repeat`, or leave it out",
        ),
    ] {
        let _ = home.write("in", text);
        let said = fails(jobwire(&home, &["enqueue", "in"]), 1).await;
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(all(&store(&home).await).await.len(), 0);
    let said = fails(jobwire(&home, &["enqueue", "no-such-file"]), 2).await;
    assert!(said.contains("no-such-file"), "{said}");
    let _ = home.write("empty", "");
    let said = succeeds(jobwire(&home, &["enqueue", "empty"])).await;
    assert!(said.contains("0 jobs created"), "{said}");
    fails(
        jobwire(&home, &["enqueue", "empty", "--per-transaction", "0"]),
        2,
    )
    .await;
}

#[tokio::test]
async fn hints_leave_through_the_broker() {
    let home = Scratch::new();
    let database = shared::postgres().await.create_database().await;
    let space = shared::rabbitmq().await.space().await;
    let program = |arguments: &[&str]| {
        jobwire(&home, arguments)
            .env("JOBWIRE_DATABASE_URL", &database)
            .env("JOBWIRE_BROKER_URL", &space.url)
            .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
    };
    succeeds(program(&["migrate", "up"])).await;
    let (mut node, _) = start(program(&["run", "--http", "127.0.0.1:0"])).await;
    let file = lines(&home, r#"{"type":"noop"}"#, 3000);
    // A broker that is slow for a while must not drop a hint.
    let patient = program(&["enqueue", &file])
        .env("JOBWIRE_AMQP_CONFIRM_TIMEOUT", "1m")
        .env("JOBWIRE_SUSPECT_AFTER", "2m")
        .env("JOBWIRE_HINT_MAX_AGE", "1m");
    let said = succeeds(patient).await;
    assert!(
        said.contains("3000 jobs created in 3 transactions"),
        "{said}"
    );
    assert!(!said.contains("could not be published"), "{said}");
    let store = PgStore::connect(&database).await.unwrap();
    until_empty(&store, SOON).await;
    assert_eq!(store.count(&JobQuery::default()).await.unwrap(), 0);
    node.signal(Signal::SIGTERM);
    assert!(node.exit(SOON).await.success());
}

#[tokio::test]
async fn a_line_that_only_the_database_refuses_is_named() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let store = PgStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'tenant % is closed', NEW.tenant USING ERRCODE = 'check_violation'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON jobwire.job
            FOR EACH ROW WHEN (NEW.tenant = 'closed') EXECUTE FUNCTION refuse()",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let mut text = String::new();
    for line in 1..=20 {
        let tenant = if line == 14 { "closed" } else { "open" };
        writeln!(text, "{{\"type\":\"noop\",\"tenant\":\"{tenant}\"}}").unwrap();
    }
    let _ = home.write("in.jsonl", &text);
    let arguments = [
        "enqueue",
        "in.jsonl",
        "--per-transaction",
        "10",
        "--database",
        &url,
    ];
    let said = fails(jobwire(&home, &arguments), 1).await;
    for part in [
        "in.jsonl:14: ",
        "tenant closed is closed",
        "10 jobs of lines 1 to 10 created",
        "correct the line, then continue with --skip 10",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(store.count(&JobQuery::default()).await.unwrap(), 10);
}
