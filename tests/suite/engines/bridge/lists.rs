//! Lists of jobs over the execution endpoint of Flowable and Camunda.

use jobwire_core::store::{Release, Store};
use jobwire_core::{Hint, NodeId};
use jobwire_engines::id::engine_id;
use jobwire_tests::EngineServer;

use super::camunda::world_with_endpoint;
use super::flowable::{
    Bridge, hint, over_endpoint, repeated, steady, terms, until_ended, until_no_lock_is_left, world,
};
use super::store::shared;
use crate::engines::rows::{JOB, Rows, World};

async fn job_of(rows: &Rows, engine: &EngineServer, process: &str, failures: &str) -> Hint {
    let variables: &[(&str, &str)] = match failures {
        "" => &[],
        failures => &[("failures", failures)],
    };
    let instance = engine.start_instance(process, variables).await;
    hint(&rows.job(JOB, &instance).await.id)
}

/// Each job of a list runs under its own lock, and has its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_of_a_list_has_its_end_and_one_under_another_lock_is_not_run() {
    let (engine, store, rows) = shared().await;
    let mut hints = vec![
        job_of(&rows, engine, "one", "").await,
        job_of(&rows, engine, "failing", "1").await,
        job_of(&rows, engine, "one", "").await,
    ];
    let node = NodeId::generate();
    let locked = store.lock(&terms(node), &hints).await.unwrap().jobs;
    assert_eq!(locked.len(), 3);
    let mut list = Vec::new();
    for hint in &hints {
        let lock = locked.iter().find(|it| it.job.id == hint.id).unwrap();
        list.push((engine_id(hint.id).unwrap(), lock.fence.number()));
    }
    // This node does not have this lock.
    list[2].1 += 1_000_000;
    let jobs: Vec<(&str, i64)> = list.iter().map(|(id, fence)| (&**id, *fence)).collect();
    let answer = engine.execute_list(&node.to_string(), &jobs).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let of = |id: &str| {
        let line = format!("{{\"job\":\"{id}\"");
        let mut lines = answer.body.lines();
        let found = lines.find(|it| it.contains(&line));
        found
            .unwrap_or_else(|| panic!("{}", answer.body))
            .to_owned()
    };
    assert!(of(jobs[0].0).contains("\"state\":\"gone\""));
    assert!(of(jobs[1].0).contains("\"state\":\"timer\""));
    assert!(of(jobs[2].0).contains("\"status\":404"));
    let left = hints.pop().unwrap();
    let lock = locked.iter().find(|it| it.job.id == left.id).unwrap();
    let lock = Release::of_attempt(lock.held());
    store.release(node, &[lock]).await.unwrap();
}

/// Jobs that wait are sent in lists, beside long ones, and each runs once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn waiting_jobs_run_in_lists_and_each_runs_once() {
    they_run_in_lists(world().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn waiting_jobs_of_camunda_run_in_lists_and_each_runs_once() {
    they_run_in_lists(world_with_endpoint().await).await;
}

async fn they_run_in_lists(world: World) {
    let rows = world.connect().await;
    let engine = &world.engine;
    let mut instances = engine
        .start_instances("slow", 3, &[("millis", "3000")])
        .await;
    instances.extend(engine.start_instances("one", 150, &[]).await);
    instances.extend(engine.start_instances("chain", 30, &[]).await);
    let node = steady().concurrency(64);
    let bridge = Bridge::start(&world, over_endpoint(engine).concurrency(4), node).await;
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}
