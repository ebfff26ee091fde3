//! Jobs of external workers: they stay the engine's affair, and what follows them runs.

use jobwire_tests::eventually;
use serde_json::Value;

use crate::engines::bridge::flowable::{
    Bridge, DONE, options, quick, until_ended, until_no_lock_is_left, world,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_of_an_external_worker_waits_for_it_and_its_completion_runs() {
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    engine.deploy("worker").await;
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    let instance = engine.start_instance("worker", &[]).await;
    // A later instance shows that the bridge has passed.
    let later = engine.start_instances("one", 3, &[]).await;
    until_ended(&rows, &later).await;
    let external = "SELECT count(*) FROM act_ru_external_job WHERE process_instance_id_ = $1 AND lock_owner_ IS NULL";
    assert_eq!(rows.count(external, &instance).await, 1);
    let acquire =
        r#"{"topic":"outside","lockDuration":"PT1M","numberOfTasks":1,"workerId":"test"}"#;
    let acquired = engine
        .post_json("/external-job-api/acquire/jobs", acquire)
        .await;
    assert_eq!(acquired.status, 200, "{}", acquired.body);
    let jobs: Value = serde_json::from_str(&acquired.body).unwrap();
    let job = jobs[0]["id"].as_str().unwrap();
    let path = format!("/external-job-api/acquire/jobs/{job}/complete");
    let completed = engine.post_json(&path, r#"{"workerId":"test"}"#).await;
    assert_eq!(completed.status, 204, "{}", completed.body);
    until_ended(&rows, std::slice::from_ref(&instance)).await;
    assert_eq!(rows.effects(&instance).await, ["work"]);
    eventually("the external job to be gone", DONE, || async {
        (rows.count(external, &instance).await == 0).then_some(())
    })
    .await;
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}
