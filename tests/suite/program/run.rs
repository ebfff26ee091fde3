//! `jobwire run`.

use std::time::Duration;

use jobwire_core::{JobQuery, JobState, PgStore, Store};
use jobwire_tests::{Scratch, Signal, eventually, http, port, shared};
use url::Url;

use super::{
    SOON, all, execute, fails, fails_saying, jobwire, lines, start, store, succeeds, until_empty,
};
use crate::event_stream::brokers::{Queue, assert_in_order};

const ANY_PORT: [&str; 3] = ["run", "--http", "127.0.0.1:0"];
/// Settings with which no lease ends while a test runs.
const PATIENT: [&str; 4] = ["--lease", "30m", "--sweep-interval", "20m"];

#[tokio::test]
async fn an_embedded_node_finishes_what_was_enqueued_before_it_started() {
    let home = Scratch::new();
    let file = lines(&home, r#"{"type":"noop"}"#, 250);
    let said = succeeds(jobwire(
        &home,
        &["enqueue", &file, "--per-transaction", "100"],
    ))
    .await;
    assert!(
        said.contains("250 jobs created in 3 transactions"),
        "{said}"
    );
    let (mut node, _) = start(jobwire(&home, &ANY_PORT)).await;
    until_empty(&store(&home).await, SOON).await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(SOON).await.success());
}

#[tokio::test]
async fn an_embedded_node_notices_jobs_of_another_process_at_once() {
    let home = Scratch::new();
    // The sweep interval is too long for the sweeper to find these.
    let hourly = ["--sweep-interval", "1h"];
    let (_node, _) = start(jobwire(&home, &ANY_PORT).args(hourly)).await;
    let store = store(&home).await;
    for _ in 0..3 {
        let file = lines(&home, r#"{"type":"noop"}"#, 10);
        succeeds(jobwire(&home, &["enqueue", &file])).await;
        until_empty(&store, SOON).await;
    }
}

/// A job that another process makes ready counts no hint that never came.
#[tokio::test]
async fn an_embedded_node_notices_operations_of_another_process_at_once() {
    let home = Scratch::new();
    // The sweep interval is too long for the sweeper to find these.
    let hourly = ["--sweep-interval", "1h"];
    let (_node, _) = start(jobwire(&home, &ANY_PORT).args(hourly)).await;
    let store = store(&home).await;
    let does = async |arguments: &[&str]| drop(succeeds(jobwire(&home, arguments)).await);
    let enqueue = async |line: &str| {
        let file = lines(&home, line, 1);
        succeeds(jobwire(&home, &["enqueue", &file])).await;
        let jobs = all(&store).await;
        jobs.iter().map(|job| job.id).max().unwrap().to_string()
    };
    let later = r#"{"type":"noop","due_at":"2091-01-01T00:00:00Z"}"#;
    let past = ["--due", "2020-01-01T00:00:00Z"];

    let id = enqueue(later).await;
    does(&["jobs", "retry", &id]).await;
    until_empty(&store, SOON).await;
    let id = enqueue(later).await;
    does(&["jobs", "change", &id, "--make-executable"]).await;
    until_empty(&store, SOON).await;
    let id = enqueue(later).await;
    does(&["jobs", "change", &id, past[0], past[1]]).await;
    until_empty(&store, SOON).await;
    let id = enqueue(later).await;
    does(&["jobs", "change", &id, "--suspend"]).await;
    does(&["jobs", "change", &id, past[0], past[1]]).await;
    does(&["jobs", "change", &id, "--activate"]).await;
    until_empty(&store, SOON).await;

    // The node has refused the hint of a job before it is let run.
    let hinted = async |id: &str| {
        eventually("the hint", SOON, async || {
            let jobs = all(&store).await;
            let job = jobs.iter().find(|job| job.id.to_string() == id)?;
            (job.hints > Some(0)).then_some(())
        })
        .await;
    };
    for (begin, end) in [("suspend", "activate"), ("pause", "resume")] {
        does(&[begin, "--type", "noop"]).await;
        let id = enqueue(r#"{"type":"noop"}"#).await;
        hinted(&id).await;
        does(&[end, "--type", "noop"]).await;
        until_empty(&store, SOON).await;
    }
    does(&["order", "strict"]).await;
    let first = enqueue(r#"{"type":"http","payload":7,"process_instance":"a"}"#).await;
    eventually("the dead letter", SOON, async || {
        (all(&store).await[0].state == JobState::DeadLetter).then_some(())
    })
    .await;
    let next = enqueue(r#"{"type":"noop","process_instance":"a"}"#).await;
    hinted(&next).await;
    does(&["jobs", "delete", &first]).await;
    until_empty(&store, SOON).await;

    let id = enqueue(r#"{"type":"sleep","payload":{"ms":3600000}}"#).await;
    let fence = eventually("the job to run", SOON, async || all(&store).await[0].fence).await;
    does(&["jobs", "unlock", &id]).await;
    eventually("the job to run again", SOON, async || {
        let job = &all(&store).await[0];
        (job.fence > Some(fence) && job.lock_owner.is_some()).then_some(())
    })
    .await;
}

/// The broker carries the hints and the event stream of a database in a file. Every event of an instance
/// comes, in its order.
#[tokio::test]
async fn a_node_on_sqlite_works_with_a_broker_and_publishes_the_event_stream() {
    let home = Scratch::new();
    let space = shared::rabbitmq().await.space().await;
    let program = |arguments: &[&str]| {
        let both = ["--database", "sqlite:jobwire.db", "--broker", &space.url];
        jobwire(&home, arguments)
            .args(both)
            .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
    };
    let of = |number: usize| {
        let instance = number % 4;
        format!("{{\"type\":\"noop\",\"process_instance\":\"order-{instance}\"}}\n")
    };
    let file = home.write("jobs.jsonl", (0..20).map(of).collect::<String>());
    let file = file.display().to_string();
    succeeds(program(&["migrate", "up"])).await;
    succeeds(program(&["events", "on"])).await;
    let mut queue = Queue::bind(&space, "#").await;
    let hourly = ["--sweep-interval", "1h"];
    let (_node, _) = start(program(&ANY_PORT).args(hourly)).await;
    succeeds(program(&["enqueue", &file])).await;
    assert_in_order(&queue.until("succeeded", 20).await);
    let store = store(&home).await;
    until_empty(&store, SOON).await;
    eventually("the events to be published", SOON, async || {
        let (waiting, _) = store.waiting_events().await.unwrap();
        (waiting == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_endpoints_tell_of_the_node() {
    let home = Scratch::new();
    let file = lines(&home, r#"{"type":"noop"}"#, 10);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    let (_node, address) = start(jobwire(&home, &ANY_PORT)).await;
    until_empty(&store(&home).await, SOON).await;
    let alive = http::get(&address, "/healthz").await.unwrap();
    assert_eq!((alive.status, alive.body.as_str()), (200, "alive\n"));
    let ready = http::get(&address, "/readyz").await.unwrap();
    assert_eq!(ready.status, 200, "{}", ready.body);
    let health: serde_json::Value = serde_json::from_str(&ready.body).unwrap();
    assert_eq!(health["ready"], true);
    let lines = [
        r#"jobwire_jobs_finished_total{type="noop",outcome="done"} 10"#,
        r#"jobwire_commit_to_start_seconds_bucket{lane="default",le="0.0001"}"#,
        "jobwire_slots 64",
        r#"jobwire_pool_connections{state="idle"}"#,
        "process_resident_memory_bytes",
    ];
    // The end of a job is committed a moment before it is counted.
    for line in lines {
        eventually(&format!("{line} among the metrics"), SOON, || async {
            let metrics = http::get(&address, "/metrics").await.ok()?;
            assert_eq!(metrics.status, 200);
            metrics.body.contains(line).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_taken_default_port_is_replaced_and_a_taken_chosen_one_is_an_error() {
    let home = Scratch::new();
    // Afterwards the port is taken, by this test or by another process.
    let _taken = tokio::net::TcpListener::bind("127.0.0.1:7070").await;
    let (_node, address) = start(jobwire(&home, &["run"])).await;
    assert_ne!(address, "127.0.0.1:7070");
    assert_eq!(http::get(&address, "/healthz").await.unwrap().status, 200);

    let other = Scratch::new();
    let said = fails(jobwire(&other, &["run", "--http", &address]), 1).await;
    assert!(
        said.contains("can't listen on") && said.contains("--http"),
        "{said}"
    );
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_one_clear_line() {
    let home = Scratch::new();
    let url = shared::postgres().await.create_database().await;
    let run = |database: &str| jobwire(&home, &["run", "--http", "off", "--database", database]);

    let missing = "has no Jobwire tables; run `jobwire migrate up`";
    fails_saying(|| run(&url), 1, &[missing]).await;

    let mut wrong = Url::parse(&url).unwrap();
    wrong.set_password(Some("not-the-password")).unwrap();
    let said = fails_saying(|| run(wrong.as_str()), 1, &["correct user and password"]).await;
    assert!(!said.contains("not-the-password"), "{said}");

    let mut wrong = Url::parse(&url).unwrap();
    wrong.set_path("no_such_database");
    fails_saying(|| run(wrong.as_str()), 1, &["create the database"]).await;

    let nobody = format!("postgres://jobwire:secret@127.0.0.1:{}/jobs", port::free());
    let said = fails(run(&nobody), 1).await;
    assert!(
        said.contains("check that the server runs") && !said.contains("secret"),
        "{said}"
    );

    let pg = PgStore::connect(&url).await.unwrap();
    pg.migrate().await.unwrap();
    sqlx::query("INSERT INTO jobwire.schema_version (version, readable_by) VALUES (99, 99)")
        .execute(pg.pool())
        .await
        .unwrap();
    fails_saying(|| run(&url), 1, &["schema version 99", "upgrade it"]).await;

    let said = fails(run("sqlite:no/such/directory/x.db"), 1).await;
    assert!(said.contains("is not a directory"), "{said}");
    let _ = home.write(
        "text.db",
        "this is no database, however long the text may be made",
    );
    let said = fails(run("sqlite:text.db"), 1).await;
    assert!(said.contains("not a SQLite database"), "{said}");
}

#[tokio::test]
async fn a_node_starts_while_the_broker_is_away_and_says_so() {
    let home = Scratch::new();
    let broker = format!("amqp://me:secret@127.0.0.1:{}/%2F", port::free());
    let mut arguments = ANY_PORT.to_vec();
    arguments.extend(["--database", "sqlite:jobs.db", "--broker", &broker]);
    let (mut node, address) = start(jobwire(&home, &arguments)).await;
    assert_eq!(http::get(&address, "/healthz").await.unwrap().status, 200);
    eventually("/readyz to name the transport", SOON, || async {
        let ready = http::get(&address, "/readyz").await.ok()?;
        (ready.status == 503 && ready.body.contains("transport")).then_some(())
    })
    .await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(SOON).await.success());
    let said = node.lines().all().join("\n");
    assert!(
        said.contains("amqp://me:***@") && !said.contains("secret"),
        "{said}"
    );
}

#[tokio::test]
async fn a_broker_that_refuses_the_password_is_one_clear_line() {
    let home = Scratch::new();
    let space = shared::rabbitmq().await.space().await;
    let mut wrong = Url::parse(&space.url).unwrap();
    wrong.set_password(Some("not-the-password")).unwrap();
    // A broker whose first answer is slow counts as away; then the node starts.
    let said = eventually("the node to be refused", SOON, async || {
        let run = [
            "run",
            "--http",
            "off",
            "--database",
            "sqlite:jobs.db",
            "--broker",
            wrong.as_str(),
        ];
        let mut node = jobwire(&home, &run).start();
        let status = eventually("its end, or its start", SOON, || {
            let started = node.lines().all().iter().any(|l| l.contains("is ready"));
            let ended = node.ended().map(Some);
            async move { ended.or(started.then_some(None)) }
        });
        let status = status.await?;
        node.exit(SOON).await;
        let said = node.lines().all().join("\n");
        assert_eq!(status.code(), Some(1), "{said}");
        Some(said)
    })
    .await;
    assert!(
        said.contains("refuses") && !said.contains("not-the-password"),
        "{said}"
    );
}

/// The lock on the file ended with the process, which proves that the process is dead. The new node
/// waits neither for its leases nor for its leadership.
#[tokio::test]
async fn an_embedded_node_takes_over_at_once_what_its_killed_predecessor_ran() {
    let home = Scratch::new();
    let file = lines(&home, r#"{"type":"sleep","payload":{"ms":600000}}"#, 1);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    let patient = [
        "--lease",
        "30m",
        "--sweep-interval",
        "20m",
        "--attempt-types",
        "sleep",
    ];
    let (mut first, _) = start(jobwire(&home, &ANY_PORT).args(patient)).await;
    let store = store(&home).await;
    until_running(&store).await;
    let running = all(&store).await.remove(0);
    let dead = running.lock_owner;
    first.signal(Signal::SIGKILL);
    first.exit(SOON).await;
    let (_second, _) = start(jobwire(&home, &ANY_PORT).args(patient)).await;
    eventually("the job to run again", SOON, async || {
        let job = all(&store).await.into_iter().next()?;
        (job.lock_owner.is_some() && job.lock_owner != dead).then_some(())
    })
    .await;
    let nodes = store.nodes().await.unwrap();
    let nodes: Vec<_> = nodes
        .iter()
        .map(|node| node.membership.id.to_string())
        .collect();
    assert_eq!(nodes.len(), 1, "the dead node has left: {nodes:?}");
    assert_ne!(Some(&nodes[0]), dead.map(|dead| dead.to_string()).as_ref());
    let attempts = store.attempts(running.id, 10).await.unwrap();
    let told: Vec<_> = attempts
        .iter()
        .map(|attempt| (Some(attempt.node.uuid()), &*attempt.outcome))
        .collect();
    assert_eq!(told, [(dead, "node-died")]);
    let said = succeeds(jobwire(
        &home,
        &["jobs", "attempts", &running.id.to_string()],
    ))
    .await;
    assert!(said.contains("node-died"), "{said}");
}

/// The lock on the file proves that the first node is alive, so the second does not wait for its
/// lease.
#[tokio::test]
async fn a_second_node_on_a_sqlite_file_is_refused_at_once() {
    let home = Scratch::new();
    let (_first, _) = start(jobwire(&home, &ANY_PORT).args(PATIENT)).await;
    let said = fails(jobwire(&home, &ANY_PORT).args(PATIENT), 1).await;
    assert!(said.contains("serves its database alone"), "{said}");
}

/// A frozen node continues some day, beside any node that has started meanwhile.
#[tokio::test]
async fn a_second_node_on_a_sqlite_file_is_refused_while_the_first_one_is_frozen() {
    let home = Scratch::new();
    let (first, _) = start(jobwire(&home, &ANY_PORT).args(PATIENT)).await;
    let store = store(&home).await;
    // Frozen while it writes, it would hold the lock of the file.
    eventually(
        "the node to be frozen between two writes",
        SOON,
        async || {
            first.signal(Signal::SIGSTOP);
            // As if it had been frozen for longer than its lease.
            let expires = execute(&store, "UPDATE leader SET expires_at = 1");
            let done = tokio::time::timeout(Duration::from_secs(2), expires).await;
            if done.is_err() {
                first.signal(Signal::SIGCONT);
            }
            done.ok()
        },
    )
    .await;
    let said = fails(jobwire(&home, &ANY_PORT).args(PATIENT), 1).await;
    assert!(said.contains("serves its database alone"), "{said}");
}

#[tokio::test]
async fn sigterm_gives_a_running_job_back_at_no_attempt() {
    let home = Scratch::new();
    let file = lines(&home, r#"{"type":"sleep","payload":{"ms":600000}}"#, 1);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    let quick = ["--shutdown-timeout", "300ms"];
    let (mut node, _) = start(jobwire(&home, &ANY_PORT).args(quick)).await;
    let store = store(&home).await;
    until_running(&store).await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(SOON).await.success());
    let jobs = all(&store).await;
    let [job] = jobs.as_slice() else {
        panic!("one job is left: {jobs:?}");
    };
    assert_eq!(job.state, JobState::Executable);
    assert_eq!((job.retries, job.failures, job.lock_owner), (3, 0, None));
}

#[tokio::test]
async fn a_second_signal_ends_the_program_at_once() {
    let home = Scratch::new();
    let file = lines(&home, r#"{"type":"sleep","payload":{"ms":600000}}"#, 1);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    // Longer than the test waits.
    let patient = ["--shutdown-timeout", "1h"];
    let (mut node, _) = start(jobwire(&home, &ANY_PORT).args(patient)).await;
    until_running(&store(&home).await).await;
    node.signal(Signal::SIGTERM);
    node.wait_for_line("stops taking work", SOON).await;
    node.signal(Signal::SIGINT);
    assert_eq!(node.exit(SOON).await.code(), Some(1));
}

async fn until_running(store: &impl Store) {
    let locked = JobQuery::default().locked(true);
    eventually("the job to run", SOON, || async {
        (store.count(&locked).await.ok()? == 1).then_some(())
    })
    .await;
}

/// Beside a broker the default database is a mistake: the node would take the hints of a fleet and
/// find none of its jobs.
#[tokio::test]
async fn a_broker_needs_a_database_that_is_named() {
    let home = Scratch::new();
    for arguments in [&["run"][..], &["enqueue"], &["jobs", "list"]] {
        let program = jobwire(&home, arguments).args(["--broker", "amqp://127.0.0.1:1"]);
        let said = fails(program, 2).await;
        assert!(
            said.contains("--broker is given and --database (JOBWIRE_DATABASE_URL) is not"),
            "{arguments:?}: {said}"
        );
        assert!(!home.join("jobwire.db").exists());
    }
}
