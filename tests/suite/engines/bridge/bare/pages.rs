//! Pages before the engine, such as one for a login: they answer 200, and no job has run.

use std::time::{Duration, Instant};

use jobwire_engines::{EngineOptions, Execution};
use jobwire_tests::eventually;

use super::application::Application;
use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::{quick, until_no_lock_is_left};
use crate::engines::rows::{JOB, SOON};

/// The pause of the breaker after three such answers.
const PAUSE: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_with_status_200_is_no_execution_and_opens_the_breaker() {
    let bare = Bare::of(Engine::Flowable).await;
    let mut application = Application::start().await;
    let url = application.rest_url();
    let options = EngineOptions::new(url.clone()).execution(Execution::Rest);
    let bridge = bare.bridge(options, quick()).await;
    let id = bare.job().await;
    let mut told = Instant::now();
    for _ in 0..3 {
        let execution = application.execution().await;
        assert_eq!(execution.id, id);
        told = Instant::now();
        execution.page();
    }
    eventually("the health to tell", SOON, || async {
        let health = bridge.node().watch().checked().await;
        let problems = format!("{:?}", health.problems);
        (!health.ready && problems.contains(&format!("{url} answered 200 OK"))).then_some(())
    })
    .await;
    // The trial. The page is gone.
    let execution = application.execution().await;
    assert!(told.elapsed() >= PAUSE, "after {:?}", told.elapsed());
    assert_eq!(execution.id, id);
    let row = bare.find(JOB, &id).await.expect("the job");
    assert_eq!(row.retries, Some(3), "no attempt is spent");
    bare.end(&id).await;
    execution.gone();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}
