//! From the message-queue mode of Flowable 6.8 to Jobwire and back, step by step as the page of Flowable
//! says.

use std::time::Duration;

use jobwire_tests::{EngineServer, EngineSettings, JobExecutor, eventually, shared};

use super::flowable::{
    Bridge, options, quick, repeated, store, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::{JOB, World};

/// The time for which an engine node locks the job of a message. Jobwire takes the job over a minute
/// after its end.
const LOCK: &str = "PT3S";
const TAKEN_OVER: Duration = Duration::from_secs(120);

/// Returns the settings of an engine node in the message-queue mode.
fn messages(database: &str, broker: &str, receives: bool) -> EngineSettings {
    let settings = EngineSettings::flowable6(database)
        .executor(JobExecutor::On)
        .property("messages", broker)
        .property("messages.send", "true")
        .property("flowable.process.async.executor.async-job-lock-time", LOCK);
    if receives {
        settings.property("messages.receive", "true")
    } else {
        settings
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn flowable6_is_handed_over_from_its_message_queue_mode_and_back() {
    let space = shared::rabbitmq().await.space().await;
    let mut world = World::start(|database| messages(database, &space.url, true)).await;
    let rows = world.connect().await;
    let done = world.engine.start_instances("chain", 5, &[]).await;
    until_ended(&rows, &done).await;

    // Jobs whose messages nobody has received yet: the engine has locked them.
    world.engine.stop().await;
    world.engine = EngineServer::start(messages(&world.database, &space.url, false)).await;
    let mut instances = world.engine.start_instances("chain", 10, &[]).await;
    assert!(rows.job(JOB, &instances[0]).await.is_locked());
    // Timers become due while no node moves them.
    let timers = [("wait", "PT2S")];
    instances.extend(world.engine.start_instances("timer", 3, &timers).await);
    world.engine.stop().await;

    // Over: the executor, the mode and the job manager go in one restart. A consumer stays.
    let over = EngineSettings::flowable6(&world.database)
        .property("messages", &space.url)
        .property("messages.receive", "true");
    world.engine = EngineServer::start(over).await;
    let bridge = Bridge::start(&world, options(&world.engine), quick()).await;
    instances.extend(world.engine.start_instances("chain", 10, &[]).await);
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, [], "each activity ran once");

    // Back, in the middle of chains. In its message-queue mode the engine never looks at a job without a
    // message, so a node that polls runs what Jobwire has left.
    let left = world.engine.start_instances("chain", 20, &[]).await;
    let releasing = store(&world, options(&world.engine)).await;
    bridge.stop().await;
    releasing.release_engine().await.unwrap();
    world.engine.stop().await;
    let polls = EngineSettings::flowable6(&world.database).executor(JobExecutor::On);
    world.engine = EngineServer::start(polls).await;
    until_ended(&rows, &left).await;
    world.engine.stop().await;
    world.engine = EngineServer::start(messages(&world.database, &space.url, true)).await;
    let back = world.engine.start_instances("chain", 5, &[]).await;
    until_ended(&rows, &back).await;
    assert_eq!(repeated(&rows).await, [], "each activity ran once");
    until_no_lock_is_left(&rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_message_of_flowable6_that_is_lost_costs_its_job_the_rest_of_the_lock() {
    let space = shared::rabbitmq().await.space().await;
    let mut world = World::start(|database| messages(database, &space.url, false)).await;
    let rows = world.connect().await;
    let instances = world.engine.start_instances("chain", 3, &[]).await;
    world.engine.stop().await;
    // No consumer is left.
    world.engine = EngineServer::start(EngineSettings::flowable6(&world.database)).await;
    let bridge = Bridge::start(&world, options(&world.engine), quick()).await;
    let first = &instances[0];
    eventually("Jobwire to take the job over", TAKEN_OVER, || async {
        (!rows.effects(first).await.is_empty()).then_some(())
    })
    .await;
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, [], "each activity ran once");
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}
