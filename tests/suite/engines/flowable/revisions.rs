//! Changes of rows while Flowable runs their job, and locks that it does not know.

use jobwire_tests::EngineServer;
use jobwire_tests::http::Response;

use crate::engines::flowable::flowable;
use crate::engines::rows::{JOB, LOCK, LOCK_ROWS, Rows, TIMER};

/// Runs a held job over REST, and changes rows with `statement` and the job's id while it runs.
async fn changed_while_it_runs(
    engine: &'static EngineServer,
    rows: &Rows,
    instance: &str,
    statement: &str,
) -> Response {
    let job = rows.job(JOB, instance).await.id;
    let id = job.clone();
    let execute = tokio::spawn(async move { engine.execute(&id).await });
    rows.until_started(instance, 1).await;
    assert_eq!(rows.change(statement, &job).await, 1);
    engine.release(instance).await;
    execute.await.unwrap()
}

#[tokio::test]
async fn a_lock_of_flowable_can_be_renewed_without_its_revision() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    rows.change(LOCK, &rows.job(JOB, &instance).await.id).await;
    let renew = "UPDATE act_ru_job SET lock_exp_time_ = lock_exp_time_ + interval '1 minute'
        WHERE id_ = $1 AND lock_owner_ = 'somebody'";
    let answer = changed_while_it_runs(engine, &rows, &instance, renew).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
async fn a_job_of_flowable_that_fails_loses_a_renewed_lock() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("held", &[("failures", "1")]).await;
    rows.change(LOCK, &rows.job(JOB, &instance).await.id).await;
    let renew = "UPDATE act_ru_job SET lock_exp_time_ = lock_exp_time_ + interval '1 minute'
        WHERE id_ = $1";
    let answer = changed_while_it_runs(engine, &rows, &instance, renew).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    let timer = rows.job(TIMER, &instance).await;
    assert_eq!(timer.retries, Some(2));
    assert!(!timer.is_locked(), "{timer:?}");
}

#[tokio::test]
async fn a_conflict_in_flowable_ends_at_the_lock_timeout_and_leaves_the_job() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    let before = rows.job(JOB, &instance).await;
    let raise = "UPDATE act_ru_job SET rev_ = rev_ + 1 WHERE id_ = $1";
    let answer = changed_while_it_runs(engine, &rows, &instance, raise).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    let after = rows.job(JOB, &instance).await;
    assert_eq!((after.retries, after.revision), (before.retries, 2));
    assert_eq!(engine.execute(&after.id).await.status, 204);
    assert!(rows.ended(&instance).await);
}

/// Runs the one job of an instance after a conflict with another transaction. Where the conflict
/// came before the engine's first change of a row, the engine has counted a failure. Where it came
/// later, the engine has waited for itself until the lock timeout, and the job is as it was.
async fn runs_again(engine: &EngineServer, rows: &Rows, instance: &str) {
    if let [timer] = &rows.jobs(TIMER, instance).await[..] {
        assert_eq!(timer.retries, Some(2));
        let path = format!("/management/timer-jobs/{}", timer.id);
        let moved = engine.rest("POST", &path, r#"{"action":"move"}"#).await;
        assert_eq!(moved.status, 204, "{}", moved.body);
    } else {
        assert_eq!(rows.job(JOB, instance).await.retries, Some(3));
    }
    let job = rows.job(JOB, instance).await;
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert!(rows.ended(instance).await);
}

#[tokio::test]
async fn siblings_in_flowable_that_run_at_once_conflict_at_their_join() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("siblings", &[]).await;
    let mut executes = Vec::new();
    for job in rows.jobs(JOB, &instance).await {
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
    assert_eq!(answers, [204, 500]);
    runs_again(engine, &rows, &instance).await;
    assert_eq!(rows.effects(&instance).await.len(), 3);
}

#[tokio::test]
async fn a_task_of_flowable_that_ends_beside_a_running_job_makes_the_job_conflict() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("beside", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let id = job.id.clone();
    let execute = tokio::spawn(async move { engine.execute(&id).await });
    rows.until_started(&instance, 1).await;
    let completed = engine.complete_tasks(&instance).await;
    assert_eq!(completed.status, 200, "{}", completed.body);
    engine.release(&instance).await;
    let answer = execute.await.unwrap();
    assert_eq!(answer.status, 500, "{}", answer.body);
    runs_again(engine, &rows, &instance).await;
}

#[tokio::test]
async fn a_running_job_of_flowable_holds_neither_its_row_nor_that_of_its_instance() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("held", &[("failures", "0")]).await;
    let answer = changed_while_it_runs(engine, &rows, &instance, LOCK_ROWS).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
async fn an_execute_of_flowable_leaves_the_lock_of_the_instance() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("chain", &[]).await;
    let lock = "UPDATE act_ru_execution SET lock_owner_ = 'somebody',
        lock_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";
    assert_eq!(rows.change(lock, &instance).await, 1);
    let job = rows.job(JOB, &instance).await;
    assert_eq!(engine.execute(&job.id).await.status, 204);
    let unlock = "UPDATE act_ru_execution SET lock_owner_ = NULL, lock_time_ = NULL
        WHERE id_ = $1 AND lock_owner_ = 'somebody' AND lock_time_ IS NOT NULL";
    assert_eq!(rows.change(unlock, &instance).await, 1);
    for _ in 0..9 {
        let job = rows.job(JOB, &instance).await;
        assert_eq!(engine.execute(&job.id).await.status, 204);
    }
    assert!(rows.ended(&instance).await);
    assert_eq!(rows.change(unlock, &instance).await, 0);
}
