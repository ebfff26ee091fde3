//! New jobs and timers of Flowable from the commit tap.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use jobwire_core::NodeOptions;
use jobwire_tests::{EngineSettings, eventually};
use sqlx::Row;

use super::flowable::{Bridge, DONE, options, repeated, store, until_ended, world};
use crate::engines::rows::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tap_hints_jobs_and_timers_of_the_engine_without_a_look() {
    the_tap_hints(world().await, "flowable").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_tap_hints_jobs_and_timers_of_activiti_without_a_look() {
    let world = World::start(EngineSettings::activiti7).await;
    the_tap_hints(world, "activiti").await;
}

async fn the_tap_hints(world: World, engine: &str) {
    let rows = world.connect().await;
    let store = store(&world, options(&world.engine)).await;
    store.create_tap().await.unwrap();
    // No leader cycle comes to help within the test.
    let slow = NodeOptions::default()
        .concurrency(8)
        .lease(Duration::from_secs(1_200))
        .sweep_interval(Duration::from_secs(600));
    let bridge = Bridge::start(&world, options(&world.engine), slow).await;
    eventually("the tap to stand", DONE, || async {
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE starts_with(slot_name, $1)
            AND active AND database = current_database()";
        (rows.count(slots, "jobwire_engine").await == 1).then_some(())
    })
    .await;
    // The leader looks twice more after the tap stands, a second apart. Each look writes its row.
    let look = || async {
        let row = rows.all(
            "SELECT xmin::text FROM jobwire_engine.leader WHERE engine = $1",
            engine,
        );
        row.await[0].get::<String, _>(0)
    };
    let last = Mutex::new((look().await, Instant::now()));
    eventually("the looks to end", DONE, || async {
        let now = look().await;
        let mut last = last.lock().unwrap();
        if last.0 != now {
            *last = (now, Instant::now());
        }
        (last.1.elapsed() > Duration::from_secs(3)).then_some(())
    })
    .await;
    let mut instances = world.engine.start_instances("one", 20, &[]).await;
    instances.extend(world.engine.start_instances("fork", 10, &[]).await);
    instances.extend(
        world
            .engine
            .start_instances("timer", 3, &[("wait", "PT2S")])
            .await,
    );
    until_ended(&rows, &instances).await;
    assert_eq!(repeated(&rows).await, []);
    bridge.stop().await;
}
