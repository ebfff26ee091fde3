//! Several nodes of an engine on one database: each job goes to one that can run it.

use std::time::Duration;

use jobwire_engines::EngineOptions;
use jobwire_tests::{
    EngineServer, EngineSettings, Running, Scratch, Signal, eventually, http, shared,
};
use sqlx::Row;

use super::flowable::{
    Bridge, DONE, options, over_endpoint, quick, repeated, until_ended, until_no_lock_is_left,
};
use super::program::{jobwire, succeeds, with_user};
use crate::engines::rows::{JOB, Rows, World};

/// The node of the engine that ran each activity of an instance, in the order of their starts.
async fn places(rows: &Rows, instance: &str) -> Vec<(String, String)> {
    let query = "SELECT activity, node FROM jobwire_effect WHERE instance = $1 ORDER BY at";
    let rows = rows.all(query, instance).await;
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Returns how many activities a node of the engine has run.
async fn runs(rows: &Rows, engine: &EngineServer) -> i64 {
    let query = "SELECT count(*) FROM jobwire_effect WHERE node = $1";
    rows.count(query, &engine.node()).await
}

/// Starts a second node of the engine.
async fn second(world: &World) -> EngineServer {
    EngineServer::start(EngineSettings::camunda7(&world.database)).await
}

fn of_both(world: &World, other: &EngineServer) -> EngineOptions {
    options(&world.engine).also(other.url())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn two_nodes_of_camunda_share_the_jobs_and_the_one_that_is_left_runs_them_all() {
    let world = World::start(EngineSettings::camunda7).await;
    let rows = world.connect().await;
    let mut other = second(&world).await;
    let bridge = Bridge::start(&world, of_both(&world, &other), quick()).await;
    let engine = &world.engine;
    let mut instances = engine.start_instances("chain", 20, &[]).await;
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    let shares = [runs(&rows, engine).await, runs(&rows, &other).await];
    assert!(shares.iter().all(|runs| *runs >= 50), "{shares:?}");
    // One dies under load: jobs that it runs, too.
    let slow = [("millis", "500")];
    instances.extend(engine.start_instances("slow", 10, &slow).await);
    instances.extend(engine.start_instances("chain", 20, &[]).await);
    eventually("the other one to work", DONE, || async {
        (runs(&rows, &other).await > shares[1] + 5).then_some(())
    })
    .await;
    other.kill();
    instances.extend(engine.start_instances("chain", 10, &[]).await);
    until_ended(&rows, &instances).await;
    until_no_lock_is_left(&rows).await;
    // It comes back, and gets jobs again.
    other.start_again().await;
    let before = runs(&rows, &other).await;
    eventually("the other one to get jobs again", DONE, || async {
        let more = engine.start_instances("one", 4, &[]).await;
        until_ended(&rows, &more).await;
        (runs(&rows, &other).await > before).then_some(())
    })
    .await;
    assert!(bridge.node().health().ready);
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_of_camunda_goes_to_the_node_with_its_deployment_and_waits_while_there_is_none() {
    let world = World::start(EngineSettings::camunda7).await;
    let rows = world.connect().await;
    let with_classes = EngineSettings::camunda7(&world.database).property("local", "true");
    let mut other = EngineServer::start(with_classes).await;
    // Only this node registers the deployment, and only it has the bean of its tasks.
    other.deploy("local").await;
    let home = Scratch::new();
    let space = shared::rabbitmq().await.space().await;
    let hosts = format!("http://{},{}", world.engine.address(), other.address());
    let url = format!("{}/engine-rest", with_user(&hosts));
    let program = |arguments: &[&str]| {
        jobwire(&home, &world, arguments)
            .env("JOBWIRE_ENGINE_URL", &url)
            .env("JOBWIRE_ENGINE_DEPLOYMENT_AWARE", "true")
            .env("JOBWIRE_BROKER_URL", &space.url)
            .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
    };
    succeeds(program(&["engine", "init"])).await;
    let mut node: Running = program(&["engine", "run"]).start();
    let line = node.wait_for_line("is ready", DONE).await;
    let (_, address) = line.rsplit_once("http://").expect("the address");
    let shows = |what: &'static str, series: &'static str| {
        let address = address.trim();
        eventually(what, DONE, move || async move {
            let metrics = http::get(address, "/metrics").await.ok()?.body;
            metrics.lines().any(|line| line == series).then_some(())
        })
    };
    let mut instances = world.engine.start_instances("local", 5, &[]).await;
    until_ended(&rows, &instances).await;
    for instance in &instances {
        let places = places(&rows, instance).await;
        let at = |activity: &str| (activity.to_owned(), other.node());
        assert_eq!(places, [at("first"), at("second")]);
    }
    // The node with the classes dies. Its jobs wait, and those of the others go on.
    other.kill();
    shows(
        "the address to be away",
        "jobwire_engine_addresses_away{engine=\"camunda\"} 1",
    )
    .await;
    let waiting = world.engine.start_instances("local", 3, &[]).await;
    instances.extend(world.engine.start_instances("chain", 5, &[]).await);
    until_ended(&rows, &instances).await;
    shows(
        "the jobs to be counted",
        "jobwire_engine_unserved_jobs{engine=\"camunda\",why=\"reach\"} 3",
    )
    .await;
    for instance in &waiting {
        let job = rows.job(JOB, instance).await;
        assert!(job.retries == Some(3) && !job.is_locked(), "{job:?}");
        assert!(rows.effects(instance).await.is_empty());
    }
    node.wait_for_line("no address of the engine has the deployment", DONE)
        .await;
    let (status, said) = program(&["doctor"]).run(DONE).await;
    let said = said.join("\n");
    assert!(!status.success(), "{said}");
    for part in [
        "3 jobs wait, and no address has their deployment",
        "does not say which jobs it can run",
        "runs the jobs of",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let said = succeeds(program(&["engine", "sweep"])).await;
    assert!(said.contains("unserved"), "{said}");
    // An engine that starts registers nothing by itself; its application deploys again.
    other.start_again().await;
    shows(
        "the address to answer",
        "jobwire_engine_addresses_away{engine=\"camunda\"} 0",
    )
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!rows.ended(&waiting[0]).await);
    other.deploy("local").await;
    until_ended(&rows, &waiting).await;
    assert_eq!(repeated(&rows).await, []);
    shows(
        "no job to wait",
        "jobwire_engine_unserved_jobs{engine=\"camunda\",why=\"reach\"} 0",
    )
    .await;
    until_no_lock_is_left(&rows).await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(DONE).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_of_flowable_goes_to_a_node_that_runs_its_category() {
    let red = |database: &str| EngineSettings::flowable7(database).property("categories", "red");
    let world = World::start(red).await;
    let rows = world.connect().await;
    let blue = EngineSettings::flowable7(&world.database).property("categories", "blue");
    let mut blue = EngineServer::start(blue).await;
    world.engine.deploy("categories").await;
    let both = over_endpoint(&world.engine).also(blue.endpoint());
    let bridge = Bridge::start(&world, both, quick()).await;
    let instances = world.engine.start_instances("categories", 10, &[]).await;
    until_ended(&rows, &instances).await;
    for instance in &instances {
        let places = places(&rows, instance).await;
        assert_eq!(places[0], ("red".to_owned(), world.engine.node()));
        assert_eq!(places[1], ("blue".to_owned(), blue.node()));
        assert_eq!(places[2].0, "none");
    }
    blue.kill();
    let waiting = world.engine.start_instances("categories", 3, &[]).await;
    eventually("the jobs to be told", DONE, || async {
        let told = bridge.node().health().unserved;
        told.iter().any(|of| of.jobs == 3).then_some(())
    })
    .await;
    for instance in &waiting {
        assert_eq!(rows.effects(instance).await, ["red"]);
        let job = rows.job(JOB, instance).await;
        assert!(job.retries == Some(3) && !job.is_locked(), "{job:?}");
    }
    blue.start_again().await;
    until_ended(&rows, &waiting).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}
