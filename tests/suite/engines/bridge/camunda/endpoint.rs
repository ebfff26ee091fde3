//! Camunda over the execution endpoint, where Jobwire locks the jobs in its database.

use jobwire_core::job::LockedJob;
use jobwire_core::store::Store;
use jobwire_core::{JobState, NodeId};
use jobwire_engines::examine::{Level, examine};
use jobwire_engines::{EngineStore, Execution};
use jobwire_tests::EngineServer;
use jobwire_tests::http::Response;
use tokio::sync::OnceCell;

use super::batches::{a_batch_runs, the_history_cleanup_runs};
use super::faults::{
    a_failure_during_a_long_job_is_counted, a_killed_node_leaves_none_behind,
    beside_a_node_that_polls_no_activity_runs_twice,
};
use super::store::{dead_letters_and_timers_are_retried, lock_one, settle};
use super::{JOB, incidents, world_with_endpoint};
use crate::engines::bridge::conformance::joins_end_with;
use crate::engines::bridge::flowable::{job_id, over_endpoint, store};
use crate::engines::rows::{Rows, World, state};

async fn shared_world() -> &'static World {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    SHARED.get_or_init(world_with_endpoint).await
}

/// The shared engine, on which no node runs; a store on its tables over the endpoint, and its rows.
async fn shared() -> (&'static EngineServer, EngineStore, Rows) {
    let world = shared_world().await;
    let store = store(world, over_endpoint(&world.engine)).await;
    store.check().await.unwrap().ready().unwrap();
    (&world.engine, store, world.connect().await)
}

/// Runs a job under its lock, as a node does.
async fn execute(engine: &EngineServer, locked: &LockedJob, owner: NodeId) -> Response {
    let id = jobwire_engines::id::engine_id(locked.job.id).unwrap();
    let owner = format!("jobwire:{owner}:{}", locked.fence);
    engine.execute_under_lock(&id, &owner, false).await
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn the_row_decides_what_became_of_a_job_of_camunda_over_the_endpoint() {
    let (engine, store, rows) = shared().await;
    let owner = NodeId::generate();
    // Executed: the instance has ended. A late request runs nothing.
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let locked = lock_one(&store, owner, &job).await;
    assert_eq!(state(&execute(engine, &locked, owner).await), "gone");
    assert_eq!(execute(engine, &locked, owner).await.status, 404);
    let outcome = settle(&store, owner, locked.held()).await;
    assert_eq!(outcome.applied, [locked.job.id]);
    assert!(outcome.ready.is_empty() && outcome.timer.is_none());
    assert_eq!(rows.effects(&instance).await, ["work"]);
    // Failed three times: after the third there is an incident, and no hint.
    let instance = engine
        .start_instance("failing", &[("failures", "100")])
        .await;
    let job = rows.job(JOB, &instance).await;
    for left in [2, 1, 0] {
        let locked = lock_one(&store, owner, &job).await;
        let failed = execute(engine, &locked, owner).await;
        let expected = if left > 0 { "timer" } else { "dead letter" };
        assert_eq!(state(&failed), expected);
        let outcome = settle(&store, owner, locked.held()).await;
        assert_eq!(outcome.ready.len(), usize::from(left > 0), "{outcome:?}");
        let row = rows.job(JOB, &instance).await;
        assert!(!row.is_locked() && row.retries == Some(left), "{row:?}");
    }
    assert_eq!(incidents(&rows, &instance).await, 1);
    let (view, _, _) = store.get(job_id(&job.id)).await.unwrap().unwrap();
    assert_eq!((view.state, view.retries), (JobState::DeadLetter, 0));
}

/// Over REST, the engine would count a failure.
#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_of_camunda_that_is_suspended_after_its_lock_does_not_run_and_loses_no_attempt() {
    let (engine, store, rows) = shared().await;
    let owner = NodeId::generate();
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let locked = lock_one(&store, owner, &job).await;
    engine.suspend(&instance).await;
    let refused = execute(engine, &locked, owner).await;
    assert_eq!(refused.status, 404);
    assert!(refused.body.contains("executable job"), "{}", refused.body);
    let outcome = settle(&store, owner, locked.held()).await;
    assert!(outcome.ready.is_empty(), "{outcome:?}");
    let row = rows.job(JOB, &instance).await;
    assert!(!row.is_locked() && row.retries == Some(3), "{row:?}");
    engine.activate(&instance).await;
    let locked = lock_one(&store, owner, &job).await;
    assert_eq!(state(&execute(engine, &locked, owner).await), "gone");
    settle(&store, owner, locked.held()).await;
    assert_eq!(rows.effects(&instance).await, ["work"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_conflict_of_camunda_over_the_endpoint_costs_no_attempt() {
    let (engine, store, rows) = shared().await;
    let owner = NodeId::generate();
    let instance = engine.start_instance("beside", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let locked = lock_one(&store, owner, &job).await;
    let running = locked.clone();
    let executes = tokio::spawn(async move { execute(engine, &running, owner).await });
    rows.until_started(&instance, 1).await;
    let completed = engine.complete_tasks(&instance).await;
    assert_eq!(completed.status, 200, "{}", completed.body);
    engine.release(&instance).await;
    assert_eq!(state(&executes.await.unwrap()), "job");
    let outcome = settle(&store, owner, locked.held()).await;
    assert_eq!(outcome.ready.len(), 1, "{outcome:?}");
    let row = rows.job(JOB, &instance).await;
    assert!(!row.is_locked() && row.retries == Some(3), "{row:?}");
    let locked = lock_one(&store, owner, &job).await;
    assert_eq!(state(&execute(engine, &locked, owner).await), "gone");
    settle(&store, owner, locked.held()).await;
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn an_operator_retries_and_deletes_jobs_of_camunda_over_the_endpoint() {
    let (engine, store, rows) = shared().await;
    dead_letters_and_timers_are_retried(engine, &store, &rows).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn the_doctor_knows_the_endpoint_of_camunda() {
    let (engine, store, _) = shared().await;
    assert_eq!(store.options().execution, Execution::Endpoint);
    let findings = examine(&store).await.unwrap();
    let is_fine = findings
        .iter()
        .any(|it| it.about == "endpoint" && it.level == Level::Fine);
    assert!(is_fine, "{findings:?}");
    let mut wrong = over_endpoint(engine);
    wrong.urls = vec![engine.url()];
    let elsewhere = EngineStore::camunda(&shared_world().await.database, wrong).await;
    let findings = examine(&elsewhere.unwrap()).await.unwrap();
    let is_wrong = findings
        .iter()
        .any(|it| it.about == "endpoint" && it.level == Level::Wrong);
    assert!(is_wrong, "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn no_execution_of_camunda_over_the_endpoint_hangs_at_a_join() {
    let world = world_with_endpoint().await;
    let options = over_endpoint(&world.engine);
    joins_end_with(world, options, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_node_that_is_killed_while_camunda_executes_its_jobs_over_the_endpoint_repeats_none() {
    let world = world_with_endpoint().await;
    let options = over_endpoint(&world.engine);
    a_killed_node_leaves_none_behind(world, options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_failure_during_a_long_job_of_camunda_over_the_endpoint_is_counted() {
    let world = world_with_endpoint().await;
    let options = over_endpoint(&world.engine);
    a_failure_during_a_long_job_is_counted(world, options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn over_the_endpoint_beside_a_camunda_node_that_polls_no_activity_runs_twice() {
    let world = world_with_endpoint().await;
    let options = over_endpoint(&world.engine);
    beside_a_node_that_polls_no_activity_runs_twice(world, options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_batch_of_camunda_runs_over_the_endpoint() {
    let world = world_with_endpoint().await;
    let options = over_endpoint(&world.engine);
    a_batch_runs(world, options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_history_cleanup_of_camunda_runs_over_the_endpoint() {
    let world = world_with_endpoint().await;
    let options = over_endpoint(&world.engine);
    the_history_cleanup_runs(world, options).await;
}
