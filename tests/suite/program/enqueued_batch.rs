//! `jobwire enqueue --batch`: a batch of the jobs of all lines.

use jobwire_core::{BatchState, BatchView, Store};
use jobwire_tests::{Program, Scratch, eventually, shared};
use serde_json::Value;

use super::{SOON, all, fails, jobwire, lines, open, start, succeeds};

const THEN: &str = r#"{"type":"sleep","payload":{"ms":3600000},"tenant":"acme"}"#;

async fn open_batches(store: &impl Store) -> Vec<BatchView> {
    store.batches(false, 10).await.unwrap()
}

/// Creates a batch on a database, whose job at the end runs after the members.
async fn create_and_end<S: Store>(home: &Scratch, store: &S, program: impl Fn(&[&str]) -> Program) {
    let bad = format!(
        "{}{{\"type\":\"noop\",\"retires\":1}}\n",
        "{\"type\":\"noop\"}\n".repeat(1_200)
    );
    let bad = home.write("bad.jsonl", bad).display().to_string();
    let new = ["--batch", "import", "--then", THEN, "--json"];
    let said = fails(program(&[&["enqueue", &bad], &new[..]].concat()), 1).await;
    assert!(
        said.contains("bad.jsonl:1201:") && said.contains("No job was created"),
        "{said}"
    );
    assert!(said.contains("run it again"), "{said}");
    assert!(all(store).await.is_empty() && open_batches(store).await.is_empty());

    let good = lines(home, r#"{"type":"noop"}"#, 1_201);
    let said = succeeds(program(&[&["enqueue", &good], &new[..]].concat())).await;
    assert!(
        said.contains("1201 jobs created in 1 transaction"),
        "{said}"
    );
    let batches = open_batches(store).await;
    let [batch] = batches.as_slice() else {
        panic!("{batches:?}")
    };
    assert_eq!((&*batch.name, batch.members), ("import", 1_201));
    assert!(!batch.or_dead_letters);
    let told = format!("batches show {}", batch.id);
    assert!(said.contains(&told), "{said}");
    let printed = said.lines().filter(|line| line.starts_with('{'));
    let printed: Vec<Value> = printed
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let id = batch.id.to_string();
    assert_eq!(printed.len(), 1_201);
    assert!(printed.iter().all(|job| job["batch"] == id.as_str()));

    let (_node, _) = start(program(&["run", "--http", "127.0.0.1:0"])).await;
    eventually("the job at the end", SOON, async || {
        let jobs = all(store).await;
        (jobs.len() == 1 && jobs[0].id == batch.callback).then_some(())
    })
    .await;
    let (view, job, _) = store.get(batch.callback).await.unwrap().unwrap();
    assert_eq!(
        (&*view.job_type, view.tenant.as_deref()),
        ("sleep", Some("acme"))
    );
    assert_eq!(job.batch_end().unwrap().members, 1_201);
    let ended = store.batch(batch.id).await.unwrap().unwrap();
    assert_eq!(ended.state, BatchState::Ended);
}

#[tokio::test]
async fn the_lines_of_an_input_are_a_batch_with_a_job_at_its_end() {
    let home = Scratch::new();
    let store = open(&home.join("jobwire.db")).await;
    create_and_end(&home, &store, |line| jobwire(&home, line)).await;
}

#[tokio::test]
async fn the_lines_of_an_input_are_a_batch_on_postgresql() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let store = crate::world::patient(&url).await;
    store.migrate().await.unwrap();
    let program = |line: &[&str]| jobwire(&home, line).env("JOBWIRE_DATABASE_URL", &url);
    create_and_end(&home, &store, program).await;
}

#[tokio::test]
async fn a_batch_that_can_not_be_created_is_refused_with_the_option() {
    let home = Scratch::new();
    succeeds(jobwire(&home, &["migrate", "up"])).await;
    let line = |text: &str| lines(&home, text, 1);
    for (text, options, code, part) in [
        (
            "{\"type\":\"noop\"}",
            &["--batch", "500"][..],
            2,
            "--per-transaction",
        ),
        ("{\"type\":\"noop\"}", &["--then", THEN], 2, "--batch"),
        (
            "{\"type\":\"noop\"}",
            &["--batch", "b", "--per-transaction", "9"],
            2,
            "cannot be used with",
        ),
        (
            "{\"type\":\"noop\"}",
            &["--batch", "b", "--then", "{}"],
            2,
            "--then: field `type` is missing",
        ),
        (
            "{\"type\":\"noop\"}",
            &[
                "--batch",
                "b",
                "--then",
                r#"{"type":"noop","unique_key":"k"}"#,
            ],
            2,
            "--then: ",
        ),
        (
            r#"{"type":"noop","batch":"0198c0de-0000-7000-8000-000000000001"}"#,
            &["--batch", "b"],
            1,
            "field `batch` names a batch",
        ),
        (
            r#"{"type":"noop","repeat":"R3/PT10M"}"#,
            &["--batch", "b"],
            1,
            "`batch`",
        ),
        (
            r#"{"type":"noop","custom_values":[1]}"#,
            &["--batch", "b"],
            1,
            "custom values",
        ),
    ] {
        let file = line(text);
        let said = fails(
            jobwire(&home, &[&["enqueue", &file], options].concat()),
            code,
        )
        .await;
        assert!(said.contains(part), "{part} in {said}");
    }
    let store = open(&home.join("jobwire.db")).await;
    assert!(all(&store).await.is_empty() && open_batches(&store).await.is_empty());
}
