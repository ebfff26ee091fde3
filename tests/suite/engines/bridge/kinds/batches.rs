//! Batches of Camunda besides those of `camunda/batches.rs`.

use jobwire_tests::{EngineSettings, eventually};
use sqlx::Row;

use crate::engines::bridge::flowable::{Bridge, DONE, options, quick, until_no_lock_is_left};
use crate::engines::rows::{JOB, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn batches_of_camunda_that_change_jobs_and_instances_run_to_their_end() {
    let world = World::start(EngineSettings::camunda7).await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    let instances = engine
        .start_instances("timer", 4, &[("wait", "PT1H")])
        .await;
    let retries = serde_json::json!({"processInstances": instances, "retries": 7});
    let suspended = serde_json::json!({"processInstanceIds": instances, "suspended": true});
    for (path, body) in [
        ("/process-instance/job-retries", retries),
        ("/process-instance/suspended-async", suspended),
    ] {
        let begun = engine.rest("POST", path, &body.to_string()).await;
        assert_eq!(begun.status, 200, "{path}: {}", begun.body);
        // The monitor looks every 30 seconds.
        eventually("the batch to end", DONE, || async {
            let batches = "SELECT count(*) FROM act_ru_batch WHERE $1 = ''";
            (rows.count(batches, "").await == 0).then_some(())
        })
        .await;
    }
    for instance in &instances {
        assert_eq!(rows.job(JOB, instance).await.retries, Some(7));
    }
    let query = "SELECT DISTINCT job_def_type_ FROM act_hi_job_log
        WHERE job_state_ = 2 AND job_def_type_ IS NOT NULL AND $1 = '' ORDER BY 1";
    let types = rows.all(query, "").await;
    let types: Vec<String> = types.iter().map(|row| row.get(0)).collect();
    for kind in [
        "batch-monitor-job",
        "batch-seed-job",
        "instance-update-suspension-state",
        "set-job-retries",
    ] {
        assert!(
            types.iter().any(|found| found == kind),
            "{kind} in {types:?}"
        );
    }
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}
