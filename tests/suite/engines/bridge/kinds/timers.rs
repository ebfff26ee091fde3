//! Timers of every form: an intermediate one, boundary events, a cycle, a start event.

use jobwire_tests::{EngineSettings, eventually};

use crate::engines::bridge::flowable::{
    Bridge, DONE, options, quick, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::{Rows, World};

/// Returns how often instances of a process have run their activity.
async fn runs_of(rows: &Rows, process: &str) -> i64 {
    // Each engine writes the key of the process at the beginning of the definition's id.
    let query = "SELECT count(*) FROM jobwire_effect e JOIN act_hi_procinst p ON p.proc_inst_id_ = e.instance
        WHERE p.proc_def_id_ LIKE $1 || ':%'";
    rows.count(query, process).await
}

/// `whole`: the engine skips no occurrence of a cycle that is late.
async fn every_timer_fires(settings: fn(&str) -> EngineSettings, whole: bool) {
    let world = World::start(settings).await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    let soon = [("wait", "PT1S")];
    let mut instances = engine.start_instances("timer", 3, &soon).await;
    instances.extend(engine.start_instances("boundary", 3, &soon).await);
    let cycles = engine.start_instances("cycle", 2, &[]).await;
    engine.deploy("started").await;
    until_ended(&rows, &instances).await;
    for instance in &instances {
        assert_eq!(rows.effects(instance).await.len(), 1);
    }
    let least = if whole { 3 } else { 1 };
    eventually("the start event to fire", DONE, || async {
        (runs_of(&rows, "started").await >= least).then_some(())
    })
    .await;
    for cycle in &cycles {
        eventually("the cycle to run", DONE, || async {
            let runs = i64::try_from(rows.effects(cycle).await.len()).unwrap();
            (runs >= least).then_some(())
        })
        .await;
    }
    // None of the three runs once more.
    eventually("the repetitions to end", DONE, || async {
        let jobs = "SELECT count(*) FROM act_ru_job WHERE handler_type_ LIKE '%timer%' AND $1 = ''";
        (rows.count(jobs, "").await == 0).then_some(())
    })
    .await;
    assert!(runs_of(&rows, "started").await <= 3);
    assert!(runs_of(&rows, "cycle").await <= 6);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_timer_of_flowable_fires() {
    every_timer_fires(EngineSettings::flowable7, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_timer_of_activiti_fires() {
    every_timer_fires(EngineSettings::activiti7, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn every_timer_of_camunda_fires() {
    every_timer_fires(EngineSettings::camunda7, false).await;
}
