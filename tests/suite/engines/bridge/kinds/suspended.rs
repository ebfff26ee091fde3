//! Jobs and timers of suspended instances: they wait for the activation.

use jobwire_tests::EngineSettings;

use crate::engines::bridge::flowable::{
    Bridge, options, quick, repeated, until_ended, until_no_lock_is_left,
};
use crate::engines::rows::{SUSPENDED, World};

async fn suspended_jobs_wait(settings: fn(&str) -> EngineSettings) {
    let world = World::start(settings).await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let mut instances = engine.start_instances("one", 1, &[]).await;
    instances.extend(
        engine
            .start_instances("timer", 1, &[("wait", "PT1S")])
            .await,
    );
    for instance in &instances {
        engine.suspend(instance).await;
        assert_eq!(rows.ids(SUSPENDED, instance).await.len(), 1);
    }
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    // Later instances show that the bridge has passed, and that the timer is due.
    let later = engine
        .start_instances("timer", 2, &[("wait", "PT2S")])
        .await;
    until_ended(&rows, &later).await;
    for instance in &instances {
        let whole = "SELECT count(*) FROM act_ru_suspended_job WHERE process_instance_id_ = $1 AND retries_ = 3";
        assert_eq!(rows.count(whole, instance).await, 1);
        assert!(rows.effects(instance).await.is_empty());
        engine.activate(instance).await;
    }
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_suspended_instance_of_flowable_goes_on_when_it_is_activated() {
    suspended_jobs_wait(EngineSettings::flowable7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_suspended_instance_of_activiti_goes_on_when_it_is_activated() {
    suspended_jobs_wait(EngineSettings::activiti7).await;
}
