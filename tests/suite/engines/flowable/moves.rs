//! How timers of Flowable move between its tables.

use sqlx::Row;

use crate::engines::flowable::flowable;
use crate::engines::rows::{JOB, TIMER};

#[tokio::test]
async fn a_timer_of_flowable_moves_before_it_is_due_and_arrives_unlocked() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let timer = rows.job(TIMER, &instance).await;
    let path = format!("/management/timer-jobs/{}", timer.id);
    let moved = || engine.rest("POST", &path, r#"{"action":"move"}"#);
    assert_eq!(moved().await.status, 204);
    let job = rows.job(JOB, &instance).await;
    assert_eq!(
        (&job.id, job.revision, job.due),
        (&timer.id, timer.revision, timer.due)
    );
    assert!(!job.is_locked(), "{job:?}");
    assert_eq!(moved().await.status, 404);
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert_eq!(rows.effects(&instance).await, ["work"]);
}

#[tokio::test]
async fn a_rescheduled_timer_of_flowable_has_a_new_id() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let timer = rows.job(TIMER, &instance).await;
    let path = format!("/management/timer-jobs/{}", timer.id);
    let later = r#"{"action":"reschedule","dueDate":"2035-01-01T00:00:00Z"}"#;
    let answer = engine.rest("POST", &path, later).await;
    assert!(answer.status < 300, "{}", answer.body);
    let again = rows.job(TIMER, &instance).await;
    assert_ne!(again.id, timer.id);
    assert_eq!(again.due.unwrap().to_string(), "2035-01-01 00:00:00");
}

#[tokio::test]
async fn a_cycle_of_flowable_creates_its_next_timer_when_one_has_run() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("cycle", &[]).await;
    for run in 1..=3 {
        let timer = rows.job(TIMER, &instance).await;
        let path = format!("/management/timer-jobs/{}", timer.id);
        let answer = engine.rest("POST", &path, r#"{"action":"move"}"#).await;
        assert_eq!(answer.status, 204, "{}", answer.body);
        assert_eq!(engine.execute(&timer.id).await.status, 204);
        assert_eq!(rows.effects(&instance).await, vec!["work"; run]);
    }
    assert!(rows.jobs(TIMER, &instance).await.is_empty());
}

#[tokio::test]
async fn a_start_timer_of_flowable_belongs_to_no_instance() {
    let (engine, rows) = flowable().await;
    engine.deploy("started").await;
    let timers = "SELECT id_ FROM act_ru_timer_job WHERE proc_def_id_ LIKE $1
        AND process_instance_id_ IS NULL AND execution_id_ IS NULL";
    let timer: String = rows.all(timers, "started:%").await[0].get(0);
    let path = format!("/management/timer-jobs/{timer}");
    let moved = engine.rest("POST", &path, r#"{"action":"move"}"#).await;
    assert_eq!(moved.status, 204, "{}", moved.body);
    assert_eq!(engine.execute(&timer).await.status, 204);
    let instances = "SELECT count(*) FROM act_hi_procinst WHERE proc_def_id_ LIKE $1
        AND end_time_ IS NOT NULL";
    assert_eq!(rows.count(instances, "started:%").await, 1);
    let next: String = rows.all(timers, "started:%").await[0].get(0);
    assert_ne!(next, timer);
}
