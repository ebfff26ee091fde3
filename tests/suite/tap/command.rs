//! The command `jobwire tap` and what the doctor says of the tap.

use std::time::Duration;

use jobwire_core::{JobQuery, Store};
use jobwire_tests::{Postgres, Program, eventually, shared};

use super::world::run;
use crate::world::patient;

const SOON: Duration = Duration::from_secs(30);

async fn said(url: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let program = Program::jobwire()
        .args(arguments)
        .env("JOBWIRE_DATABASE_URL", url);
    let (status, lines) = program.run(SOON).await;
    (status.code(), lines.join("\n"))
}

#[tokio::test]
async fn an_operator_sets_the_tap_up_and_removes_it() {
    let url = shared::postgres().await.create_database().await;
    patient(&url).await.migrate().await.unwrap();
    let (_, doctor) = said(&url, &["doctor"]).await;
    assert!(
        doctor.contains("tap: not set up") && doctor.contains("jobwire tap create"),
        "{doctor}"
    );
    let (code, status) = said(&url, &["tap", "status"]).await;
    assert_eq!(code, Some(1), "{status}");
    assert!(status.contains("CREATE PUBLICATION"), "{status}");
    let (code, create) = said(&url, &["tap", "create"]).await;
    assert_eq!(code, Some(0), "{create}");
    assert!(create.contains("can be used"), "{create}");
    let (_, doctor) = said(&url, &["doctor"]).await;
    assert!(
        doctor.contains("ok     tap: set up: jobs of plain SQL get their hints"),
        "{doctor}"
    );
    let (_, doctor) = said(&url, &["doctor", "--tap", "off"]).await;
    assert!(doctor.contains("tap: off"), "{doctor}");
    let (code, drop) = said(&url, &["tap", "drop"]).await;
    assert_eq!(code, Some(0), "{drop}");
    let (_, doctor) = said(&url, &["doctor", "--tap", "on"]).await;
    assert!(
        doctor.contains("WRONG  tap: the publication `jobwire_tap` does not exist"),
        "{doctor}"
    );
    let (code, refused) = said("sqlite::memory:", &["tap", "create"]).await;
    assert_eq!(code, Some(1));
    assert!(refused.contains("SQLite has no commit tap"), "{refused}");
}

/// An operator who has set the tap up is told once why it is not used, and the jobs run.
#[tokio::test]
async fn a_server_that_does_not_allow_the_tap_is_one_line_of_the_log() {
    const LINE: &str = "the commit tap cannot be used";
    let postgres = Postgres::start_with(&["wal_level=replica"]).await;
    let url = postgres.create_database().await;
    let store = patient(&url).await;
    store.migrate().await.unwrap();
    store.create_tap().await.unwrap();
    let node = Program::jobwire()
        .args(["run", "--http", "127.0.0.1:0", "--sweep-interval", "1s"])
        .env("JOBWIRE_DATABASE_URL", &url)
        .start();
    let line = node.wait_for_line(LINE, SOON).await;
    assert!(line.contains("wal_level is `replica`"), "{line}");
    run(&store, "SELECT jobwire.create_job(type => 'noop')").await;
    let filter = JobQuery::default();
    eventually("the job to run", SOON, || async {
        (store.count(&filter).await.ok()? == 0).then_some(())
    })
    .await;
    let lines = node.lines().all();
    let said = lines.iter().filter(|line| line.contains(LINE)).count();
    assert_eq!(said, 1, "{lines:?}");
}

#[tokio::test]
async fn the_doctor_names_what_the_tap_lacks_and_who_breaks_the_tables() {
    let postgres = Postgres::start_with(&["wal_level=replica"]).await;
    let url = postgres.create_database().await;
    let store = patient(&url).await;
    store.migrate().await.unwrap();
    let (code, create) = said(&url, &["tap", "create"]).await;
    assert_eq!(code, Some(1), "{create}");
    assert!(create.contains("wal_level is `replica`"), "{create}");
    let (_, doctor) = said(&url, &["doctor"]).await;
    assert!(
        doctor.contains("WRONG  tap: wal_level is `replica`"),
        "{doctor}"
    );
    run(
        &store,
        "CREATE PUBLICATION theirs FOR TABLE jobwire.job (type)",
    )
    .await;
    let (_, doctor) = said(&url, &["doctor", "--tap", "off"]).await;
    assert!(
        doctor.contains("WRONG  tap: the server refuses to update or delete rows of jobwire.job"),
        "{doctor}"
    );
    assert!(doctor.contains("`theirs`"), "{doctor}");
}
