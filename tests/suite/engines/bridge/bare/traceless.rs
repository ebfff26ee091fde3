//! Jobs that the engine rolls back without a trace each time: their failures can't be recorded.

use std::time::{Duration, Instant};

use super::application::{Application, Execution};
use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::{quick, until_no_lock_is_left};
use crate::engines::rows::{JOB, SOON};
use jobwire_engines::{EngineOptions, Execution as By};
use jobwire_tests::eventually;

/// The first waits of such a job.
const WAITS: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// The endpoint gives such a job back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_flowable_whose_failure_is_never_recorded_waits_longer_each_time() {
    waits_longer_each_time(Engine::Flowable, By::Endpoint).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_activiti_whose_failure_is_never_recorded_waits_longer_each_time() {
    waits_longer_each_time(Engine::Activiti, By::Endpoint).await;
}

/// The endpoint tells that the failure could not be recorded. The lock is too long to be left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_camunda_whose_failure_is_never_recorded_waits_longer_each_time() {
    each_time_longer(Engine::Camunda, By::Endpoint, Execution::running).await;
}

/// The answer is that of a success, and the row is as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_as_before_after_an_answer_of_success_waits_longer_each_time() {
    for by in [By::Rest, By::Endpoint] {
        each_time_longer(Engine::Flowable, by, Execution::gone).await;
    }
}

/// Over REST the answer is an error, and the row is as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_over_rest_whose_failure_is_never_recorded_waits_longer_each_time() {
    waits_longer_each_time(Engine::Flowable, By::Rest).await;
}

async fn waits_longer_each_time(engine: Engine, by: By) {
    each_time_longer(engine, by, Execution::unrecorded).await;
}

/// Runs a job that is as before after each execution, which `tell` answers.
async fn each_time_longer(engine: Engine, by: By, tell: fn(Execution)) {
    let bare = Bare::of(engine).await;
    let mut application = Application::start().await;
    let options = match by {
        By::Rest => EngineOptions::new(application.rest_url()).execution(By::Rest),
        _ => bare.options(application.url()),
    };
    let bridge = bare.bridge(options, quick()).await;
    let (_, jobs) = bare.instance(2).await;
    let mut execution = application.execution().await;
    let failing = execution.id.clone();
    for wait in WAITS {
        execution = again(&mut application, execution, wait, tell).await;
    }
    let row = bare.find(JOB, &failing).await.expect("the job");
    assert_eq!(row.retries, Some(3), "no attempt is spent");
    bare.end(&failing).await;
    execution.gone();
    // The next job of the instance is not late.
    let next = application.execution().await;
    assert!(next.id != failing && jobs.contains(&next.id), "{next:?}");
    bare.end(&next.id).await;
    next.gone();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}

/// Ends an execution without a trace. Returns the next one of the job, which begins after this wait.
async fn again(
    application: &mut Application,
    execution: Execution,
    wait: Duration,
    tell: fn(Execution),
) -> Execution {
    let (id, told) = (execution.id.clone(), Instant::now());
    tell(execution);
    let next = application.execution().await;
    assert_eq!(next.id, id);
    assert!(told.elapsed() >= wait, "after {:?}", told.elapsed());
    next
}

/// The node has one slot. A job that waits in it for a minute would keep other jobs from running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_whose_failure_is_never_recorded_leaves_its_slot_and_runs_again_after_its_lock() {
    let bare = Bare::of(Engine::Flowable).await;
    let mut application = Application::start().await;
    let options = bare.options(application.url()).concurrency(1);
    let bridge = bare.bridge(options, quick().concurrency(1)).await;
    let id = bare.job().await;
    let mut execution = application.execution().await;
    let mut wait = Duration::from_millis(100);
    for _ in 0..6 {
        execution = again(&mut application, execution, wait, Execution::unrecorded).await;
        wait *= 2;
    }
    assert_eq!(execution.id, id);
    let owner = execution.owner.clone();
    execution.unrecorded();
    let until = eventually("the lock to be left", SOON, || async {
        let row = bare.find(JOB, &id).await.expect("the job");
        assert_eq!(row.owner, owner, "the lock has ended");
        let left = row.expiry.unwrap() - bare.clock().await;
        // Longer than the lease of the node.
        (left.num_seconds() > 20).then_some(row.expiry.unwrap())
    })
    .await;
    let other = bare.job().await;
    let beside = application.execution().await;
    assert_eq!(beside.id, other);
    assert!(bare.clock().await < until, "it waited for the lock");
    bare.end(&other).await;
    beside.gone();
    let last = application.execution().await;
    let at = bare.clock().await;
    assert_eq!(last.id, id);
    assert_ne!(last.owner, owner);
    assert!(at >= until, "at {at}, locked until {until}");
    let row = bare.find(JOB, &id).await.expect("the job");
    assert_eq!(row.retries, Some(3), "no attempt is spent");
    bare.end(&id).await;
    last.gone();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}
