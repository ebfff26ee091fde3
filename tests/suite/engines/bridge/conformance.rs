//! What holds for the bridge to every engine.

use jobwire_core::{JobQuery, JobState, Store};
use jobwire_engines::EngineOptions;
use jobwire_tests::eventually;

use super::flowable::{
    Bridge, DONE, options, quick, repeated, steady, store, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::{Rows, World};

/// Every instance of every process ends, each activity runs once, and the attempts are the engine's:
/// `size` is the number of instances of a process with parallel branches.
pub(super) async fn every_process_ends(world: World, size: usize) {
    let options = options(&world.engine);
    every_process_ends_with(world, options, size).await;
}

/// The same with options of the test's own.
pub(super) async fn every_process_ends_with(world: World, options: EngineOptions, size: usize) {
    let rows = world.connect().await;
    let engine = &world.engine;
    // Some instances wait since before Jobwire came.
    let mut instances = engine.start_instances("one", size / 5, &[]).await;
    let bridge = Bridge::start(&world, options.clone(), quick()).await;
    for (process, count, variables) in [
        ("chain", size / 10, vec![]),
        ("one", size / 2, vec![]),
        ("fork", size, vec![]),
        ("timer", size / 10, vec![("wait", "PT1S")]),
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
    assert_eq!(recorded_twice(&rows).await, []);
    let chain = rows.effects(&instances[size / 5]).await;
    assert_eq!(chain.len(), 10, "{chain:?}");
    // The retries are the engine's: two attempts, and three until the dead letter.
    until_ended(&rows, &failing).await;
    let dead_letters = JobQuery::default().states([JobState::DeadLetter]);
    let counted = store(&world, options).await;
    eventually("the dead letters", DONE, || async {
        (counted.count(&dead_letters).await.unwrap() == 2).then_some(())
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

/// The branches of many instances meet at a join, and none hangs or runs twice.
pub(super) async fn joins_end(world: World, instances: usize) {
    let options = options(&world.engine);
    joins_end_with(world, options, instances).await;
}

/// The same with options of the test's own.
pub(super) async fn joins_end_with(world: World, options: EngineOptions, instances: usize) {
    let rows = world.connect().await;
    let bridge = Bridge::start(&world, options, steady()).await;
    let instances = world.engine.start_instances("fork", instances, &[]).await;
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

/// Returns the activities that the engine's history shows twice.
async fn recorded_twice(rows: &Rows) -> Vec<(String, String, i64)> {
    sqlx::query_as(
        "SELECT proc_inst_id_, act_id_, count(*) FROM act_hi_actinst WHERE act_type_ = 'serviceTask'
         GROUP BY 1, 2 HAVING count(*) > 1",
    )
    .fetch_all(&rows.0)
    .await
    .unwrap()
}
