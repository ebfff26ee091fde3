//! Changes of rows while Camunda runs their job.

use jobwire_tests::EngineServer;
use jobwire_tests::http::Response;

use crate::engines::camunda::{INCIDENTS, camunda};
use crate::engines::rows::{JOB, LOCK, LOCK_ROWS, Rows};

/// Extends the lock as a renewal would.
const RENEW: &str = "UPDATE act_ru_job
    SET lock_exp_time_ = lock_exp_time_ + interval '1 minute' WHERE id_ = $1";

/// Runs a held and locked job, and changes its row with `statement` while it runs.
async fn changed_while_it_runs(
    engine: &'static EngineServer,
    rows: &Rows,
    instance: &str,
    statement: &str,
) -> Response {
    let job = rows.job(JOB, instance).await.id;
    assert_eq!(rows.change(LOCK, &job).await, 1);
    let id = job.clone();
    let execute = tokio::spawn(async move { engine.execute(&id).await });
    rows.until_started(instance, 1).await;
    assert_eq!(rows.change(statement, &job).await, 1);
    engine.release(instance).await;
    execute.await.unwrap()
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_renewed_lock_does_not_disturb_a_job_of_camunda_that_succeeds() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    let answer = changed_while_it_runs(engine, &rows, &instance, RENEW).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_running_job_of_camunda_holds_neither_its_row_nor_that_of_its_instance() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    let answer = changed_while_it_runs(engine, &rows, &instance, LOCK_ROWS).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_task_of_camunda_that_ends_beside_a_running_job_makes_the_job_conflict() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("beside", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let id = job.id.clone();
    let execute = tokio::spawn(async move { engine.execute(&id).await });
    rows.until_started(&instance, 1).await;
    let completed = engine.complete_tasks(&instance).await;
    assert_eq!(completed.status, 200, "{}", completed.body);
    engine.release(&instance).await;
    let answer = execute.await.unwrap();
    assert_eq!(answer.status, 404, "{}", answer.body);
    let left = rows.job(JOB, &instance).await;
    assert_eq!((&left.id, left.retries), (&job.id, Some(3)));
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_renewed_lock_hides_the_failure_of_a_job_of_camunda() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("held", &[("failures", "1")]).await;
    let answer = changed_while_it_runs(engine, &rows, &instance, RENEW).await;
    assert_eq!(answer.status, 404, "{}", answer.body);
    let job = rows.job(JOB, &instance).await;
    assert_eq!(job.retries, Some(3));
    assert!(job.is_locked(), "{job:?}");
    assert_eq!(rows.count(INCIDENTS, &instance).await, 0);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_raised_revision_makes_a_job_of_camunda_be_done_twice() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    let raise = "UPDATE act_ru_job SET rev_ = rev_ + 1 WHERE id_ = $1";
    let answer = changed_while_it_runs(engine, &rows, &instance, raise).await;
    assert_eq!(answer.status, 404, "{}", answer.body);
    assert!(answer.body.contains("ENGINE-03005"), "{}", answer.body);
    let job = rows.job(JOB, &instance).await;
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert!(rows.ended(&instance).await);
    let done = rows.effects(&instance).await;
    let done = done.iter().filter(|activity| *activity == "work");
    assert_eq!(done.count(), 2);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn siblings_in_camunda_that_run_at_once_conflict_at_their_join() {
    let (engine, rows) = camunda().await;
    let instance = engine.start_instance("siblings", &[]).await;
    let mut executes = Vec::new();
    for job in rows.jobs(JOB, &instance).await {
        rows.change(LOCK, &job.id).await;
        executes.push(tokio::spawn(
            async move { engine.execute(&job.id).await.status },
        ));
    }
    rows.until_started(&instance, 2).await;
    engine.release(&instance).await;
    let mut answers = Vec::new();
    for execute in executes {
        answers.push(execute.await.unwrap());
    }
    answers.sort_unstable();
    assert_eq!(answers, [204, 404]);
    let left = rows.job(JOB, &instance).await;
    assert_eq!(left.retries, Some(3));
    assert!(!left.is_locked(), "{left:?}");
    assert_eq!(engine.execute(&left.id).await.status, 204);
    assert!(rows.ended(&instance).await);
}
