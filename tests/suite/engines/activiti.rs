//! Activiti 7: with its executor off, and in its message-queue mode with a queue that loses every
//! message. The endpoint runs its jobs.

use std::time::Duration;

use jobwire_tests::{EngineServer, EngineSettings, JobExecutor, eventually};
use tokio::sync::OnceCell;

use crate::engines::endpoint::endpoint_cases;
use crate::engines::rows::{JOB, LOCK, Rows, SOON, TIMER, World, state};

/// The shared engine with its executor off, and the database.
async fn activiti() -> (&'static EngineServer, Rows) {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    let world = SHARED
        .get_or_init(|| World::start(EngineSettings::activiti7))
        .await;
    (&world.engine, world.connect().await)
}

endpoint_cases!(
    crate::engines::activiti::activiti,
    #[ignore = "long: scripts/test --long engines::"]
);

/// An engine in message-queue mode that locks for two seconds and looks for expired locks and due
/// timers twice a second.
async fn losing() -> World {
    World::start(|database| {
        EngineSettings::activiti7(database)
            .executor(JobExecutor::MessageQueue)
            .activiti_locks(Duration::from_secs(2), Duration::from_millis(500))
    })
    .await
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn an_activiti_without_executor_leaves_its_rows_unlocked() {
    let (engine, rows) = activiti().await;
    let instance = engine.start_instance("chain", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!((job.revision, job.retries), (1, Some(3)));
    assert!(!job.is_locked(), "{job:?}");
    assert_eq!(state(&engine.execute_by_endpoint(&job.id).await), "gone");
    let next = rows.job(JOB, &instance).await;
    assert_ne!(next.id, job.id);
    assert!(!next.is_locked(), "{next:?}");
    let timer = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let timer = rows.job(TIMER, &timer).await;
    assert!(timer.due.is_some() && !timer.is_locked(), "{timer:?}");
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_lost_message_orphans_a_job_of_activiti_until_somebody_runs_it() {
    let world = losing().await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert!(job.is_locked(), "its producer locks it: {job:?}");
    eventually("the lock to be reset", SOON, || async {
        let job = rows.job(JOB, &instance).await;
        (!job.is_locked()).then_some(())
    })
    .await;
    // A later orphan is reset, too: the engine has looked again since.
    let later = engine.start_instance("one", &[]).await;
    eventually("the next lock to be reset", SOON, || async {
        (!rows.job(JOB, &later).await.is_locked()).then_some(())
    })
    .await;
    let orphan = rows.job(JOB, &instance).await;
    assert_eq!((&orphan.id, orphan.revision), (&job.id, job.revision));
    assert!(rows.effects(&instance).await.is_empty());
    assert_eq!(rows.change(LOCK, &orphan.id).await, 1);
    let answer = engine.execute_by_endpoint(&orphan.id).await;
    assert_eq!(state(&answer), "gone");
    assert!(rows.ended(&instance).await);
    assert_eq!(rows.effects(&instance).await, ["work"]);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_living_lock_survives_the_reset_of_activiti() {
    let world = losing().await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let ours = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &ours).await;
    assert_eq!(rows.change(LOCK, &job.id).await, 1);
    let locked = rows.job(JOB, &ours).await;
    let theirs = engine.start_instance("one", &[]).await;
    eventually("the other lock to be reset", SOON, || async {
        (!rows.job(JOB, &theirs).await.is_locked()).then_some(())
    })
    .await;
    assert_eq!(rows.job(JOB, &ours).await, locked);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_due_timer_of_activiti_arrives_locked_under_its_id() {
    let world = losing().await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let instance = engine.start_instance("timer", &[("wait", "PT3S")]).await;
    let timer = rows.job(TIMER, &instance).await;
    let job = eventually("the timer to move", SOON, || async {
        rows.jobs(JOB, &instance).await.pop()
    })
    .await;
    assert_eq!(job.id, timer.id);
    assert!(job.is_locked(), "{job:?}");
}
