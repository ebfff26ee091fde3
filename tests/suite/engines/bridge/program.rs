//! The program beside Flowable: `jobwire doctor`, `jobwire engine init`, `run` and `release`.

use std::time::Duration;

use jobwire_tests::{
    EngineProgram, EngineServer, EngineSettings, Program, Running, Scratch, Signal, eventually,
    http, shared,
};
use sqlx::Row;

use super::flowable::{DONE, repeated, until_ended, until_no_lock_is_left, world};
use crate::engines::rows::World;
use crate::grafana::exposition;

const SOON: Duration = Duration::from_secs(30);

/// Returns the type of the engine, as the settings name it.
pub(super) fn kind(engine: &EngineServer) -> &'static str {
    match engine.program() {
        EngineProgram::Activiti6 | EngineProgram::Activiti7 => "activiti",
        EngineProgram::Camunda7 => "camunda",
        _ => "flowable",
    }
}

/// Returns this URL with the user of an engine's REST.
pub(super) fn with_user(url: &str) -> String {
    let (user, password) = EngineServer::USER;
    url.replace("http://", &format!("http://{user}:{password}@"))
}

/// Returns the program with the settings of this engine.
pub(super) fn jobwire(home: &Scratch, world: &World, arguments: &[&str]) -> Program {
    let url = match world.engine.program() {
        EngineProgram::Activiti6 | EngineProgram::Activiti7 | EngineProgram::Flowable8 => {
            world.engine.endpoint()
        }
        _ => world.engine.url(),
    };
    let url = with_user(&url);
    Program::jobwire()
        .in_directory(home.path())
        .env("JOBWIRE_ENGINE_DATABASE_URL", &world.database)
        .env("JOBWIRE_ENGINE_TYPE", kind(&world.engine))
        .env("JOBWIRE_ENGINE_URL", url)
        .env("JOBWIRE_LEASE", "3s")
        .env("JOBWIRE_SWEEP_INTERVAL", "1s")
        .env("JOBWIRE_HTTP", "127.0.0.1:0")
        .args(arguments)
}

pub(super) async fn succeeds(program: Program) -> String {
    let (status, lines) = program.run(SOON).await;
    let said = lines.join("\n");
    assert!(status.success(), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_takes_over_an_engines_jobs_survives_a_kill_and_gives_them_back() {
    takes_over_and_gives_back(world().await, "Flowable, schema version 7").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_program_takes_over_the_jobs_of_activiti_and_gives_them_back() {
    let world = World::start(EngineSettings::activiti7).await;
    takes_over_and_gives_back(world, "Activiti, schema version 7.1").await;
}

async fn takes_over_and_gives_back(world: World, version: &str) {
    let rows = world.connect().await;
    let home = Scratch::new();
    let space = shared::rabbitmq().await.space().await;
    let program = |arguments: &[&str]| {
        jobwire(&home, &world, arguments)
            .env("JOBWIRE_BROKER_URL", &space.url)
            .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
    };
    // The doctor changes nothing and needs nothing.
    let said = succeeds(program(&["doctor"])).await;
    for part in [version, "jobwire engine init", "lock_timeout", "answers"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    // The shadow report watches a job that nothing runs.
    let waiting = world.engine.start_instance("one", &[]).await;
    let said = succeeds(program(&["engine", "shadow", "--seconds", "1"])).await;
    for part in ["no job started", "1 jobs still wait", "over Jobwire about"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
    assert_eq!(rows.count(schemas, "jobwire_engine").await, 0);
    let (status, lines) = program(&["engine", "run"]).run(SOON).await;
    assert!(!status.success());
    assert!(
        lines.join("\n").contains("jobwire engine init"),
        "{lines:?}"
    );
    // A job of a case is no job of a process, and Jobwire leaves none alone silently.
    let case = "INSERT INTO act_ru_job (id_, rev_, type_, retries_, scope_type_) VALUES ($1, 1, 'message', 3, 'cmmn')";
    let job = "0198c0de-7777-7000-8000-000000000001";
    let columns = "SELECT count(*) FROM information_schema.columns
        WHERE table_name = 'act_ru_job' AND column_name = $1";
    // Activiti has no cases.
    if rows.count(columns, "scope_type_").await > 0 {
        rows.change(case, job).await;
        let (status, lines) = program(&["engine", "init"]).run(SOON).await;
        let said = lines.join("\n");
        assert!(
            !status.success() && said.contains("1 jobs have the scope `cmmn`"),
            "{said}"
        );
        rows.change("DELETE FROM act_ru_job WHERE id_ = $1", job)
            .await;
    }
    succeeds(program(&["engine", "init"])).await;
    let start = || async {
        let node: Running = program(&["engine", "run"]).start();
        let line = node.wait_for_line("is ready", SOON).await;
        let (_, address) = line.rsplit_once("http://").expect("the address");
        (node, address.trim().to_owned())
    };
    let (first, _) = start().await;
    let slow = world
        .engine
        .start_instance("slow", &[("millis", "8000")])
        .await;
    rows.until_started(&slow, 1).await;
    let mut instances = world.engine.start_instances("chain", 20, &[]).await;
    first.signal(Signal::SIGKILL);
    // Another dead node held this one.
    let left = world.engine.start_instance("one", &[]).await;
    let lock = "UPDATE act_ru_job SET lock_owner_ = 'jobwire:00000000-0000-4000-8000-000000000000:1',
        lock_exp_time_ = (clock_timestamp() AT TIME ZONE 'UTC') - interval '1 second' WHERE process_instance_id_ = $1";
    assert_eq!(rows.change(lock, &left).await, 1);
    instances.extend([left, waiting]);
    let (second, address) = start().await;
    instances.extend(world.engine.start_instances("one", 20, &[]).await);
    instances.push(slow);
    until_ended(&rows, &instances).await;
    // The engine went on with the executions of the dead node, and no other node repeated one.
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    let metrics = http::get(&address, "/metrics").await.unwrap().body;
    exposition::check(&metrics);
    let engine = format!("engine=\"{}\"", kind(&world.engine));
    for series in [
        format!("jobwire_engine_outcomes_total{{{engine},outcome=\"done\"}}"),
        format!("jobwire_engine_execution_seconds_count{{{engine},answer=\"executed\"}}"),
        format!("jobwire_engine_rescued_total{{{engine},class=\"job-of-jobwire\"}}"),
        format!("jobwire_engine_executions{{{engine}}} 0"),
        format!("jobwire_engine_breaker_open{{{engine}}} 0"),
        format!("jobwire_engine_unanswered_executions{{{engine}}} 0"),
    ] {
        assert!(metrics.contains(&series), "{series} in {metrics}");
    }
    // Back to the engine.
    let (status, lines) = program(&["engine", "release", "--yes"]).run(SOON).await;
    assert!(
        !status.success() && lines.join("\n").contains("stop it first"),
        "{lines:?}"
    );
    let mut second = second;
    second.signal(Signal::SIGTERM);
    assert!(second.exit(SOON).await.success());
    // The row of the killed node stays for a while.
    let silent =
        "UPDATE jobwire_engine.node SET seen_at = seen_at - interval '1 hour' WHERE engine = $1";
    rows.change(silent, kind(&world.engine)).await;
    succeeds(program(&["engine", "release", "--yes"])).await;
    eventually("the schema to be gone", DONE, || async {
        (rows.all(schemas, "jobwire_engine").await[0].get::<i64, _>(0) == 0).then_some(())
    })
    .await;
}
