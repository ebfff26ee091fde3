//! The bridge to Activiti 7, over the execution endpoint, and what only this engine does.

use std::time::Duration;

use jobwire_core::{JobQuery, JobState, Store};
use jobwire_engines::examine::{Level, examine};
use jobwire_engines::{EngineStore, Execution};
use jobwire_tests::{EngineServer, EngineSettings, JobExecutor, eventually};
use tokio::sync::OnceCell;

use super::endpoint::{Shared, a_retried_dead_letter_runs, endpoint_cases};
use super::flowable::{
    Bridge, DONE, options, quick, repeated, store, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::{JOB, World};

async fn world() -> World {
    World::start(EngineSettings::activiti7).await
}

async fn shared_world() -> &'static World {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    SHARED.get_or_init(world).await
}

async fn shared() -> Shared {
    let world = shared_world().await;
    let store = store(world, options(&world.engine)).await;
    store.check().await.unwrap().ready().unwrap();
    (&world.engine, store, world.connect().await)
}

endpoint_cases!(shared);
endpoint_cases!(
    shared: a_job_that_is_given_back_is_ready_again,
    the_lock_of_the_engine_is_extended,
);

/// Activiti's message-queue mode, whose queue loses every message: the engine clears the lock of the
/// producer and forgets the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn jobs_that_the_message_queue_mode_of_activiti_has_lost_are_found_and_run() {
    let world = World::start(|database| {
        EngineSettings::activiti7(database)
            .executor(JobExecutor::MessageQueue)
            .activiti_locks(Duration::from_secs(2), Duration::from_millis(500))
    })
    .await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let mut instances = engine.start_instances("one", 5, &[]).await;
    instances.extend(engine.start_instances("chain", 1, &[]).await);
    let first = &instances[0];
    eventually("the engine to forget the job", DONE, || async {
        (!rows.job(JOB, first).await.is_locked()).then_some(())
    })
    .await;
    assert!(rows.effects(first).await.is_empty());
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    // Timers that the engine moves arrive locked, and their messages are lost, too.
    instances.extend(
        engine
            .start_instances("timer", 2, &[("wait", "PT1S")])
            .await,
    );
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_executor_of_activiti_goes_on_where_jobwire_has_stopped() {
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let mut instances = engine.start_instances("chain", 20, &[]).await;
    instances.extend(
        engine
            .start_instances("timer", 5, &[("wait", "PT2S")])
            .await,
    );
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    eventually("some steps", DONE, || async {
        (rows.effects(&instances[0]).await.len() >= 2).then_some(())
    })
    .await;
    let counting = store(&world, options(engine)).await;
    bridge.stop().await;
    let released = counting.release_engine().await.unwrap();
    assert_eq!(released, 0, "a node that stops leaves no lock");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
    assert_eq!(rows.count(schemas, "jobwire_engine").await, 0);
    until_no_lock_is_left(&rows).await;
    let own = EngineSettings::activiti7(&world.database)
        .executor(JobExecutor::On)
        .activiti_locks(Duration::from_secs(300), Duration::from_millis(500));
    let own = EngineServer::start(own).await;
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    drop(own);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn the_doctor_knows_activiti_and_tells_it_from_flowable() {
    let (engine, store, _) = shared().await;
    let findings = examine(&store).await.unwrap();
    let found = |part: &str| {
        let fine = findings
            .iter()
            .filter(|finding| finding.level == Level::Fine);
        fine.into_iter().any(|finding| finding.found.contains(part))
    };
    for part in ["Activiti, schema version 7.1", "answers"] {
        assert!(found(part), "{part} in {findings:?}");
    }
    // No endpoint below this URL.
    let world = shared_world().await;
    let mut wrong = options(engine);
    wrong.urls = vec![wrong.urls[0].replace("/jobwire", "/nowhere")];
    let elsewhere = EngineStore::activiti(&world.database, wrong).await.unwrap();
    let findings = examine(&elsewhere).await.unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding.about == "endpoint" && finding.level == Level::Wrong),
        "{findings:?}"
    );
    let as_flowable = EngineStore::flowable(&world.database, options(engine));
    let said = as_flowable.await.unwrap().probe().await;
    let said = said.expect_err("refused").to_string();
    assert!(said.contains("engine_type"), "{said}");
    let rest = options(engine).execution(Execution::Rest);
    let refused = EngineStore::activiti(&world.database, rest).await;
    let said = refused.expect_err("refused").to_string();
    assert!(said.contains("engine_execute"), "{said}");
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn an_operator_sees_the_jobs_of_activiti() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("failing", &[("failures", "1")]).await;
    let job = rows.job(JOB, &instance).await;
    engine.execute_by_endpoint(&job.id).await;
    let of_it = JobQuery::default().instance(&*instance);
    let found = store.find(&of_it).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].state, found[0].retries), (JobState::Timer, 2));
    assert_eq!(store.count(&of_it).await.unwrap(), 1);
    let (_, _, stack) = store.get(found[0].id).await.unwrap().unwrap();
    assert!(stack.is_some_and(|stack| stack.contains("as wished")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_dead_letter_of_activiti_is_retried_and_runs() {
    a_retried_dead_letter_runs(EngineSettings::activiti7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_dead_letter_of_activiti6_is_retried_and_runs() {
    a_retried_dead_letter_runs(EngineSettings::activiti6).await;
}
