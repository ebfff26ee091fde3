//! Jobs of Camunda that belong to no instance: batches and the history cleanup.

use jobwire_engines::EngineOptions;
use jobwire_tests::eventually;

use super::world;
use crate::engines::bridge::flowable::{
    Bridge, DONE, options, quick, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_batch_of_camunda_runs_from_its_seed_to_its_monitor() {
    let world = world().await;
    let options = options(&world.engine);
    a_batch_runs(world, options).await;
}

pub(super) async fn a_batch_runs(world: World, options: EngineOptions) {
    let rows = world.connect().await;
    let engine = &world.engine;
    let bridge = Bridge::start(&world, options, quick()).await;
    let instances = engine
        .start_instances("timer", 5, &[("wait", "PT1H")])
        .await;
    let body = serde_json::json!({"processInstanceIds": instances, "deleteReason": "a test"});
    let begun = engine
        .rest("POST", "/process-instance/delete", &body.to_string())
        .await;
    assert_eq!(begun.status, 200, "{}", begun.body);
    until_ended(&rows, &instances).await;
    // The monitor looks every 30 seconds.
    eventually("the batch to end", DONE, || async {
        let left: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM act_ru_batch) + (SELECT count(*) FROM act_ru_job)",
        )
        .fetch_one(&rows.0)
        .await
        .unwrap();
        (left == 0).then_some(())
    })
    .await;
    let types: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT job_def_type_ FROM act_hi_job_log WHERE job_state_ = 2 AND job_def_type_ IS NOT NULL ORDER BY 1",
    )
    .fetch_all(&rows.0)
    .await
    .unwrap();
    assert_eq!(
        types,
        ["batch-monitor-job", "batch-seed-job", "instance-deletion"]
    );
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_history_cleanup_of_camunda_runs_and_its_job_waits_for_its_next_due_date() {
    let world = world().await;
    let options = options(&world.engine);
    the_history_cleanup_runs(world, options).await;
}

pub(super) async fn the_history_cleanup_runs(world: World, options: EngineOptions) {
    let rows = world.connect().await;
    let engine = &world.engine;
    let bridge = Bridge::start(&world, options, quick()).await;
    let begun = engine.rest("POST", "/history/cleanup", "").await;
    assert_eq!(begun.status, 200, "{}", begun.body);
    eventually("the cleanup to run", DONE, || async {
        let runs: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM act_hi_job_log WHERE job_def_type_ = 'history-cleanup' AND job_state_ = 2",
        )
        .fetch_one(&rows.0)
        .await
        .unwrap();
        (runs > 0).then_some(())
    })
    .await;
    until_no_lock_is_left(&rows).await;
    // The engine keeps the job. It is no dead letter, and it does not run again and again.
    let (jobs, waiting): (i64, i64) = sqlx::query_as(
        "SELECT count(*), count(*) FILTER (WHERE retries_ > 0 AND (suspension_state_ = 2 OR duedate_ > localtimestamp - interval '1 minute'))
         FROM act_ru_job WHERE handler_type_ = 'history-cleanup'",
    )
    .fetch_one(&rows.0)
    .await
    .unwrap();
    assert!(jobs > 0);
    assert_eq!(jobs, waiting);
    let runs: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM act_hi_job_log WHERE job_def_type_ = 'history-cleanup' AND job_state_ = 2",
    )
    .fetch_one(&rows.0)
    .await
    .unwrap();
    assert!(runs <= 10, "{runs} runs");
    bridge.stop().await;
}
