//! Dead nodes, suspensions and conflicts.

use std::time::{Duration, Instant};

use jobwire_core::NodeId;
use jobwire_core::store::Store;
use jobwire_tests::{EngineServer, EngineSettings, JobExecutor, eventually};

use super::{JOB, LOCK, incidents, world};
use crate::engines::bridge::conformance::joins_end;
use crate::engines::bridge::flowable::{
    Bridge, DONE, hint, options, quick, repeated, store, terms, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::{Rows, World};
use jobwire_engines::EngineOptions;
use sqlx::Row;

/// Waits until the one activity of an instance has run for that long. Its job is locked meanwhile.
async fn until_locked_since(rows: &Rows, instance: &str, long: Duration) {
    eventually("the job to run for some time", DONE, || async {
        assert!(rows.job(JOB, instance).await.is_locked());
        let query = "SELECT extract(epoch FROM clock_timestamp() - min(at))::float8 FROM jobwire_effect WHERE instance = $1";
        let runs: f64 = rows.all(query, instance).await[0].get(0);
        (runs >= long.as_secs_f64()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn no_execution_of_camunda_hangs_at_a_join() {
    joins_end(world().await, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_of_a_dead_node_is_taken_over_when_its_lock_has_expired_and_not_before() {
    let world = world().await;
    let rows = world.connect().await;
    let options = options(&world.engine).lock_for(LOCK);
    let dead = store(&world, options.clone()).await;
    let instance = world.engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let mut terms = terms(NodeId::generate());
    terms.lease = Duration::from_secs(3);
    let locked = dead.lock(&terms, &[hint(&job.id)]).await.unwrap();
    let began = Instant::now();
    assert_eq!(locked.jobs.len(), 1);
    dead.close().await;
    let bridge = Bridge::start(&world, options, quick()).await;
    until_ended(&rows, std::slice::from_ref(&instance)).await;
    assert!(began.elapsed() >= LOCK - Duration::from_millis(100));
    assert_eq!(rows.effects(&instance).await.len(), 1);
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_node_that_is_killed_while_the_engine_executes_its_jobs_leaves_none_behind_or_run_twice()
{
    let world = world().await;
    let options = options(&world.engine);
    a_killed_node_leaves_none_behind(world, options).await;
}

pub(super) async fn a_killed_node_leaves_none_behind(world: World, options: EngineOptions) {
    let rows = world.connect().await;
    let options = options.lock_for(LOCK);
    let killed = tokio::runtime::Runtime::new().unwrap();
    let start = {
        let (database, options) = (world.database.clone(), options.clone());
        async move {
            let store = jobwire_engines::EngineStore::camunda(&database, options).await;
            let store = store.unwrap();
            store.init().await.unwrap();
            let transport = std::sync::Arc::new(jobwire_core::InProcessTransport::new());
            Bridge::on(store, transport, quick()).await
        }
    };
    let bridge = killed.spawn(start).await.unwrap();
    let held = world
        .engine
        .start_instances("held", 3, &[("failures", "0")])
        .await;
    let mut instances = world.engine.start_instances("chain", 20, &[]).await;
    for instance in &held {
        rows.until_started(instance, 1).await;
    }
    // Everything of the node ends at once, as with its process. The engine goes on.
    killed.shutdown_background();
    std::mem::forget(bridge);
    let survivor = Bridge::start(&world, options, quick()).await;
    until_ended(&rows, &instances).await;
    // The engine still executes the held jobs when the leader has looked at their expired locks
    // several times.
    for instance in &held {
        until_locked_since(&rows, instance, LOCK + Duration::from_secs(4)).await;
    }
    for instance in &held {
        assert_eq!(rows.effects(instance).await.len(), 1, "run twice");
        world.engine.release(instance).await;
    }
    instances.extend(held);
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    survivor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_suspended_instance_of_camunda_loses_no_attempt_and_goes_on_when_it_is_activated() {
    let world = world().await;
    let rows = world.connect().await;
    let instance = world.engine.start_instance("one", &[]).await;
    world.engine.suspend(&instance).await;
    let bridge = Bridge::start(&world, options(&world.engine), quick()).await;
    // A later instance shows that the bridge has passed.
    let later = world.engine.start_instance("one", &[]).await;
    until_ended(&rows, &[later]).await;
    let job = rows.job(JOB, &instance).await;
    assert!(job.retries == Some(3) && !job.is_locked(), "{job:?}");
    world.engine.activate(&instance).await;
    until_ended(&rows, std::slice::from_ref(&instance)).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_failure_during_a_long_job_of_camunda_is_counted_and_ends_in_an_incident() {
    let world = world().await;
    let options = options(&world.engine);
    a_failure_during_a_long_job_is_counted(world, options).await;
}

pub(super) async fn a_failure_during_a_long_job_is_counted(world: World, options: EngineOptions) {
    let rows = world.connect().await;
    let bridge = Bridge::start(&world, options, quick()).await;
    let engine = &world.engine;
    let instance = engine.start_instance("held", &[("failures", "100")]).await;
    rows.until_started(&instance, 1).await;
    // Longer than the node's lease, so renewals have looked.
    until_locked_since(&rows, &instance, Duration::from_secs(4)).await;
    engine.release(&instance).await;
    eventually("the incident", DONE, || async {
        (incidents(&rows, &instance).await == 1).then_some(())
    })
    .await;
    let job = rows.job(JOB, &instance).await;
    assert!(job.retries == Some(0) && !job.is_locked(), "{job:?}");
    // An operator gives it a new attempt, over the engine's own interface.
    let path = format!("/job/{}/retries", job.id);
    assert_eq!(
        engine.rest("PUT", &path, "{\"retries\":1}").await.status,
        204
    );
    eventually("the attempt", DONE, || async {
        // Each attempt leaves two effects.
        (rows.effects(&instance).await.len() == 8).then_some(())
    })
    .await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn beside_a_camunda_node_that_polls_no_activity_runs_twice() {
    let world = world().await;
    let options = options(&world.engine);
    beside_a_node_that_polls_no_activity_runs_twice(world, options).await;
}

pub(super) async fn beside_a_node_that_polls_no_activity_runs_twice(
    world: World,
    options: EngineOptions,
) {
    let rows = world.connect().await;
    let polls = EngineSettings::camunda7(&world.database).executor(JobExecutor::On);
    let polling = EngineServer::start(polls).await;
    let bridge = Bridge::start(&world, options, quick()).await;
    // A node of the engine runs jobs side by side that are not exclusive, rolls back at the join and
    // runs them again. So no instance has parallel branches here.
    let mut instances = world.engine.start_instances("one", 100, &[]).await;
    instances.extend(world.engine.start_instances("chain", 30, &[]).await);
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
    drop(polling);
}
