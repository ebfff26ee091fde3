//! The commit tap of Camunda: inserts and updates of its one table.

use jobwire_core::store::Store;
use jobwire_tests::eventually;

use super::{JOB, incidents, world};
use crate::engines::bridge::flowable::{
    Bridge, DONE, options, quick, repeated, store, until_ended, until_no_lock_is_left,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn with_a_tap_every_job_of_camunda_runs_and_no_update_of_the_engine_fails() {
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let prepares = store(&world, options(engine)).await;
    prepares.create_tap().await.unwrap();
    prepares.close().await;
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    eventually("the tap to stand", DONE, || async {
        let slots: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()",
        )
        .fetch_one(&rows.0)
        .await
        .unwrap();
        (slots == 1).then_some(())
    })
    .await;
    let mut instances = engine.start_instances("chain", 10, &[]).await;
    instances.extend(engine.start_instances("fork", 20, &[]).await);
    instances.extend(
        engine
            .start_instances("timer", 5, &[("wait", "PT1S")])
            .await,
    );
    let dead = engine
        .start_instance("failing", &[("failures", "100")])
        .await;
    until_ended(&rows, &instances).await;
    eventually("the incident", DONE, || async {
        (incidents(&rows, &dead).await == 1).then_some(())
    })
    .await;
    // An update makes the job ready again.
    let job = rows.job(JOB, &dead).await;
    let path = format!("/job/{}/retries", job.id);
    assert_eq!(
        engine.rest("PUT", &path, "{\"retries\":1}").await.status,
        204
    );
    rows.until_started(&dead, 4).await;
    let twice = repeated(&rows).await;
    assert!(
        twice.iter().all(|(instance, ..)| *instance == dead),
        "{twice:?}"
    );
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}
