//! A bearer token: one that the engine refuses stops the executions and costs nothing else.

use std::time::{Duration, Instant};

use jobwire_engines::Credentials;
use jobwire_tests::{Program, Scratch, Signal, eventually};

use super::application::Application;
use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::{DONE, quick, until_no_lock_is_left};
use crate::engines::rows::{DEAD, JOB, TIMER};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_refuses_the_token_is_asked_seldom_and_no_attempt_is_spent() {
    let bare = Bare::of(Engine::Flowable).await;
    let mut application = Application::start().await;
    application.require("another-token");
    let id = bare.job().await;
    let token = Credentials::Bearer("token-of-the-node".to_owned());
    let options = bare.options(application.url()).credentials(token);
    let bridge = bare.bridge(options, quick()).await;
    let problem = eventually("the health to tell", DONE, || async {
        let health = bridge.node().watch().checked().await;
        let problems = format!("{:?}", health.problems);
        (!health.ready && problems.contains("401")).then_some(problems)
    })
    .await;
    assert!(problem.contains("or the token"), "{problem}");
    assert!(!problem.contains("token-of-the-node"), "{problem}");
    // The pause between two trials grows from half a second.
    let (before, began) = (application.refused(), Instant::now());
    eventually("two more trials", DONE, || async {
        (application.refused() >= before + 2).then_some(())
    })
    .await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(900), "{took:?}");
    let job = bare.find(JOB, &id).await.expect("the job");
    assert_eq!(job.retries, Some(3));
    for table in [TIMER, DEAD] {
        assert_eq!(bare.find(table, &id).await, None, "{table}");
    }
    // The engine accepts the token now.
    application.require("token-of-the-node");
    let execution = application.execution().await;
    assert_eq!(execution.id, id);
    bare.end(&id).await;
    execution.gone();
    eventually("the health to be well", DONE, || async {
        let health = bridge.node().watch().checked().await;
        health.ready.then_some(())
    })
    .await;
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}

/// Returns the program with the settings of this application and a file with this token.
fn jobwire(home: &Scratch, bare: &Bare, application: &Application, token: &str) -> Program {
    // An editor ends the file with a line feed.
    let file = home.write("token", format!("{token}\n"));
    Program::jobwire()
        .in_directory(home.path())
        .env("JOBWIRE_ENGINE_DATABASE_URL", &bare.database)
        .env("JOBWIRE_ENGINE_URL", application.url())
        .env("JOBWIRE_ENGINE_EXECUTE", "endpoint")
        .env("JOBWIRE_ENGINE_TOKEN_FILE", file)
        .env("JOBWIRE_LEASE", "3s")
        .env("JOBWIRE_SWEEP_INTERVAL", "1s")
        .env("JOBWIRE_HTTP", "127.0.0.1:0")
        // With all log lines of the libraries, too.
        .env("JOBWIRE_LOG", "trace")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_reads_the_token_from_its_file_and_prints_it_nowhere() {
    let bare = Bare::of(Engine::Flowable).await;
    let mut application = Application::start().await;
    let (right, wrong) = ("hunter2-is-right", "hunter2-is-wrong");
    application.require(right);
    let home = Scratch::new();
    let program = |token: &str, arguments: &[&str]| {
        jobwire(&home, &bare, &application, token).args(arguments)
    };
    let (status, mut printed) = program(wrong, &["doctor"]).run(DONE).await;
    assert!(!status.success(), "{printed:#?}");
    let told = printed.iter().any(|line| line.contains("401"));
    assert!(told, "{printed:#?}");
    let (_, lines) = program(right, &["doctor"]).run(DONE).await;
    let answers = lines.iter().any(|line| line.contains("/jobwire answers"));
    assert!(answers, "{lines:#?}");
    printed.extend(lines);

    let id = bare.job().await;
    let mut refused = program(wrong, &["engine", "run"]).start();
    refused
        .wait_for_line("can't execute jobs at this address", DONE)
        .await;
    refused.signal(Signal::SIGTERM);
    assert!(refused.exit(DONE).await.success());
    printed.extend(refused.lines().all());

    let mut node = program(right, &["engine", "run"]).start();
    let execution = application.execution().await;
    assert_eq!(execution.id, id);
    bare.end(&id).await;
    execution.gone();
    until_no_lock_is_left(&bare.rows).await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(DONE).await.success());
    printed.extend(node.lines().all());

    assert!(printed.iter().any(|line| line.contains("DEBUG")));
    for line in &printed {
        assert!(!line.contains("hunter2"), "{line}");
    }
}
