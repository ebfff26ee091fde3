//! A node of Flowable that polls beside somebody who locks rows by SQL.

use jobwire_tests::{EngineServer, EngineSettings, JobExecutor, eventually};

use crate::engines::rows::{JOB, LOCK, LOCK_INSTANCE, SOON, World};

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_polling_node_of_flowable_leaves_locked_rows_and_instances() {
    let world = World::start(EngineSettings::flowable7).await;
    let (quiet, rows) = (&world.engine, world.connect().await);
    let locked = quiet.start_instance("one", &[]).await;
    let in_locked = quiet.start_instance("one", &[]).await;
    let locked_job = rows.job(JOB, &locked).await;
    assert_eq!(rows.change(LOCK, &locked_job.id).await, 1);
    assert_eq!(rows.change(LOCK_INSTANCE, &in_locked).await, 1);
    let wait = "flowable.process.async.executor.default-async-job-acquire-wait-time";
    let polling = EngineSettings::flowable7(&world.database)
        .executor(JobExecutor::On)
        .property(wait, "PT0.1S");
    let _polling = EngineServer::start(polling).await;
    // The polling node takes the row, finds the instance locked, and gives the row back: each try
    // raises the revision twice.
    eventually("several tries", SOON, || async {
        let job = rows.job(JOB, &in_locked).await;
        (job.revision >= 7).then_some(())
    })
    .await;
    let free = quiet.start_instance("one", &[]).await;
    rows.until_ended(&free).await;
    assert_eq!(rows.job(JOB, &locked).await.revision, 1);
    assert!(rows.effects(&locked).await.is_empty());
    assert!(rows.effects(&in_locked).await.is_empty());
    assert_eq!(rows.job(JOB, &in_locked).await.retries, Some(3));
    let unlock = "UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE id_ = $1";
    assert_eq!(rows.change(unlock, &locked_job.id).await, 1);
    let unlock = "UPDATE act_ru_execution SET lock_time_ = NULL WHERE id_ = $1";
    assert_eq!(rows.change(unlock, &in_locked).await, 1);
    for instance in [&locked, &in_locked] {
        rows.until_ended(instance).await;
        assert_eq!(rows.effects(instance).await, ["work"]);
    }
}
