//! How timers of Flowable move between its tables.

use crate::engines::flowable::{JOB, TIMER, flowable};

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
