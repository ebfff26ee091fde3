//! Nodes and brokers that are killed while an engine has much to do.

use std::sync::Arc;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_tests::{EngineSettings, RabbitMq, Running, Scratch, Signal, eventually, shared};

use super::flowable::{
    Bridge, DONE, options, quick, repeated, store, until_ended, until_no_lock_is_left, world,
};
use super::program::{jobwire, succeeds};
use crate::engines::rows::{Rows, World};

/// Waits until as many activities have run.
async fn until_effects(rows: &Rows, least: i64) {
    eventually("activities to run", DONE, || async {
        let ran: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire_effect")
            .fetch_one(&rows.0)
            .await
            .unwrap();
        (ran >= least).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_node_of_camunda_that_is_killed_under_load_leaves_no_job_behind_and_repeats_none() {
    let world = World::start(EngineSettings::camunda7).await;
    let rows = world.connect().await;
    let home = Scratch::new();
    let space = shared::rabbitmq().await.space().await;
    let program = |arguments: &[&str]| {
        jobwire(&home, &world, arguments)
            .env("JOBWIRE_ENGINE_TYPE", "camunda")
            .env("JOBWIRE_ENGINE_LOCK_FOR", "6s")
            .env("JOBWIRE_BROKER_URL", &space.url)
            .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
    };
    succeeds(program(&["engine", "init"])).await;
    let start = || async {
        let node: Running = program(&["engine", "run"]).start();
        let line = node.wait_for_line("is ready", DONE).await;
        let id = line.split_whitespace().nth(2).expect("its id").to_owned();
        (node, id)
    };
    let (mut victim, dead) = start().await;
    let (mut survivor, _) = start().await;
    let mut instances = world.engine.start_instances("chain", 40, &[]).await;
    until_effects(&rows, 60).await;
    victim.signal(Signal::SIGKILL);
    victim.exit(DONE).await;
    instances.extend(world.engine.start_instances("one", 40, &[]).await);
    // As when 90 seconds have passed.
    let silent =
        "UPDATE jobwire_engine.node SET seen_at = seen_at - interval '1 hour' WHERE id::text = $1";
    assert_eq!(rows.change(silent, &dead).await, 1);
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    survivor.signal(Signal::SIGTERM);
    assert!(survivor.exit(DONE).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_jobs_of_an_engine_run_while_the_broker_is_dead_and_after_it_is_back() {
    let mut broker = RabbitMq::start().await;
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let mut bridges = Vec::new();
    for _ in 0..2 {
        let store = store(&world, options(engine)).await;
        let transport = AmqpTransport::connect(&broker.url(), AmqpOptions::default()).await;
        bridges.push(Bridge::on(store, Arc::new(transport.unwrap()), quick()).await);
    }
    let mut instances = engine.start_instances("chain", 40, &[]).await;
    instances.extend(engine.start_instances("fork", 20, &[]).await);
    until_effects(&rows, 60).await;
    broker.kill();
    let dead = engine.start_instances("one", 40, &[]).await;
    until_ended(&rows, &dead).await;
    until_ended(&rows, &instances).await;
    broker.start_again().await;
    let mut back = engine.start_instances("chain", 10, &[]).await;
    back.extend(engine.start_instances("one", 20, &[]).await);
    until_ended(&rows, &back).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    for bridge in bridges {
        bridge.stop().await;
    }
}
