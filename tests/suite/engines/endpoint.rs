//! The execution endpoint: it locks the instance of an exclusive job itself, and it always answers.
//! The same cases for every engine that has it.

use jobwire_tests::{EngineProgram, EngineServer};

use crate::engines::rows::{DEAD, JOB, LOCK, LOCK_BY_NODE, LOCK_INSTANCE, Rows, TIMER, state};

/// Moves the one timer of an instance to the executable jobs, as a due timer.
async fn fire(rows: &Rows, program: EngineProgram, instance: &str) {
    let columns = match program {
        EngineProgram::Activiti6 | EngineProgram::Activiti7 => ACTIVITI,
        _ => FLOWABLE,
    };
    let moved = format!(
        "WITH timer AS (DELETE FROM act_ru_timer_job WHERE process_instance_id_ = $1 RETURNING *)
         INSERT INTO act_ru_job ({columns}) SELECT {columns} FROM timer"
    );
    assert_eq!(rows.change(&moved, instance).await, 1);
    let count = "UPDATE act_ru_execution
        SET job_count_ = job_count_ + 1, timer_job_count_ = timer_job_count_ - 1
        WHERE proc_inst_id_ = $1 AND timer_job_count_ = 1 AND is_count_enabled_";
    rows.change(count, instance).await;
}

const ACTIVITI: &str = "id_, rev_, type_, exclusive_, execution_id_, process_instance_id_,
    proc_def_id_, retries_, exception_stack_id_, exception_msg_, duedate_, repeat_,
    handler_type_, handler_cfg_, tenant_id_";
const FLOWABLE: &str = "id_, rev_, type_, exclusive_, execution_id_, process_instance_id_,
    proc_def_id_, element_id_, correlation_id_, retries_, exception_stack_id_, exception_msg_,
    duedate_, repeat_, handler_type_, handler_cfg_, create_time_, tenant_id_";

/// A failed job waits among the timers, under the same id, and ends as a dead letter.
pub(crate) async fn a_job_runs_and_its_end_is_told(engine: &EngineServer, rows: &Rows) {
    let instance = engine.start_instance("failing", &[("failures", "1")]).await;
    let job = rows.job(JOB, &instance).await;
    let answer = engine.execute_by_endpoint(&job.id).await;
    assert_eq!(state(&answer), "timer");
    let timer = rows.job(TIMER, &instance).await;
    assert_eq!((&timer.id, timer.retries), (&job.id, Some(2)));
    assert!(!timer.is_locked(), "{timer:?}");
    fire(rows, engine.program(), &instance).await;
    let answer = engine.execute_by_endpoint(&job.id).await;
    assert_eq!(state(&answer), "gone");
    assert_eq!(engine.execute_by_endpoint(&job.id).await.status, 404);
    assert!(rows.ended(&instance).await);
    assert_eq!(rows.effects(&instance).await, ["work"; 2]);
}

/// The third failure is the last one.
pub(crate) async fn a_job_without_retries_is_a_dead_letter(engine: &EngineServer, rows: &Rows) {
    let instance = engine.start_instance("failing", &[("failures", "3")]).await;
    let job = rows.job(JOB, &instance).await;
    for _ in 0..2 {
        let answer = engine.execute_by_endpoint(&job.id).await;
        assert_eq!(state(&answer), "timer");
        fire(rows, engine.program(), &instance).await;
    }
    let answer = engine.execute_by_endpoint(&job.id).await;
    assert_eq!(state(&answer), "dead letter");
    assert_eq!(rows.ids(DEAD, &instance).await, [job.id]);
    assert_eq!(rows.effects(&instance).await, ["work"; 3]);
}

/// While an exclusive job runs, its sibling is given back unlocked. Activiti gives it a new id.
pub(crate) async fn a_second_sibling_is_given_back(engine: &'static EngineServer, rows: &Rows) {
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
    assert_eq!(
        (&left.execution, left.retries),
        (&jobs[1].execution, Some(3))
    );
    let is_renamed = engine.program() == EngineProgram::Activiti7;
    assert_eq!(left.id != jobs[1].id, is_renamed);
    assert!(!left.is_locked(), "{left:?}");
    let again = engine.execute_by_endpoint(&left.id).await;
    assert_eq!(state(&again), "gone");
    assert!(rows.ended(&instance).await);
}

/// A revision that was raised while the job ran counts as a failure.
pub(crate) async fn a_conflict_costs_a_retry(engine: &'static EngineServer, rows: &Rows) {
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

/// The lock of the instance must not be taken by the caller.
pub(crate) async fn a_locked_instance_is_refused(engine: &EngineServer, rows: &Rows) {
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!(rows.change(LOCK_INSTANCE, &instance).await, 1);
    rows.change(LOCK, &job.id).await;
    let answer = engine.execute_by_endpoint(&job.id).await;
    assert_eq!(state(&answer), "job");
    assert!(!rows.job(JOB, &instance).await.is_locked());
    assert!(rows.effects(&instance).await.is_empty());
}

/// Where the caller holds the lock of the instance, the engine runs the job and leaves the lock.
pub(crate) async fn a_job_of_a_held_instance_runs_and_the_lock_stays(
    engine: &EngineServer,
    rows: &Rows,
) {
    let is_locked =
        "SELECT count(*) FROM act_ru_execution WHERE id_ = $1 AND lock_time_ IS NOT NULL";
    for (process, variables, ended) in [
        ("chain", &[][..], "gone"),
        ("failing", &[("failures", "1")][..], "timer"),
    ] {
        let instance = engine.start_instance(process, variables).await;
        let job = rows.job(JOB, &instance).await;
        assert_eq!(rows.change(LOCK_INSTANCE, &instance).await, 1);
        rows.change(LOCK, &job.id).await;
        let refused = engine.execute_in_held_instance(&job.id).await;
        assert_eq!(refused.status, 404, "the lock is no node's");
        rows.change(LOCK_BY_NODE, &job.id).await;
        let answer = engine.execute_in_held_instance(&job.id).await;
        assert_eq!(state(&answer), ended);
        assert_eq!(rows.effects(&instance).await.len(), 1);
        assert_eq!(rows.count(is_locked, &instance).await, 1);
    }
}

const OWNER: &str = "jobwire:0198c0de-7777-7000-8000-000000000001:1";
const OTHER: &str = "jobwire:0198c0de-7777-7000-8000-000000000002:2";
const LOCK_BY_OTHER: &str = "UPDATE act_ru_job
    SET lock_owner_ = 'jobwire:0198c0de-7777-7000-8000-000000000002:2' WHERE id_ = $1";

/// A late request of a node runs no job that another node has locked. A run that loses its lock
/// counts no failure, because the job of the other node would have it.
pub(crate) async fn a_job_under_another_lock_neither_runs_nor_fails(
    engine: &'static EngineServer,
    rows: &Rows,
) {
    for holds in [false, true] {
        let instance = engine.start_instance("held", &[("failures", "1")]).await;
        let job = rows.job(JOB, &instance).await;
        assert_eq!(rows.change(LOCK_BY_NODE, &job.id).await, 1);
        let late = engine.execute_under_lock(&job.id, OTHER, holds).await;
        assert_eq!(late.status, 404, "{}", late.body);
        let id = job.id.clone();
        let execute =
            tokio::spawn(async move { engine.execute_under_lock(&id, OWNER, holds).await });
        rows.until_started(&instance, 1).await;
        assert_eq!(rows.change(LOCK_BY_OTHER, &job.id).await, 1);
        engine.release(&instance).await;
        let lost = execute.await.unwrap();
        assert_eq!(lost.status, 404, "{}", lost.body);
        let left = rows.job(JOB, &instance).await;
        assert_eq!((&left.id, left.retries), (&job.id, Some(3)));
        assert_eq!(left.owner.as_deref(), Some(OTHER));
        // The second attempt succeeds.
        let answer = engine.execute_under_lock(&job.id, OTHER, holds).await;
        assert_eq!(state(&answer), "gone");
    }
}

/// Declares the cases for an engine: `endpoint_cases!(world, #[ignore = "…"])`.
macro_rules! endpoint_cases {
    ($world:path $(, #[$attribute:meta])?) => {
        mod endpoint {
            use crate::engines::endpoint as cases;

            #[tokio::test]
            $(#[$attribute])?
            async fn a_job_runs_and_its_end_is_told() {
                let (engine, rows) = $world().await;
                cases::a_job_runs_and_its_end_is_told(engine, &rows).await;
            }

            #[tokio::test]
            $(#[$attribute])?
            async fn a_job_without_retries_is_a_dead_letter() {
                let (engine, rows) = $world().await;
                cases::a_job_without_retries_is_a_dead_letter(engine, &rows).await;
            }

            #[tokio::test]
            $(#[$attribute])?
            async fn a_second_sibling_is_given_back() {
                let (engine, rows) = $world().await;
                cases::a_second_sibling_is_given_back(engine, &rows).await;
            }

            #[tokio::test]
            $(#[$attribute])?
            async fn a_conflict_costs_a_retry() {
                let (engine, rows) = $world().await;
                cases::a_conflict_costs_a_retry(engine, &rows).await;
            }

            #[tokio::test]
            $(#[$attribute])?
            async fn a_job_of_a_held_instance_runs_and_the_lock_stays() {
                let (engine, rows) = $world().await;
                cases::a_job_of_a_held_instance_runs_and_the_lock_stays(engine, &rows).await;
            }

            #[tokio::test]
            $(#[$attribute])?
            async fn a_job_under_another_lock_neither_runs_nor_fails() {
                let (engine, rows) = $world().await;
                cases::a_job_under_another_lock_neither_runs_nor_fails(engine, &rows).await;
            }

            #[tokio::test]
            $(#[$attribute])?
            async fn a_locked_instance_is_refused() {
                let (engine, rows) = $world().await;
                cases::a_locked_instance_is_refused(engine, &rows).await;
            }
        }
    };
}
pub(crate) use endpoint_cases;
