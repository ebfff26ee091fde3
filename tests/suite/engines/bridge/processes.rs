//! Every kind of process ends with the engine's executor off and Jobwire beside it.

use std::sync::Arc;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_tests::{EngineProgram, EngineSettings, shared};

use super::camunda::world_with_endpoint;
use super::conformance::{every_process_ends, every_process_ends_with};
use super::flowable::{
    Bridge, options, over_endpoint, repeated, steady, store, until_ended, until_no_lock_is_left,
    world,
};
use crate::engines::rows::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_of_flowable_ends_and_each_activity_runs_once() {
    every_process_ends(world().await, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_of_camunda_ends_and_each_activity_runs_once() {
    every_process_ends(World::start(EngineSettings::camunda7).await, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_of_activiti_ends_and_each_activity_runs_once() {
    every_process_ends(World::start(EngineSettings::activiti7).await, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_of_flowable8_ends_and_each_activity_runs_once() {
    every_process_ends(World::start(EngineSettings::flowable8).await, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_flowable6_ends_and_each_activity_runs_once() {
    every_process_ends(World::start(EngineSettings::flowable6).await, 10).await;
}

async fn every_process_of(program: EngineProgram) {
    let world = World::start(|database| EngineSettings::new(program, database)).await;
    every_process_ends(world, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_flowable70_ends_and_each_activity_runs_once() {
    every_process_of(EngineProgram::Flowable70).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_camunda720_ends_and_each_activity_runs_once() {
    every_process_of(EngineProgram::Camunda720).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_operaton_ends_and_each_activity_runs_once() {
    every_process_of(EngineProgram::Operaton).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_cib_seven_ends_and_each_activity_runs_once() {
    every_process_of(EngineProgram::CibSeven).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_activiti6_ends_and_each_activity_runs_once() {
    every_process_ends(World::start(EngineSettings::activiti6).await, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_flowable_ends_over_the_endpoint() {
    let world = world().await;
    let options = over_endpoint(&world.engine);
    every_process_ends_with(world, options, 50).await;
}

/// Jobwire locks the jobs in the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_camunda_ends_over_the_endpoint() {
    let world = world_with_endpoint().await;
    let options = over_endpoint(&world.engine);
    every_process_ends_with(world, options, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_activiti_ends_with_many_instances() {
    every_process_ends(World::start(EngineSettings::activiti7).await, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_process_of_camunda_ends_with_many_instances() {
    every_process_ends(World::start(EngineSettings::camunda7).await, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_over_rabbitmq_share_the_jobs_of_flowable() {
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let space = shared::rabbitmq().await.space().await;
    let mut bridges = Vec::new();
    for _ in 0..2 {
        let store = store(&world, options(engine)).await;
        let prefix = AmqpOptions::default().prefix(space.prefix.clone());
        let transport = AmqpTransport::connect(&space.url, prefix).await.unwrap();
        bridges.push(Bridge::on(store, Arc::new(transport), steady()).await);
    }
    let mut instances = engine.start_instances("fork", 30, &[]).await;
    instances.extend(engine.start_instances("chain", 10, &[]).await);
    instances.extend(
        engine
            .start_instances("timer", 5, &[("wait", "PT1S")])
            .await,
    );
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    for bridge in bridges {
        bridge.stop().await;
    }
}
