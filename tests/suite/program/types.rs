//! Settings by type.

use std::time::{Duration, Instant};

use jobwire_core::{JobState, JobView};
use jobwire_tests::{Scratch, Signal, eventually, http, port};
use tokio::net::{TcpListener, TcpStream};

use super::{SOON, all, jobwire, lines, start, store, succeeds};

/// Starts a service that answers each call after this time. Returns its address.
async fn slow_service(answers_after: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, answers_after));
        }
    });
    address
}

async fn answer(mut stream: TcpStream, after: Duration) {
    if http::read_head(&mut stream).await.is_none() {
        return;
    }
    tokio::time::sleep(after).await;
    http::answer(stream, "200 OK").await;
}

/// Lets a node with this setting call a service once that answers after a time. Returns the only
/// job, or none if the call is done, and the time that this took.
async fn called(answers_after: Duration, timeouts: &str) -> (Option<JobView>, Duration) {
    let address = slow_service(answers_after).await;
    let home = Scratch::new();
    let call = format!(r#"{{"type":"http","payload":{{"url":"http://{address}/"}},"retries":1}}"#);
    let file = lines(&home, &call, 1);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    let run = jobwire(&home, &["run", "--http", "127.0.0.1:0"]);
    let run = run.args(["--http-allow-hosts", &address, "--type-timeouts", timeouts]);
    let (_node, _) = start(run).await;
    let began = Instant::now();
    let store = store(&home).await;
    let ended = eventually("the call to end", SOON * 3, async || {
        match all(&store).await.pop() {
            None => Some(None),
            Some(job) => (job.state == JobState::DeadLetter).then_some(Some(job)),
        }
    });
    (ended.await, began.elapsed())
}

/// The default is 30 s.
#[tokio::test]
async fn a_call_of_a_slow_service_has_the_time_of_its_type() {
    let longer = called(Duration::from_secs(32), "http=2m");
    let hour = Duration::from_secs(3600);
    let shorter = called(hour, "http=1s");
    let by_default = called(hour, "sleep=1h");
    let (longer, shorter, by_default) = tokio::join!(longer, shorter, by_default);
    let (left, took) = longer;
    assert!(left.is_none(), "{left:?}");
    assert!(took > Duration::from_secs(30), "{took:?}");
    for ((left, _), limit) in [(shorter, "1s"), (by_default, "30s")] {
        let letter = left.expect("the call to fail");
        let message = letter.exception_message.unwrap();
        let expected = format!("the handler ran longer than its timeout of {limit}");
        assert_eq!(&*message, expected);
    }
}

/// The jobs of a type of one wait, and one of another type runs beside them. No attempt is spent.
#[tokio::test]
async fn a_node_runs_no_more_jobs_of_a_type_than_its_setting_says() {
    let home = Scratch::new();
    let hour = r#"{"type":"sleep","payload":{"ms":3600000}}"#;
    for (line, count) in [(hour, 5), (r#"{"type":"noop"}"#, 5)] {
        let file = lines(&home, line, count);
        succeeds(jobwire(&home, &["enqueue", &file])).await;
    }
    let run = jobwire(&home, &["run", "--http", "127.0.0.1:0"]);
    let run = run.args(["--concurrency", "4", "--type-concurrency", "sleep=2"]);
    let (_node, _) = start(run).await;
    let store = store(&home).await;
    let running = async || {
        let jobs = all(&store).await;
        let held = jobs.iter().filter(|job| job.lock_owner.is_some()).count();
        (jobs.len(), held)
    };
    eventually(
        "two jobs to run, and the others to wait",
        SOON,
        async || (running().await == (5, 2)).then_some(()),
    )
    .await;
    // Hints that wait for a slot of their type go round after three seconds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(running().await, (5, 2));
    assert!(all(&store).await.iter().all(|job| job.failures == 0));
}

#[tokio::test]
async fn an_attempt_without_a_heartbeat_ends_by_the_setting_of_its_type() {
    let home = Scratch::new();
    let hour = r#"{"type":"sleep","payload":{"ms":3600000},"retries":1}"#;
    let file = lines(&home, hour, 1);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    let run = jobwire(&home, &["run", "--http", "127.0.0.1:0"]);
    let (_node, _) = start(run.args(["--type-heartbeat-timeouts", "sleep=500ms"])).await;
    let store = store(&home).await;
    let message = eventually("the attempt to end", SOON, async || {
        let job: JobView = all(&store).await.pop()?;
        (job.state == JobState::DeadLetter).then_some(job.exception_message?)
    })
    .await;
    assert!(message.contains("no heartbeat for 500ms"), "{message}");
}

/// The settings may stand in a file that serves `jobwire run`, too.
#[tokio::test]
async fn a_setting_of_types_that_has_no_effect_on_a_command_is_remarked_at_its_start() {
    let home = Scratch::new();
    let settings = "type_limits = [\"http=3\"]\nattempt_types = [\"http\"]\n";
    let _ = home.write("jobwire.toml", settings);
    let told = |lines: &[String], of: &str| {
        for setting in ["type_limits", "attempt_types", "type_timeouts"] {
            let remark = format!("the setting `{setting}` has no effect on {of}");
            let told = lines.iter().filter(|line| line.contains(&remark)).count();
            let expected = usize::from(setting != "type_timeouts");
            assert_eq!(told, expected, "{setting}: {lines:?}");
        }
    };
    // No engine listens there.
    let nobody = port::free();
    let database = format!("postgres://127.0.0.1:{nobody}/engine");
    let engine = format!("http://127.0.0.1:{nobody}/jobwire");
    let run = ["engine", "run", "--http", "127.0.0.1:0"];
    let of_engine = ["--engine-database", &database, "--engine", &engine];
    let mut engine = jobwire(&home, &[&run[..], &of_engine].concat()).start();
    engine.wait_for_line("`attempt_types` has no", SOON).await;
    engine.signal(Signal::SIGTERM);
    engine.exit(SOON).await;
    told(&engine.lines().all(), "the jobs of an engine");

    let mut demo = jobwire(&home, &["demo"]).start();
    demo.wait_for_line("A town hall receives", SOON).await;
    demo.signal(Signal::SIGTERM);
    demo.exit(SOON).await;
    told(&demo.lines().all(), "a demonstration in one process");
}
