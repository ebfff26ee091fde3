//! Camunda 7 with its executor off, over its REST. All tests share one engine.

use jobwire_tests::{EngineServer, EngineSettings};
use sqlx::Row;
use sqlx::types::chrono::NaiveDateTime;
use tokio::sync::OnceCell;

use crate::engines::rows::{JOB, LOCK, Rows, World};

mod conflicts;
mod kinds;

const INCIDENTS: &str = "SELECT count(*) FROM act_ru_incident
    WHERE proc_inst_id_ = $1 AND incident_type_ = 'failedJob'";

/// The shared engine, and the database.
async fn camunda() -> (&'static EngineServer, Rows) {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    let world = SHARED
        .get_or_init(|| World::start(EngineSettings::camunda7))
        .await;
    (&world.engine, world.connect().await)
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_committed_job_of_camunda_is_unlocked() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!((job.revision, job.retries), (1, Some(3)));
    assert!(!job.is_locked(), "{job:?}");
    assert_eq!(job.due, None);
    let more = rows
        .all(
            "SELECT type_, suspension_state_, exclusive_, priority_, root_proc_inst_id_,
                create_time_ FROM act_ru_job WHERE id_ = $1",
            &job.id,
        )
        .await;
    assert_eq!(more[0].get::<&str, _>("type_"), "message");
    assert_eq!(more[0].get::<i32, _>("suspension_state_"), 1);
    assert!(more[0].get::<bool, _>("exclusive_"));
    assert_eq!(more[0].get::<i64, _>("priority_"), 0);
    assert_eq!(more[0].get::<&str, _>("root_proc_inst_id_"), instance);
    let created: Option<NaiveDateTime> = more[0].get("create_time_");
    assert!(created.is_some());
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_failed_job_of_camunda_stays_in_its_row_and_ends_as_an_incident() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("failing", &[("failures", "3")]).await;
    let job = rows.job(JOB, &instance).await;
    for left in [2, 1, 0] {
        assert_eq!(rows.count(INCIDENTS, &instance).await, 0);
        rows.change(LOCK, &job.id).await;
        // An exception in an expression is one of the engine's own, which it does not tell from a
        // job that is gone.
        let answer = engine.execute(&job.id).await;
        assert_eq!(answer.status, 404, "{}", answer.body);
        let failed = rows.job(JOB, &instance).await;
        assert_eq!((&failed.id, failed.retries), (&job.id, Some(left)));
        assert!(!failed.is_locked(), "{failed:?}");
        assert_eq!(failed.due, None);
    }
    assert_eq!(rows.count(INCIDENTS, &instance).await, 1);
    let path = format!("/job/{}/retries", job.id);
    let answer = engine.rest("PUT", &path, r#"{"retries":3}"#).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    let revived = rows.job(JOB, &instance).await;
    assert_eq!((revived.id, revived.retries), (job.id.clone(), Some(3)));
    assert_eq!(rows.count(INCIDENTS, &instance).await, 0);
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_failed_delegate_of_camunda_is_a_failure_of_its_server() {
    let (engine, rows) = camunda().await;
    engine.deploy("delegate").await;
    let instance = engine.start_instance("delegate", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let answer = engine.execute(&job.id).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    assert_eq!(rows.job(JOB, &instance).await.retries, Some(2));
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn an_execute_of_camunda_asks_neither_for_the_lock_nor_for_the_date_nor_for_the_retries() {
    let (engine, rows) = camunda().await;
    for change in [
        LOCK,
        "UPDATE act_ru_job SET duedate_ = localtimestamp + interval '1 hour' WHERE id_ = $1",
        "UPDATE act_ru_job SET retries_ = 0 WHERE id_ = $1",
    ] {
        let instance = engine.start_instance("one", &[]).await;
        let job = rows.job(JOB, &instance).await;
        assert_eq!(rows.change(change, &job.id).await, 1);
        assert_eq!(engine.execute(&job.id).await.status, 204, "{change}");
        assert!(rows.ended(&instance).await);
        assert_eq!(engine.execute(&job.id).await.status, 404);
    }
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_suspended_job_of_camunda_is_not_found_and_loses_a_retry() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    engine.suspend(&instance).await;
    let suspended = "SELECT count(*) FROM act_ru_job WHERE id_ = $1 AND suspension_state_ = 2";
    assert_eq!(rows.count(suspended, &job.id).await, 1);
    let answer = engine.execute(&job.id).await;
    assert_eq!(answer.status, 404, "{}", answer.body);
    assert!(answer.body.contains("ENGINE-03043"), "{}", answer.body);
    assert_eq!(rows.job(JOB, &instance).await.retries, Some(2));
    engine.activate(&instance).await;
    assert_eq!(rows.job(JOB, &instance).await.id, job.id);
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert_eq!(rows.effects(&instance).await, ["work"]);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_timer_of_camunda_that_runs_early_has_the_same_next_date() {
    let (engine, rows) = camunda().await;
    let cycle = [("cycle", "R3/PT1H")];
    let instance = engine.start_instance("repeating", &cycle).await;
    let mut dates = Vec::new();
    for run in 1..=4 {
        let timer = rows.job(JOB, &instance).await;
        // The first date has milliseconds, the next ones have none.
        dates.push(timer.due.unwrap().and_utc().timestamp());
        assert_eq!(engine.execute(&timer.id).await.status, 204);
        assert_eq!(rows.effects(&instance).await, vec!["work"; run]);
    }
    // Its dates follow from the start of the cycle, and so does its end: a fourth run is possible.
    dates.dedup();
    assert_eq!(dates.len(), 1, "{dates:?}");
}
