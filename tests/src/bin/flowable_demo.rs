//! The demonstration of the bridge: a real Flowable whose own job executor is off, and the program
//! `jobwire` beside it, on a private PostgreSQL. `scripts/demo flowable` runs it.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program of the tests"
)]

use std::time::{Duration, Instant};

use jobwire_tests::{EngineServer, EngineSettings, Postgres, Program, Scratch, Signal, eventually};
use sqlx::{Connection, PgConnection};

const CHAINS: usize = 50;
const FORKS: usize = 50;
const SOON: Duration = Duration::from_secs(60);
const DONE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() {
    println!("1. A private PostgreSQL, and Flowable 7 with its own job executor off ...");
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let engine = EngineServer::start(EngineSettings::flowable7(&database).zone("UTC")).await;
    let home = Scratch::new();
    let (user, password) = EngineServer::USER;
    let url = engine.url();
    let url = url.replace("http://", &format!("http://{user}:{password}@"));
    let jobwire = |arguments: &[&str]| {
        Program::jobwire()
            .in_directory(home.path())
            .env("JOBWIRE_ENGINE_DATABASE_URL", &database)
            .env("JOBWIRE_ENGINE_URL", &url)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .args(arguments)
    };
    let show = |lines: Vec<String>| lines.iter().for_each(|line| println!("   {line}"));

    println!("2. {CHAINS} processes of ten asynchronous tasks start. Nothing runs their jobs.");
    engine.start_instances("chain", CHAINS, &[]).await;
    let mut connection = PgConnection::connect(&database).await.unwrap();
    let waiting = "SELECT count(*) FROM act_ru_job";
    let waiting: i64 = sqlx::query_scalar(waiting)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    println!("   {waiting} jobs wait in act_ru_job");

    println!("3. jobwire doctor: what it finds, and changes nothing");
    show(jobwire(&["doctor"]).run(SOON).await.1);
    println!("   jobwire engine shadow: how long jobs wait now, and would wait over Jobwire");
    let (status, lines) = jobwire(&["engine", "shadow", "--seconds", "3"])
        .run(SOON)
        .await;
    show(lines);
    assert!(status.success(), "the shadow report");
    println!("4. jobwire engine init, then jobwire engine run");
    let (status, lines) = jobwire(&["engine", "init"]).run(SOON).await;
    show(lines);
    assert!(status.success(), "jobwire engine init");
    let began = Instant::now();
    let mut node = jobwire(&["engine", "run"]).start();
    node.wait_for_line("is ready", SOON).await;

    println!("5. {FORKS} processes with parallel branches and a join start beside them");
    engine.start_instances("fork", FORKS, &[]).await;
    let ended = "SELECT count(*) FROM act_hi_procinst WHERE end_time_ IS NOT NULL";
    eventually("every process to end", DONE, async || {
        let mut connection = PgConnection::connect(&database).await.ok()?;
        let ended: i64 = sqlx::query_scalar(ended)
            .fetch_one(&mut connection)
            .await
            .ok()?;
        (usize::try_from(ended).ok()? == CHAINS + FORKS).then_some(())
    })
    .await;
    let seconds = began.elapsed().as_secs_f64();
    let counted = "SELECT count(*), count(DISTINCT (instance, activity)) FROM jobwire_effect";
    let (runs, activities): (i64, i64) = sqlx::query_as(counted)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    println!(
        "   all {} processes ended within {seconds:.1} s: {activities} activities ran, {} of them twice",
        CHAINS + FORKS,
        runs - activities
    );
    assert_eq!(runs, activities, "an activity ran twice");

    println!(
        "6. Back to Flowable: the node stops, and jobwire engine release leaves nothing behind"
    );
    node.signal(Signal::SIGTERM);
    node.exit(SOON).await;
    let (status, lines) = jobwire(&["engine", "release", "--yes"]).run(SOON).await;
    show(lines);
    assert!(status.success(), "jobwire engine release");
}
