//! Executions whose answer comes late, or not at all: the lock stays, and the job is not executed
//! again until its row has moved, its transaction has ended, or its lock has expired.

use std::time::Duration;

use super::application::Application;
use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::{quick, until_no_lock_is_left};
use crate::engines::rows::{DEAD, JOB, SOON, TIMER};
use jobwire_engines::{EngineOptions, Execution};
use jobwire_tests::eventually;

/// Far shorter than any execution of these tests.
const WITHIN: Duration = Duration::from_secs(1);
/// Longer than the limit of an answer, the lease of [`quick`], and the three seconds within which a
/// request of a broken connection may begin.
const LONG: Duration = Duration::from_secs(5);

fn options(bare: &Bare, application: &Application) -> EngineOptions {
    bare.options(application.url()).answer_within(WITHIN)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_answers_late_executes_the_job_once_under_a_lock_that_stays() {
    executed_once(Engine::Flowable, Execution::Endpoint).await;
}

/// The node holds the lock of the instance, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_answers_late_over_rest_executes_the_job_once_under_a_lock_that_stays() {
    executed_once(Engine::Flowable, Execution::Rest).await;
}

/// The engine locks the instances of Activiti, so only the lock of the job shows that one runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activiti_that_answers_late_executes_the_job_once_under_a_lock_that_stays() {
    executed_once(Engine::Activiti, Execution::Endpoint).await;
}

/// The lock of Camunda is one long lock, which nothing extends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_camunda_that_answers_late_executes_the_job_once_under_a_lock_that_stays() {
    executed_once(Engine::Camunda, Execution::Endpoint).await;
}

async fn executed_once(engine: Engine, execution: Execution) {
    let bare = Bare::of(engine).await;
    let mut application = Application::start().await;
    let options = match execution {
        Execution::Rest => EngineOptions::new(application.rest_url())
            .execution(Execution::Rest)
            .answer_within(WITHIN),
        _ => options(&bare, &application),
    };
    // Its leader would free a job whose lock has ended, and its consumer would take it.
    let bridge = bare.bridge(options, quick()).await;
    let (_, jobs) = bare.instance(2).await;
    let late = application.execution().await;
    let lock = bare.find(JOB, &late.id).await.unwrap();
    match execution {
        Execution::Rest => assert!(lock.is_locked() && late.owner.is_none()),
        _ => assert!(lock.owner.is_some() && lock.owner == late.owner),
    }
    let transaction = bare.begin().await;
    bare.until_held(&lock, LONG).await;
    application.assert_no_other();
    // The engine ends the execution. The node no longer waits for the answer.
    bare.end(&late.id).await;
    transaction.commit().await.unwrap();
    let done = late.id.clone();
    late.gone();
    // The end of the job hands the instance over.
    let next = application.execution().await;
    assert!(next.id != done && jobs.contains(&next.id), "{next:?}");
    bare.end(&next.id).await;
    next.gone();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_the_engine_tells_late_is_counted_by_the_engine_alone() {
    let bare = Bare::of(Engine::Flowable).await;
    let mut application = Application::start().await;
    let bridge = bare.bridge(options(&bare, &application), quick()).await;
    let id = bare.job().await;
    let late = application.execution().await;
    let lock = bare.find(JOB, &id).await.unwrap();
    let transaction = bare.begin().await;
    bare.until_renewed(&lock, LONG).await;
    // The engine records a failure like this.
    let fail = "WITH job AS (DELETE FROM act_ru_job WHERE id_ = $1 RETURNING *)
        INSERT INTO act_ru_timer_job (id_, rev_, type_, execution_id_, process_instance_id_, handler_type_, retries_, duedate_)
        SELECT id_, 1, type_, execution_id_, process_instance_id_, handler_type_, retries_ - 1,
            (clock_timestamp() AT TIME ZONE 'UTC') + interval '1 hour' FROM job";
    assert_eq!(bare.rows.change(fail, &id).await, 1);
    transaction.commit().await.unwrap();
    late.failed();
    until_no_lock_is_left(&bare.rows).await;
    // The outcomes are settled when the node has stopped.
    bridge.stop().await;
    let timer = bare.find(TIMER, &id).await.expect("its next attempt");
    assert_eq!((timer.retries, timer.is_locked()), (Some(2), false));
    assert_eq!(bare.find(DEAD, &id).await, None);
    application.assert_no_other();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_connection_broke_runs_again_when_its_transaction_has_ended_and_not_before() {
    let bare = Bare::of(Engine::Flowable).await;
    let mut application = Application::start().await;
    let options = bare.options(application.url());
    let bridge = bare.bridge(options, quick()).await;
    let id = bare.job().await;
    let broken = application.execution().await;
    let lock = bare.find(JOB, &id).await.unwrap();
    let transaction = bare.begin().await;
    broken.breaks();
    bare.until_renewed(&lock, LONG).await;
    application.assert_no_other();
    // The engine rolls back without a trace.
    transaction.rollback().await.unwrap();
    let again = application.execution().await;
    assert_eq!(again.id, id);
    assert_ne!(again.owner, lock.owner);
    let row = bare.find(JOB, &id).await.unwrap();
    assert_eq!(row.retries, Some(3), "no attempt is spent");
    bare.end(&id).await;
    again.gone();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}

/// The node no longer waits, and the lock stays for half a minute. The transaction stays open until the
/// end of the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_that_the_node_gave_up_is_executed_again_only_after_its_lock_and_the_patience() {
    let patience = Duration::from_secs(2);
    let bare = Bare::of(Engine::Flowable).await;
    let mut application = Application::start().await;
    let options = options(&bare, &application)
        .unknown_for(Duration::from_secs(2))
        .takeover_patience(patience);
    let bridge = bare.bridge(options, quick()).await;
    let id = bare.job().await;
    let lost = application.execution().await;
    let transaction = bare.begin().await;
    // Longer than the lease, which nothing else writes.
    let until = eventually("the last lock of the node", SOON, || async {
        let row = bare.find(JOB, &id).await.expect("the job");
        assert_eq!(row.owner, lost.owner);
        let left = row.expiry.unwrap() - bare.clock().await;
        (left.num_seconds() > 20).then_some(row.expiry.unwrap())
    })
    .await;
    application.assert_no_other();
    let again = application.execution().await;
    let at = bare.clock().await;
    assert_eq!(again.id, id);
    assert!(at >= until + patience, "at {at}, locked until {until}");
    drop(transaction);
    bare.end(&id).await;
    again.gone();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}
