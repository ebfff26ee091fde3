//! The execution endpoint on Flowable 7: it locks the instance itself, and always answers.

use crate::engines::flowable::{JOB, LOCK, LOCK_INSTANCE, TIMER, flowable};
use crate::engines::rows::state;

#[tokio::test]
async fn the_endpoint_on_flowable_runs_a_job_and_says_what_became_of_it() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("failing", &[("failures", "1")]).await;
    let job = rows.job(JOB, &instance).await;
    let answer = engine.execute_by_endpoint(&job.id).await;
    assert_eq!(state(&answer), "timer");
    assert_eq!(rows.job(TIMER, &instance).await.retries, Some(2));
    let path = format!("/management/timer-jobs/{}", job.id);
    engine.rest("POST", &path, r#"{"action":"move"}"#).await;
    let answer = engine.execute_by_endpoint(&job.id).await;
    assert_eq!(state(&answer), "gone");
    assert_eq!(engine.execute_by_endpoint(&job.id).await.status, 404);
    assert_eq!(rows.effects(&instance).await, ["work"; 2]);
}

#[tokio::test]
async fn the_endpoint_on_flowable_gives_a_second_exclusive_sibling_back_unlocked() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("siblings", &[]).await;
    let jobs = rows.jobs(JOB, &instance).await;
    for job in &jobs {
        rows.change(LOCK, &job.id).await;
    }
    let first = jobs[0].id.clone();
    let first = tokio::spawn(async move { engine.execute_by_endpoint(&first).await });
    rows.until_started(&instance, 1).await;
    let second = engine.execute_by_endpoint(&jobs[1].id).await;
    assert_eq!(state(&second), "job");
    engine.release(&instance).await;
    assert_eq!(state(&first.await.unwrap()), "gone");
    let left = rows.job(JOB, &instance).await;
    assert_eq!((&left.id, left.retries), (&jobs[1].id, Some(3)));
    assert!(!left.is_locked(), "{left:?}");
    let again = engine.execute_by_endpoint(&left.id).await;
    assert_eq!(state(&again), "gone");
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
async fn a_conflict_at_the_endpoint_on_flowable_costs_a_retry() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    let job = rows.job(JOB, &instance).await;
    let id = job.id.clone();
    let execute = tokio::spawn(async move { engine.execute_by_endpoint(&id).await });
    rows.until_started(&instance, 1).await;
    let raise = "UPDATE act_ru_job SET rev_ = rev_ + 1 WHERE id_ = $1";
    assert_eq!(rows.change(raise, &job.id).await, 1);
    engine.release(&instance).await;
    assert_eq!(state(&execute.await.unwrap()), "timer");
    assert_eq!(rows.job(TIMER, &instance).await.retries, Some(2));
}

#[tokio::test]
async fn the_endpoint_on_flowable_refuses_an_instance_that_somebody_has_locked() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!(rows.change(LOCK_INSTANCE, &instance).await, 1);
    rows.change(LOCK, &job.id).await;
    let answer = engine.execute_by_endpoint(&job.id).await;
    assert_eq!(state(&answer), "job");
    assert!(!rows.job(JOB, &instance).await.is_locked());
    assert!(rows.effects(&instance).await.is_empty());
}
