//! Activiti on MariaDB. Its tables have fewer columns than Flowable's, and the locks of its
//! instances have no owner.

use std::time::Duration;

use jobwire_core::NodeId;
use jobwire_core::job::LockedJob;
use jobwire_core::store::LockTerms;
use jobwire_tests::EngineSettings;

use super::super::endpoint_alone::{lock_one, settle};
use super::super::flowable::{hint, job_id, quick, terms};
use super::{
    World, a_failing_job_has_the_engines_own_retries, a_killed_engine_comes_back, stop,
    the_engine_runs_its_jobs, the_program_survives_a_kill, waiting_jobs_run_in_lists,
};

async fn world() -> World {
    World::of(EngineSettings::activiti7).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn activiti_on_mariadb_runs_its_jobs_over_the_endpoint_alone() {
    the_engine_runs_its_jobs(world().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn activiti6_on_mariadb_runs_its_jobs_over_the_endpoint_alone() {
    the_engine_runs_its_jobs(World::of(EngineSettings::activiti6).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn waiting_jobs_of_activiti_on_mariadb_run_in_lists_and_each_runs_once() {
    waiting_jobs_run_in_lists(world().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_of_activiti_that_fails_on_mariadb_has_its_own_retries_and_is_revived() {
    a_failing_job_has_the_engines_own_retries(world().await, "service task expression").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_activiti_on_mariadb_that_is_killed_and_comes_back_loses_no_job_and_no_attempt() {
    a_killed_engine_comes_back(world().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_program_beside_activiti_on_mariadb_survives_a_kill_and_gives_the_jobs_back() {
    the_program_survives_a_kill(world().await, "Activiti, schema version 7.1").await;
}

/// A polling engine node respects the lock of an instance until its time. A job may be longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_instance_of_a_long_job_of_activiti_on_mariadb_stays_locked() {
    let (lock, reset) = (Duration::from_secs(8), Duration::from_secs(60));
    let world =
        World::of(|database| EngineSettings::activiti7(database).activiti_locks(lock, reset));
    let world = world.await;
    let node = world.node(quick()).await;
    let slow = [("millis", "20000")];
    let slow = world.engine.start_instance("slow", &slow).await;
    world.until_started(&slow, 1).await;
    let locked = |condition: &str| {
        format!("SELECT count(*) FROM ACT_RU_EXECUTION WHERE ID_ = '{slow}' AND {condition}")
    };
    assert_eq!(
        world
            .database
            .count(&locked("LOCK_TIME_ IS NOT NULL"))
            .await,
        1
    );
    tokio::time::sleep(lock + Duration::from_secs(4)).await;
    let lasts = locked("LOCK_TIME_ > UTC_TIMESTAMP(3)");
    assert_eq!(world.database.count(&lasts).await, 1, "it was not extended");
    world.until_ended(std::slice::from_ref(&slow)).await;
    assert_eq!(world.runs(&slow).await, 1);
    world.until_no_lock_is_left().await;
    stop(node).await;
}

/// The engine inserts a job that it returns under a new id. The node's lock ends with the old
/// row, and the new one is the next job of the instance. No attempt is spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_that_activiti_on_mariadb_gives_back_is_locked_under_its_new_id() {
    let world = world().await;
    let store = world.store();
    let instance = world.engine.start_instance("one", &[]).await;
    let job = world.job(&instance).await;
    let node = terms(NodeId::generate());
    let locked = lock_one(&store, &node, &[hint(&job)]).await;
    // An execution of a dead engine has locked the instance.
    let lock = format!(
        "UPDATE ACT_RU_EXECUTION SET LOCK_TIME_ = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR WHERE ID_ = '{instance}'"
    );
    world.database.query(&lock).await;
    assert_eq!(world.run(&node, &job, &locked).await, "job");
    let again = world.job(&instance).await;
    assert_ne!(again, job);
    let outcome = settle(&store, &node, locked.held()).await;
    assert_eq!(outcome.applied, [locked.job.id]);
    let [next] = &*outcome.next else {
        panic!("the job is locked again: {outcome:?}");
    };
    assert_eq!((next.job.id, next.job.retries), (job_id(&again), 3));
    assert_eq!(world.run(&node, &again, next).await, "gone");
    settle(&store, &node, next.held()).await;
    world.until_ended(std::slice::from_ref(&instance)).await;
    assert_eq!((world.runs(&instance).await, world.locks().await), (1, 0));
}

impl World {
    /// Returns the engine's id of the one executable job of an instance.
    async fn job(&self, instance: &str) -> String {
        let sql = format!("SELECT ID_ FROM ACT_RU_JOB WHERE PROCESS_INSTANCE_ID_ = '{instance}'");
        let rows = self.database.query(&sql).await;
        let [row] = &*rows else {
            panic!("one job: {rows:?}");
        };
        row[0].clone()
    }

    /// Runs a locked job, and returns its state.
    async fn run(&self, node: &LockTerms, id: &str, job: &LockedJob) -> String {
        let jobs = [(id, job.fence.number())];
        let answer = self.engine.run_list(&node.owner.to_string(), &jobs).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let line: serde_json::Value = serde_json::from_str(answer.body.trim()).unwrap();
        line["state"].as_str().unwrap_or(&answer.body).to_owned()
    }
}
