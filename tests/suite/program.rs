//! The real program: its commands, settings, errors and exit codes. Budget: 60 s.

mod batches;
mod bench;
mod changing;
mod doctor;
mod endpoints;
mod enqueue;
mod enqueued_batch;
mod escaped;
mod events;
mod jobs;
mod lanes;
mod limits;
mod migrate;
mod order;
mod periodic;
mod priorities;
mod purge;
mod remedies;
mod run;
mod secured;
mod settings;
mod suspension;
mod sweep;
mod types;

use std::path::Path;
use std::time::Duration;

use jobwire_core::store::SqlStore;
use jobwire_core::{JobQuery, JobView, SqliteStore, Store};
use jobwire_tests::{Program, Running, Scratch, eventually};

const SOON: Duration = Duration::from_secs(30);

/// Returns the program in a directory of its own, with its default database and settings file.
fn jobwire(home: &Scratch, arguments: &[&str]) -> Program {
    Program::jobwire().in_directory(home.path()).args(arguments)
}

/// Runs the program and asserts that it succeeds. Returns its output.
async fn succeeds(program: Program) -> String {
    let (status, lines) = program.run(SOON).await;
    let said = lines.join("\n");
    assert!(status.success(), "{status}: {said}");
    said
}

/// Runs the program and asserts that it fails with this exit code. Returns its output.
async fn fails(program: Program, code: i32) -> String {
    let (status, lines) = program.run(SOON).await;
    let said = lines.join("\n");
    assert_eq!(status.code(), Some(code), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// Like `fails`, until the output contains these parts: a server may be slow to answer.
async fn fails_saying(program: impl Fn() -> Program, code: i32, parts: &[&str]) -> String {
    eventually(&format!("an error with {parts:?}"), SOON, async || {
        let said = fails(program(), code).await;
        parts.iter().all(|part| said.contains(part)).then_some(said)
    })
    .await
}

/// Starts a node and waits until it is ready. Returns it and its HTTP address.
async fn start(program: Program) -> (Running, String) {
    let node = program.start();
    let line = node.wait_for_line("is ready", SOON).await;
    let address = jobwire_tests::http::address_in(&line);
    (node, address)
}

/// Opens the default database of a directory.
async fn store(home: &Scratch) -> SqliteStore {
    open(&home.join("jobwire.db")).await
}

async fn open(path: &Path) -> SqliteStore {
    let store = crate::world::patient_file(&format!("sqlite:{}", path.display())).await;
    store.migrate().await.unwrap();
    store
}

/// Changes the database directly.
async fn execute(store: &SqliteStore, statement: &str) {
    let mut tx = store.begin().await.unwrap();
    let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()));
    statement.execute(&mut *tx).await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn all(store: &impl Store) -> Vec<JobView> {
    store.find(&JobQuery::default()).await.unwrap()
}

/// Waits until no job is left.
async fn until_empty(store: &impl Store, deadline: Duration) {
    eventually("every job to be done", deadline, || async {
        (store.count(&JobQuery::default()).await.ok()? == 0).then_some(())
    })
    .await;
}

/// Writes an input file with this number of lines; returns its path.
fn lines(home: &Scratch, line: &str, count: usize) -> String {
    let path = home.write("jobs.jsonl", format!("{line}\n").repeat(count));
    path.display().to_string()
}
