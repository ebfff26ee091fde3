//! Camunda 7 on MariaDB. All its jobs are in one table, whose columns show their states. Its instances
//! have no locks. Its times have whole seconds.

use jobwire_core::store::Store;
use jobwire_core::{JobQuery, JobState};
use jobwire_tests::{EngineSettings, eventually};

use super::super::flowable::{DONE, quick};
use super::{
    World, a_failing_job_has_the_engines_own_retries, a_killed_engine_comes_back,
    executed_once_although_the_answer_is_late, read_committed, stop, the_engine_runs_its_jobs,
    the_program_survives_a_kill, waiting_jobs_run_in_lists,
};

async fn world() -> World {
    World::of(|database| {
        read_committed(EngineSettings::camunda7(database))
            .property("jobwire.engine-endpoint", "true")
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn camunda_on_mariadb_runs_its_jobs_over_the_endpoint_alone() {
    the_engine_runs_its_jobs(world().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn waiting_jobs_of_camunda_on_mariadb_run_in_lists_and_each_runs_once() {
    waiting_jobs_run_in_lists(world().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_camunda_on_mariadb_that_answers_late_executes_the_job_once_under_a_lock_that_stays() {
    executed_once_although_the_answer_is_late(world().await).await;
}

/// Three attempts, each due at once, and then an incident.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_of_camunda_that_fails_on_mariadb_has_its_own_retries_and_is_revived() {
    a_failing_job_has_the_engines_own_retries(world().await, "as wished").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_camunda_on_mariadb_that_is_killed_and_comes_back_loses_no_job_and_no_attempt() {
    a_killed_engine_comes_back(world().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_program_beside_camunda_on_mariadb_survives_a_kill_and_gives_the_jobs_back() {
    the_program_survives_a_kill(world().await, "schema version 7.24").await;
}

/// Camunda's own executor counts no failure when the end of the lock has changed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_failure_of_camunda_on_mariadb_counts_after_its_lock_was_extended() {
    let world = world().await;
    let node = world.node(quick()).await;
    let failing = [("failures", "100")];
    let instance = world.engine.start_instance("held", &failing).await;
    world.until_started(&instance, 1).await;
    let of_it = format!("FROM ACT_RU_JOB WHERE PROCESS_INSTANCE_ID_ = '{instance}'");
    let end = format!("SELECT LOCK_EXP_TIME_ {of_it}");
    let before = world.database.query(&end).await;
    eventually("the lock to be extended", DONE, || async {
        let now = world.database.query(&end).await;
        assert_eq!(now.len(), 1, "the job runs");
        (now != before).then_some(())
    })
    .await;
    world.engine.release(&instance).await;
    let incidents =
        format!("SELECT count(*) FROM ACT_RU_INCIDENT WHERE PROC_INST_ID_ = '{instance}'");
    eventually("the incident", DONE, || async {
        (world.database.count(&incidents).await == 1).then_some(())
    })
    .await;
    world.until_no_lock_is_left().await;
    let spent = format!("SELECT count(*) {of_it} AND RETRIES_ = 0");
    assert_eq!(world.database.count(&spent).await, 1);
    let dead = JobQuery::default().instance(&*instance);
    let dead = world.store().find(&dead).await.unwrap();
    assert!(
        dead.len() == 1 && dead[0].state == JobState::DeadLetter,
        "{dead:?}"
    );
    stop(node).await;
}

/// A suspended job stays in its row, and so does a timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn jobs_of_camunda_on_mariadb_wait_in_their_rows_and_lose_no_attempt() {
    let world = world().await;
    let suspended = world.engine.start_instance("one", &[]).await;
    world.engine.suspend(&suspended).await;
    let wait = [("wait", "PT1H")];
    let timer = world.engine.start_instance("timer", &wait).await;
    let node = world.node(quick()).await;
    // A later instance shows that the node has passed.
    let later = world.engine.start_instances("chain", 2, &[]).await;
    world.until_ended(&later).await;
    let store = world.store();
    let states = [(&suspended, JobState::Suspended), (&timer, JobState::Timer)];
    let mut timer_job = None;
    for (instance, state) in states {
        let found = store.find(&JobQuery::default().instance(&**instance)).await;
        let [job] = &*found.unwrap() else {
            panic!("one job of {instance}");
        };
        assert_eq!((job.state, job.retries), (state, 3));
        assert_eq!(world.runs(instance).await, 0);
        timer_job = Some(job.id);
    }
    world.engine.activate(&suspended).await;
    // An operator runs the timer at once.
    let timer_job = timer_job.unwrap();
    store.retry(timer_job, 3).await.unwrap();
    world.until_ended(&[suspended, timer]).await;
    world.until_no_lock_is_left().await;
    stop(node).await;
}
