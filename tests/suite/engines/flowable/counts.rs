//! The counts of jobs that Flowable keeps on executions, when SQL moves a timer.

use sqlx::Row;

use crate::engines::flowable::{JOB, TIMER, flowable};
use crate::engines::rows::{JobRow, Rows};

/// Moves a timer as the engine does, without the counts.
const MOVE: &str = "
    WITH timer AS (DELETE FROM act_ru_timer_job WHERE id_ = $1 RETURNING *)
    INSERT INTO act_ru_job (id_, rev_, category_, type_, exclusive_, execution_id_,
        process_instance_id_, proc_def_id_, element_id_, element_name_, scope_id_, sub_scope_id_,
        scope_type_, scope_definition_id_, correlation_id_, retries_, exception_stack_id_,
        exception_msg_, duedate_, repeat_, handler_type_, handler_cfg_, custom_values_id_,
        create_time_, tenant_id_)
    SELECT id_, rev_, category_, type_, exclusive_, execution_id_,
        process_instance_id_, proc_def_id_, element_id_, element_name_, scope_id_, sub_scope_id_,
        scope_type_, scope_definition_id_, correlation_id_, retries_, exception_stack_id_,
        exception_msg_, duedate_, repeat_, handler_type_, handler_cfg_, custom_values_id_,
        create_time_, tenant_id_
    FROM timer";

const COUNT: &str = "UPDATE act_ru_execution
    SET job_count_ = job_count_ + 1, timer_job_count_ = timer_job_count_ - 1
    WHERE id_ = $1 AND is_count_enabled_";

/// The counts of a job's execution: of jobs and of timers.
async fn counts(rows: &Rows, job: &JobRow) -> (i32, i32) {
    let query = "SELECT job_count_, timer_job_count_ FROM act_ru_execution
        WHERE id_ = $1 AND is_count_enabled_";
    let found = rows.all(query, job.execution.as_ref().unwrap()).await;
    (found[0].get(0), found[0].get(1))
}

#[tokio::test]
async fn flowable_counts_a_job_on_its_own_execution() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("boundary", &[("wait", "PT1H")]).await;
    let timer = rows.job(TIMER, &instance).await;
    assert_eq!(counts(&rows, &timer).await, (0, 1));
    let path = format!("/management/timer-jobs/{}", timer.id);
    let moved = engine.rest("POST", &path, r#"{"action":"move"}"#).await;
    assert_eq!(moved.status, 204);
    assert_eq!(counts(&rows, &timer).await, (1, 0));
}

#[tokio::test]
async fn flowable_fails_after_a_move_by_sql_without_the_counts() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("boundary", &[("wait", "PT1H")]).await;
    let timer = rows.job(TIMER, &instance).await;
    assert_eq!(rows.change(MOVE, &timer.id).await, 1);
    let answer = engine.complete_tasks(&instance).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    assert!(
        answer.body.contains("act_fk_job_execution"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn flowable_accepts_a_move_by_sql_with_the_counts() {
    let (engine, rows) = flowable().await;
    let wait = [("wait", "PT1H")];
    let completed = engine.start_instance("boundary", &wait).await;
    let fired = engine.start_instance("boundary", &wait).await;
    for instance in [&completed, &fired] {
        let timer = rows.job(TIMER, instance).await;
        let mut transaction = rows.0.begin().await.unwrap();
        for (statement, id) in [
            (MOVE, &timer.id),
            (COUNT, timer.execution.as_ref().unwrap()),
        ] {
            let change = sqlx::query(statement).bind(id);
            let changed = change.execute(&mut *transaction).await.unwrap();
            assert_eq!(changed.rows_affected(), 1);
        }
        transaction.commit().await.unwrap();
        assert_eq!(counts(&rows, &timer).await, (1, 0));
    }
    let answer = engine.complete_tasks(&completed).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(rows.ended(&completed).await);
    let job = rows.job(JOB, &fired).await;
    assert_eq!(engine.execute(&job.id).await.status, 204);
    assert!(rows.ended(&fired).await);
    assert_eq!(rows.effects(&fired).await, ["work"]);
}
