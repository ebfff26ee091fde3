//! The program beside Flowable: `jobwire doctor`, `jobwire engine init`, `run` and `release`.

use std::time::Duration;

use jobwire_tests::{
    EngineProgram, EngineServer, EngineSettings, Program, Running, Scratch, Signal, eventually,
    shared,
};
use sqlx::Row;

use super::flowable::{DONE, repeated, until_ended, until_no_lock_is_left, world};
use crate::engines::rows::World;

const SOON: Duration = Duration::from_secs(30);

/// Returns the type of the engine, as the settings name it.
fn kind(world: &World) -> &'static str {
    match world.engine.program() {
        EngineProgram::Activiti7 => "activiti",
        _ => "flowable",
    }
}

/// Returns the program with the settings of this engine.
fn jobwire(home: &Scratch, world: &World, arguments: &[&str]) -> Program {
    let (user, password) = EngineServer::USER;
    let url = match world.engine.program() {
        EngineProgram::Activiti7 => world.engine.endpoint(),
        _ => world.engine.url(),
    };
    let url = url.replace("http://", &format!("http://{user}:{password}@"));
    Program::jobwire()
        .in_directory(home.path())
        .env("JOBWIRE_ENGINE_DATABASE_URL", &world.database)
        .env("JOBWIRE_ENGINE_TYPE", kind(world))
        .env("JOBWIRE_ENGINE_URL", url)
        .env("JOBWIRE_LEASE", "3s")
        .env("JOBWIRE_SWEEP_INTERVAL", "1s")
        .env("JOBWIRE_HTTP", "127.0.0.1:0")
        .args(arguments)
}

async fn succeeds(program: Program) -> String {
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
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
    assert_eq!(rows.count(schemas, "jobwire_engine").await, 0);
    let (status, lines) = program(&["engine", "run"]).run(SOON).await;
    assert!(!status.success());
    assert!(
        lines.join("\n").contains("jobwire engine init"),
        "{lines:?}"
    );
    succeeds(program(&["engine", "init"])).await;
    let start = || async {
        let node: Running = program(&["engine", "run"]).start();
        node.wait_for_line("is ready", SOON).await;
        node
    };
    let first = start().await;
    let slow = world
        .engine
        .start_instance("slow", &[("millis", "8000")])
        .await;
    rows.until_started(&slow, 1).await;
    let mut instances = world.engine.start_instances("chain", 20, &[]).await;
    first.signal(Signal::SIGKILL);
    let second = start().await;
    instances.extend(world.engine.start_instances("one", 20, &[]).await);
    instances.push(slow);
    until_ended(&rows, &instances).await;
    // The engine went on with the executions of the dead node, and no other node repeated one.
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
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
    rows.change(silent, kind(&world)).await;
    succeeds(program(&["engine", "release", "--yes"])).await;
    eventually("the schema to be gone", DONE, || async {
        (rows.all(schemas, "jobwire_engine").await[0].get::<i64, _>(0) == 0).then_some(())
    })
    .await;
}
