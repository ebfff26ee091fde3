//! From the engine's own executor to Jobwire and back, while jobs run: step by step as the pages of
//! the engines say.

use jobwire_tests::{EngineServer, EngineSettings, JobExecutor, eventually};

use super::flowable::{
    Bridge, DONE, options, quick, repeated, store, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::{Rows, World};

/// Waits until the last of these instances has done a step, so that many of them are half done.
async fn until_half_done(rows: &Rows, instances: &[String]) {
    let last = instances.last().expect("an instance");
    eventually("some steps", DONE, || async {
        (!rows.effects(last).await.is_empty()).then_some(())
    })
    .await;
}

async fn over_and_back(settings: fn(&str) -> EngineSettings) {
    // Two engine nodes: one answers requests, the other one executes jobs.
    let world = World::start(settings).await;
    let own = || settings(&world.database).executor(JobExecutor::On);
    let rows = world.connect().await;
    let engine = &world.engine;
    let mut executing = EngineServer::start(own()).await;
    let mut instances = engine.start_instances("chain", 30, &[]).await;
    until_half_done(&rows, &instances).await;
    // Over: Jobwire starts beside the executor, which is then turned off.
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    instances.extend(engine.start_instances("chain", 30, &[]).await);
    executing.stop().await;
    instances.extend(engine.start_instances("chain", 30, &[]).await);
    until_half_done(&rows, &instances).await;
    // Back: Jobwire stops in the middle of chains, and hands everything back.
    instances.extend(engine.start_instances("chain", 30, &[]).await);
    let releasing = store(&world, options(engine)).await;
    bridge.stop().await;
    releasing.release_engine().await.unwrap();
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
    assert_eq!(rows.count(schemas, "jobwire_engine").await, 0);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE $1 AND database = current_database()";
    assert_eq!(rows.count(slots, "jobwire%").await, 0);
    let again = EngineServer::start(own()).await;
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, [], "each activity ran once");
    until_no_lock_is_left(&rows).await;
    drop(again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn flowable_is_handed_over_and_back_while_its_jobs_run() {
    over_and_back(EngineSettings::flowable7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn camunda_is_handed_over_and_back_while_its_jobs_run() {
    over_and_back(EngineSettings::camunda7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn activiti_is_handed_over_and_back_while_its_jobs_run() {
    over_and_back(EngineSettings::activiti7).await;
}
