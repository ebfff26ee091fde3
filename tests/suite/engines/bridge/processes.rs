//! Every kind of process ends with the engine's executor off and Jobwire beside it.

use std::sync::Arc;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_engines::EngineStore;
use jobwire_tests::{eventually, shared};

use super::flowable::{
    Bridge, DONE, options, quick, repeated, until_ended, until_no_lock_is_left, world,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_of_flowable_ends_and_each_activity_runs_once() {
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    // Some instances wait since before Jobwire came.
    let mut instances = engine.start_instances("one", 10, &[]).await;
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    for (process, count, variables) in [
        ("one", 20, vec![]),
        ("chain", 5, vec![]),
        ("fork", 50, vec![]),
        ("timer", 5, vec![("wait", "PT1S")]),
        ("boundary", 3, vec![("wait", "PT1S")]),
        // Longer than two leases.
        ("slow", 2, vec![("millis", "7000")]),
    ] {
        let started = engine.start_instances(process, count, &variables).await;
        instances.extend(started);
    }
    let failing = engine
        .start_instances("failing", 2, &[("failures", "1")])
        .await;
    let dead = engine
        .start_instances("failing", 2, &[("failures", "100")])
        .await;
    until_ended(&rows, &instances).await;
    let twice = repeated(&rows).await;
    let of_failing = |instance: &String| failing.contains(instance) || dead.contains(instance);
    assert!(
        twice.iter().all(|(instance, ..)| of_failing(instance)),
        "{twice:?}"
    );
    let chain = rows.effects(&instances[30]).await;
    assert_eq!(chain.len(), 10, "{chain:?}");
    // The retries are the engine's: two attempts, and three until the dead letter.
    until_ended(&rows, &failing).await;
    eventually("the dead letters", DONE, || async {
        let dead_letters: i64 = sqlx::query_scalar("SELECT count(*) FROM act_ru_deadletter_job")
            .fetch_one(&rows.0)
            .await
            .unwrap();
        (dead_letters == 2).then_some(())
    })
    .await;
    for (instances, attempts) in [(&failing, 2), (&dead, 3)] {
        for instance in instances {
            assert_eq!(rows.effects(instance).await.len(), attempts);
        }
    }
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_over_rabbitmq_share_the_jobs_of_flowable() {
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let space = shared::rabbitmq().await.space().await;
    let mut bridges = Vec::new();
    for _ in 0..2 {
        let store = EngineStore::flowable(&world.database, options(engine))
            .await
            .unwrap();
        store.init().await.unwrap();
        let prefix = AmqpOptions::default().prefix(space.prefix.clone());
        let transport = AmqpTransport::connect(&space.url, prefix).await.unwrap();
        bridges.push(Bridge::on(store, Arc::new(transport), quick()).await);
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
