//! What Flowable's REST answers to an execute, and what becomes of the job.

use std::time::Duration;

use jobwire_tests::eventually;
use sqlx::types::chrono::Utc;

use crate::engines::flowable::{DEAD, JOB, LOCK, SUSPENDED, TIMER, flowable};
use crate::engines::rows::SOON;

#[tokio::test]
async fn an_execute_of_flowable_does_not_ask_who_holds_the_lock() {
    let (engine, rows) = flowable().await;
    for instance in engine.start_instances("one", 2, &[]).await {
        let job = rows.job(JOB, &instance).await;
        assert_eq!(rows.change(LOCK, &job.id).await, 1);
        assert_eq!(engine.execute(&job.id).await.status, 204);
        assert!(rows.ended(&instance).await);
        assert_eq!(rows.effects(&instance).await, ["work"]);
    }
}

#[tokio::test]
async fn a_job_of_flowable_that_is_gone_is_not_found() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert_eq!(engine.execute(&job.id).await.status, 404);
    let timer = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let timer = rows.job(TIMER, &timer).await;
    assert_eq!(engine.execute(&timer.id).await.status, 404);
    assert_eq!(rows.effects(&instance).await, ["work"]);
}

#[tokio::test]
async fn flowable_refuses_an_action_that_it_does_not_know() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("one", &[]).await;
    let path = format!("/management/jobs/{}", rows.job(JOB, &instance).await.id);
    let answer = engine.rest("POST", &path, r#"{"action":"run"}"#).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
}

#[tokio::test]
async fn a_failed_job_of_flowable_waits_among_the_timers_and_ends_as_a_dead_letter() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("failing", &[("failures", "3")]).await;
    let job = rows.job(JOB, &instance).await;
    for left in [2, 1] {
        rows.change(LOCK, &job.id).await;
        let answer = engine.execute(&job.id).await;
        assert_eq!(answer.status, 500, "{}", answer.body);
        let expected = format!("Job {} failed", job.id);
        assert!(answer.body.contains(&expected), "{}", answer.body);
        assert!(rows.jobs(JOB, &instance).await.is_empty());
        let timer = rows.job(TIMER, &instance).await;
        assert_eq!((&timer.id, timer.retries), (&job.id, Some(left)));
        assert!(!timer.is_locked(), "{timer:?}");
        // The engine's clock has the zone UTC here. It adds ten seconds.
        let wait = timer.due.unwrap() - Utc::now().naive_utc();
        assert!(wait.num_seconds() <= 10, "{wait}");
        assert!(answer_moved(engine, TIMER, &job.id).await);
        assert_eq!(rows.job(JOB, &instance).await.retries, Some(left));
    }
    assert_eq!(engine.execute(&job.id).await.status, 500);
    let dead = "SELECT count(*) FROM act_ru_deadletter_job WHERE id_ = $1";
    assert_eq!(rows.count(dead, &job.id).await, 1);
    assert!(answer_moved(engine, DEAD, &job.id).await);
    let revived = rows.job(JOB, &instance).await;
    assert_eq!((revived.id, revived.retries), (job.id, Some(3)));
    assert_eq!(rows.effects(&instance).await, ["work"; 3]);
}

/// Moves a job from a table to the executable jobs, and returns whether the engine did.
async fn answer_moved(engine: &jobwire_tests::EngineServer, table: &str, job: &str) -> bool {
    let place = if table == DEAD {
        "deadletter-jobs"
    } else {
        "timer-jobs"
    };
    let path = format!("/management/{place}/{job}");
    let answer = engine.rest("POST", &path, r#"{"action":"move"}"#).await;
    answer.status == 204
}

#[tokio::test]
async fn a_suspended_job_of_flowable_is_not_found_and_keeps_its_id() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    engine.suspend(&instance).await;
    assert_eq!(rows.job(SUSPENDED, &instance).await.id, job.id);
    assert_eq!(engine.execute(&job.id).await.status, 404);
    engine.activate(&instance).await;
    let active = rows.job(JOB, &instance).await;
    assert_eq!((&active.id, active.retries), (&job.id, Some(3)));
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert_eq!(rows.effects(&instance).await, ["work"]);
}

#[tokio::test]
async fn a_job_of_flowable_runs_to_its_end_without_its_client() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    let job = rows.job(JOB, &instance).await;
    let client = tokio::spawn(async move {
        let answer = engine.execute(&job.id);
        tokio::time::timeout(Duration::from_secs(600), answer).await
    });
    rows.until_started(&instance, 1).await;
    // The connection closes.
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    engine.release(&instance).await;
    eventually("the instance to end", SOON, || async {
        rows.ended(&instance).await.then_some(())
    })
    .await;
}
