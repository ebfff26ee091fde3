//! Faults of the engine, and an engine node that polls beside Jobwire.

use std::cell::RefCell;
use std::time::Duration;

use jobwire_tests::{EngineServer, EngineSettings, JobExecutor, eventually};

use super::flowable::{
    Bridge, DONE, options, quick, repeated, steady, until_ended, until_no_lock_is_left, world,
};
use crate::engines::rows::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_engine_that_is_killed_and_comes_back_loses_no_job_and_no_attempt() {
    killed_and_comes_back(world().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_activiti_that_is_killed_and_comes_back_loses_no_job_and_no_attempt() {
    killed_and_comes_back(World::start(EngineSettings::activiti7).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_flowable8_that_is_killed_and_comes_back_loses_no_job_and_no_attempt() {
    killed_and_comes_back(World::start(EngineSettings::flowable8).await).await;
}

async fn killed_and_comes_back(mut world: World) {
    let rows = world.connect().await;
    let options = options(&world.engine);
    let bridge = Bridge::start(&world, options, quick()).await;
    let slow = [("millis", "60000")];
    let slow = world.engine.start_instance("slow", &slow).await;
    rows.until_started(&slow, 1).await;
    let instances = world.engine.start_instances("chain", 40, &[]).await;
    world.engine.kill();
    eventually("the health to tell", DONE, || async {
        let health = bridge.node().watch().checked().await;
        (!health.ready && format!("{:?}", health.problems).contains("engine")).then_some(())
    })
    .await;
    world.engine.start_again().await;
    until_ended(&rows, &instances).await;
    // The second run began after the first had ended with the engine.
    rows.until_started(&slow, 2).await;
    let failed: i64 = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM act_ru_timer_job) + (SELECT count(*) FROM act_ru_deadletter_job)
            + (SELECT count(*) FROM act_ru_job WHERE retries_ < 3)",
    )
    .fetch_one(&rows.0)
    .await
    .unwrap();
    assert_eq!(failed, 0, "an attempt was spent");
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn beside_an_engine_node_that_polls_no_activity_runs_twice() {
    let world = world().await;
    let polls = EngineSettings::flowable7(&world.database).property(
        "flowable.process.async.executor.default-async-job-acquire-wait-time",
        "100ms",
    );
    beside_a_polling_node(world, polls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn beside_an_activiti_node_that_polls_no_activity_runs_twice() {
    let world = World::start(EngineSettings::activiti7).await;
    let polls = EngineSettings::activiti7(&world.database);
    beside_a_polling_node(world, polls).await;
}

async fn beside_a_polling_node(world: World, polls: EngineSettings) {
    let rows = world.connect().await;
    let polling = EngineServer::start(polls.executor(JobExecutor::On)).await;
    let bridge = Bridge::start(&world, options(&world.engine), quick()).await;
    let instances = RefCell::new(world.engine.start_instances("chain", 20, &[]).await);
    let polled = async || {
        let jobs: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire_effect WHERE node = $1")
            .bind(polling.node())
            .fetch_one(&rows.0)
            .await
            .unwrap();
        jobs > 0
    };
    // A node that has found no job polls again ten seconds later, and finds one only while jobs wait.
    eventually(
        "the other node to run a job",
        Duration::from_secs(120),
        async || {
            let more = world.engine.start_instances("one", 200, &[]).await;
            until_ended(&rows, &more).await;
            instances.borrow_mut().extend(more);
            polled().await.then_some(())
        },
    )
    .await;
    let instances = instances.into_inner();
    // Its non-exclusive jobs meet at a join also where only engine nodes run them, so a conflict
    // may repeat one.
    let forks = world.engine.start_instances("fork", 20, &[]).await;
    until_ended(&rows, &instances).await;
    until_ended(&rows, &forks).await;
    let mut repeated = repeated(&rows).await;
    repeated.retain(|(instance, ..)| instances.contains(instance));
    assert_eq!(repeated, []);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_execution_hangs_at_a_join_and_no_connection_stays_idle_in_a_transaction() {
    let database = jobwire_tests::shared::postgres()
        .await
        .create_database()
        .await;
    // Without a lock timeout a hang would have no end.
    let settings = EngineSettings::flowable7(&database).lock_timeout(None);
    let world = World {
        engine: EngineServer::start(settings).await,
        database,
    };
    let rows = world.connect().await;
    let bridge = Bridge::start(&world, options(&world.engine), steady()).await;
    let instances = world.engine.start_instances("fork", 50, &[]).await;
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    eventually("no connection to be idle in a transaction", Duration::from_secs(10), || async {
        let idle: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
        )
        .fetch_one(&rows.0)
        .await
        .unwrap();
        (idle == 0).then_some(())
    })
    .await;
    bridge.stop().await;
}
