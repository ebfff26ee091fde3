//! Cases of SQLite only: files, one writer, a database in memory.

mod texts;

use std::time::Duration;

use jobwire_core::store::{ClaimOf, ClaimPage, Handoff, Origin};
use jobwire_core::{Lane, SqlStore, SqliteOptions, SqliteStore, Store, StoreError};
use jobwire_harness::Scratch;
use sqlx::AssertSqlSafe;

use super::world::{World, done, node, terms, work};

#[tokio::test]
async fn an_unusable_path_is_explained() {
    let scratch = Scratch::new();
    let text = scratch.write(
        "notes.txt",
        "Not a database at all, but long enough to have a header.".repeat(9),
    );
    let there = World::<SqliteStore>::open().await;
    let file: String =
        sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(there.store.pool())
            .await
            .unwrap();
    let cases = [
        (
            "postgres://localhost/jobs".to_owned(),
            "does not begin with `sqlite:`",
        ),
        ("sqlite:".to_owned(), "names no file"),
        (
            format!("sqlite:{}", scratch.join("none/jobs.db").display()),
            "is not a directory",
        ),
        (
            format!("sqlite:{}", scratch.path().display()),
            "is a directory",
        ),
        (
            format!("sqlite:{}", text.display()),
            "not a SQLite database",
        ),
        (format!("sqlite:{file}?mode=ro"), "read-only"),
        ("sqlite:jobs.db?colour=red".to_owned(), "can't be read"),
    ];
    for (url, reason) in cases {
        let error = SqliteStore::connect(&url).await.unwrap_err();
        assert!(matches!(error, StoreError::Config(_)), "{url}: {error:?}");
        assert!(error.to_string().contains(reason), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_database_in_memory_lives_as_long_as_its_store() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    let other = SqliteStore::connect("sqlite::memory:").await.unwrap();
    assert!(other.check().await.unwrap().ready().is_err());
    let mut tx = store.begin().await.unwrap();
    let created = store
        .insert(&mut tx, vec![work()], Origin::Hook)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let owner = node();
    let locked = store
        .lock(&terms(owner), &[created.ready[0].hint.clone()])
        .await
        .unwrap();
    let settled = store
        .complete(owner, &[done(&locked.jobs[0])], &Handoff::Hint)
        .await;
    assert_eq!(settled.unwrap().applied.len(), 1);
    assert_eq!(store.data_version().await.unwrap(), None);
}

#[tokio::test]
async fn what_another_process_commits_is_noticed() {
    let w = World::<SqliteStore>::open().await;
    let file: String =
        sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(w.store.pool())
            .await
            .unwrap();
    let before = w.store.data_version().await.unwrap();
    assert_eq!(w.store.data_version().await.unwrap(), before);
    let other = SqliteStore::connect(&format!("sqlite:{file}"))
        .await
        .unwrap();
    let jobs = jobwire_core::Client::without_hints(other);
    let id = jobs.create(work()).await.unwrap();
    assert_ne!(w.store.data_version().await.unwrap(), before);
    let found = w.store.unhinted(10).await.unwrap();
    assert_eq!(super::world::ids(&found), [id]);
}

#[tokio::test]
async fn a_transition_waits_for_an_open_transaction() {
    let w = World::<SqliteStore>::open().await;
    let hint = w.one(work()).await;
    let tx = w.store.begin().await.unwrap();
    let store = w.store.clone();
    let locking = tokio::spawn(async move { store.lock(&terms(node()), &[hint]).await });
    // Reads do not wait.
    assert_eq!(
        w.store
            .count(&jobwire_core::JobQuery::default())
            .await
            .unwrap(),
        1
    );
    assert!(!locking.is_finished());
    tx.rollback().await.unwrap();
    assert_eq!(locking.await.unwrap().unwrap().jobs.len(), 1);
}

/// The writing connection is that of the open transaction, so the job waits for its own end.
#[tokio::test]
async fn a_job_that_is_created_beside_an_open_transaction_names_the_cause() {
    let scratch = Scratch::new();
    let url = format!("sqlite:{}", scratch.join("jobs.db").display());
    let options = SqliteOptions::default().deadline(Duration::from_secs(1));
    let store = SqliteStore::connect_with(&url, options).await.unwrap();
    store.migrate().await.unwrap();
    let client = jobwire_core::Client::without_hints(store);
    let mut tx = client.begin().await.unwrap();
    let error = client.create(work()).await.unwrap_err();
    assert!(matches!(error, StoreError::WriterBusy(_)), "{error:?}");
    assert!(error.is_transient() && error.changed_nothing(), "{error:?}");
    let said = error.to_string();
    for part in [
        "a transaction is open",
        "`tx.create` instead of `client.create`",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let id = tx.create(work()).await.unwrap();
    tx.commit().await.unwrap();
    assert!(client.get(id).await.unwrap().is_some());
}

/// Statements that only read wait for no transaction: not for the application's, and not for one of
/// another process.
#[tokio::test]
async fn what_only_reads_does_not_wait_for_an_open_transaction() {
    let w = World::<SqliteStore>::open().await;
    let hint = w.one(work()).await;
    let tx = w.store.begin().await.unwrap();
    let terms = terms(node());
    let counted = w
        .store
        .sweepable(&terms.types.clone().into(), &[Lane::default()])
        .await
        .unwrap();
    assert_eq!(counted.ready, 1);
    let page = ClaimPage {
        lane: Lane::default(),
        of: ClaimOf::Next {
            after: None,
            look_at: 10,
        },
        at_most: 10,
    };
    let found = w.store.claimable(&terms, &page).await.unwrap();
    let found: Vec<_> = found.hints.iter().map(|hint| hint.id).collect();
    assert_eq!(found, [hint.id]);
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn an_open_transaction_of_another_process_is_waited_for_and_not_for_ever() {
    let w = World::<SqliteStore>::open().await;
    let file: String =
        sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(w.store.pool())
            .await
            .unwrap();
    let mut options = SqliteOptions::default();
    options.busy_timeout = Duration::from_millis(20);
    let other = SqliteStore::connect_with(&format!("sqlite:{file}"), options)
        .await
        .unwrap();
    let hint = w.one(work()).await;
    let tx = w.store.begin().await.unwrap();
    let busy = other
        .lock(&terms(node()), std::slice::from_ref(&hint))
        .await
        .unwrap_err();
    assert!(busy.is_conflict() && busy.is_transient(), "{busy:?}");
    tx.rollback().await.unwrap();
    assert_eq!(
        other
            .lock(&terms(node()), &[hint])
            .await
            .unwrap()
            .jobs
            .len(),
        1
    );
}

/// These are values that PostgreSQL's types refuse. Such a row would hold up every other row that
/// is read with it.
#[tokio::test]
async fn a_row_that_no_node_could_read_is_refused() {
    let w = World::<SqliteStore>::open().await;
    for (column, value, why) in [
        ("payload", "'{'", "payload is JSON"),
        ("custom_values", "'{'", "custom_values is JSON"),
        ("id", "'first'", "id is a UUID in lower case"),
        ("id", "upper('{id}')", "id is a UUID in lower case"),
        (
            "correlation_id",
            "'--------' || substr('{id}', 9)",
            "correlation_id is a UUID in lower case",
        ),
        ("due_at", "8210266876800000000", "due_at is a moment"),
        ("ready_at", "-9000000000000000000", "ready_at is a moment"),
        ("retries", "2147483648", "retries"),
    ] {
        let mut row = vec![
            ("id", "'{id}'"),
            ("seq", "1"),
            ("type", "'work'"),
            ("correlation_id", "'{id}'"),
        ];
        row.retain(|(name, _)| *name != column);
        row.push((column, value));
        let (names, values): (Vec<_>, Vec<_>) = row.into_iter().unzip();
        let (names, values) = (names.join(", "), values.join(", "));
        // An id with letters.
        let values = values.replace("{id}", "01a2071d-501f-75f8-8b0b-07935406e66c");
        for table in ["job", "dead_letter_job"] {
            let sql = format!("INSERT INTO {table} ({names}) VALUES ({values})");
            let refused = sqlx::query(AssertSqlSafe(sql)).execute(w.store.pool());
            let refused = refused.await.unwrap_err().to_string();
            assert!(refused.contains(why), "{column}: {refused}");
        }
    }
    let id = "'01a2071d-501f-75f8-8b0b-07935406e66c'";
    for (table, row, why) in [
        (
            "batch (id, name, callback_id, created_at)",
            format!("'no-uuid', 'name', {id}, 1"),
            ": id is a UUID",
        ),
        (
            "batch (id, name, callback_id, created_at)",
            format!("{id}, 'name', 'no-uuid', 1"),
            "callback_id is a UUID",
        ),
        (
            "batch (id, name, callback_id, created_at)",
            format!("{id}, 'name', {id}, 9223372036854775807"),
            "created_at is a moment",
        ),
        (
            "event (kind, job_id, type, seq)",
            format!("'created', {id}, 'work', 9223372036854775807"),
            "seq",
        ),
        (
            "event (kind, job_id, type, at)",
            format!("'created', {id}, 'work', 9223372036854775807"),
            "at is a moment",
        ),
        (
            "event (kind, job_id, type)",
            format!("'unknown', {id}, 'work'"),
            "kind",
        ),
    ] {
        let sql = format!("INSERT INTO {table} VALUES ({row})");
        let refused = sqlx::query(AssertSqlSafe(sql)).execute(w.store.pool());
        let refused = refused.await.unwrap_err().to_string();
        assert!(refused.contains(why), "{table}: {refused}");
    }
}

/// The file is as it was on the disk when the power failed, without the fences that were given out
/// since then.
#[tokio::test]
async fn a_store_that_is_opened_again_hands_out_larger_fences() {
    let scratch = Scratch::new();
    let url = |name: &str| format!("sqlite:{}", scratch.join(name).display());
    let made = SqliteStore::connect(&url("jobs.db")).await.unwrap();
    made.migrate().await.unwrap();
    made.close().await;
    let opened = World::over(jobwire_harness::world::patient_file(&url("jobs.db")).await);
    let hints = opened.ready(vec![work(), work()]).await;
    for part in ["", "-wal"] {
        let (from, to) = (format!("jobs.db{part}"), format!("after.db{part}"));
        std::fs::copy(scratch.join(&from), scratch.join(&to)).unwrap();
    }
    let mut handed_out = Vec::new();
    for hint in &hints {
        handed_out.push(opened.hold(node(), hint).await.fence);
    }
    let again = World::over(jobwire_harness::world::patient_file(&url("after.db")).await);
    for hint in &hints {
        let fence = again.hold(node(), hint).await.fence;
        assert!(!handed_out.contains(&fence) && handed_out.iter().all(|old| *old < fence));
    }
}
