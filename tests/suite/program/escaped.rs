//! Texts of other programs on a terminal: they move no cursor and forge no line.

use std::os::unix::fs::PermissionsExt;

use jobwire_core::telemetry::plain::is_active;
use jobwire_core::{JobQuery, JobState, Store};
use jobwire_tests::{Scratch, Signal, eventually};

use super::home::{Base, Home};
use super::{SOON, fails, jobwire, lines, succeeds};

const EVIL: &str = r#"{"type":"mine\u001b[2J","process_instance":"one\nINFO forged\u001b]0;x\u0007","payload":"\u009b31m"}"#;

pub(super) async fn fields_of_a_job_are_shown_escaped<S: Base>(home: &Home<S>) {
    let file = lines(home, EVIL, 1);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let json = succeeds(jobwire(home, &["jobs", "list", "--json"]).env("JOBWIRE_LOG", "off")).await;
    let jobs: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        jobs[0]["process_instance"], "one\nINFO forged\u{1b}]0;x\u{7}",
        "unchanged in JSON"
    );
    let id = jobs[0]["id"].as_str().unwrap();
    let list = succeeds(jobwire(home, &["jobs", "list"])).await;
    let show = succeeds(jobwire(home, &["jobs", "show", id])).await;
    let execute = fails(jobwire(home, &["jobs", "execute", id]), 1).await;
    for said in [&json, &list, &show, &execute] {
        assert!(!said.chars().any(|c| c != '\n' && is_active(c)), "{said:?}");
        assert!(!said.lines().any(|line| line.starts_with("INFO")), "{said}");
    }
    assert!(list.contains(r"one\nINFO forged"), "{list}");
}

/// Error messages of the database contain terminal control characters. The log escapes them in
/// every format.
pub(super) async fn a_log_of_json_moves_no_cursor<S: Base>(home: &Home<S>) {
    let file = lines(home, r#"{"type":"noop"}"#, 1);
    succeeds(jobwire(home, &["enqueue", &file])).await;
    let store = &home.store;
    let id = super::all(store).await[0].id.to_string();
    let message = "no\u{9b}31m \u{7f}\u{85}INFO forged";
    store.refuse("DELETE", "job", "true", message).await;
    let delete = ["jobs", "delete", &id, "--log", "warn"];
    let program = jobwire(home, &delete).env("JOBWIRE_LOG_FORMAT", "json");
    let said = fails(program, 1).await;
    assert!(!said.chars().any(|c| c != '\n' && is_active(c)), "{said:?}");
    let mut events = said.lines().filter(|line| line.starts_with('{'));
    let event = events.find(|line| line.contains("forged")).expect("a log");
    let event: serde_json::Value = serde_json::from_str(event).unwrap();
    let reason = event["fields"]["reason"].as_str().unwrap();
    assert!(reason.contains("no\u{9b}31m \u{7f}\u{85}INFO"), "{event}");
}

/// Jobs with columns that the library never writes: each gets an outcome, and few get a log line.
#[tokio::test]
async fn jobs_that_others_wrote_badly_do_not_flood_the_log() {
    const JOBS: u16 = 200;
    let home = Scratch::new();
    let job = r#"{"type":"http","payload":{"url":"http://a.invalid/"}}"#;
    let file = lines(&home, job, JOBS.into());
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    let store = super::store(&home).await;
    let spoil = "UPDATE job SET retries = 1, retry_policy = CASE WHEN seq % 2 = 0 THEN 'often' END,
                 repeat = CASE WHEN seq % 2 = 1 THEN 'often' END";
    super::execute(&store, spoil).await;
    let (mut node, _) = super::start(jobwire(&home, &["run", "--http", "127.0.0.1:0"])).await;
    eventually("all of them to be dead letters", SOON, async || {
        let dead = JobQuery::default().states([JobState::DeadLetter]);
        (store.count(&dead).await.unwrap() == i64::from(JOBS)).then_some(())
    })
    .await;
    let said = node.lines().all();
    for line in ["the job can't run", "retry policy can't be read"] {
        let told = said.iter().filter(|said| said.contains(line)).count();
        // Each message appears once in ten seconds.
        assert!(
            (1..usize::from(JOBS) / 10).contains(&told),
            "{line}: {told} times"
        );
    }
    node.signal(Signal::SIGTERM);
    node.exit(SOON).await;
}

#[tokio::test]
async fn a_new_sqlite_file_is_for_its_user_alone() {
    let home = Scratch::new();
    let file = lines(&home, r#"{"type":"noop"}"#, 1);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    let mode = std::fs::metadata(home.join("jobwire.db"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // While a connection is open, the files beside the database have the same mode.
    let store = super::store(&home).await;
    let beside = std::fs::metadata(home.join("jobwire.db-wal")).unwrap();
    assert_eq!(beside.permissions().mode() & 0o777, 0o600);
    drop(store);
}

#[tokio::test]
async fn a_file_without_end_is_no_file_of_settings() {
    let home = Scratch::new();
    let said = fails(jobwire(&home, &["config", "--config", "/dev/zero"]), 2).await;
    assert!(said.contains("not a file of settings"), "{said}");
}
