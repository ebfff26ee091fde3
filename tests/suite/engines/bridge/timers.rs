//! Moving due timers of Flowable. All tests share one engine, on which no node runs.

use std::time::Duration;

use jobwire_core::store::Store;
use jobwire_engines::EngineStore;
use jobwire_tests::{EngineServer, EngineSettings, eventually};
use sqlx::Row;
use tokio::sync::{Mutex, OnceCell};

use super::flowable::{DONE, job_id, options, world};
use crate::engines::rows::{Rows, World};

const JOB: &str = "act_ru_job";
const TIMER: &str = "act_ru_timer_job";

/// A move takes the timers of every test, so one test moves at a time.
static MOVES: Mutex<()> = Mutex::const_new(());

async fn shared() -> (&'static EngineServer, EngineStore, Rows) {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    let world = SHARED.get_or_init(world).await;
    let store = EngineStore::flowable(&world.database, options(&world.engine)).await;
    let store = store.unwrap();
    store.init().await.unwrap();
    (&world.engine, store, world.connect().await)
}

/// The numbers of jobs and timers on the executions of an instance.
async fn counts(rows: &Rows, instance: &str) -> (i64, i64) {
    let row = rows
        .all(
            "SELECT sum(job_count_), sum(timer_job_count_) FROM act_ru_execution WHERE proc_inst_id_ = $1",
            instance,
        )
        .await;
    (row[0].get(0), row[0].get(1))
}

#[tokio::test]
async fn a_due_timer_moves_with_its_counts_and_the_engine_goes_on_with_it() {
    let _alone = MOVES.lock().await;
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("boundary", &[("wait", "PT1S")]).await;
    let timer = rows.job(TIMER, &instance).await;
    assert_eq!(counts(&rows, &instance).await, (0, 1));
    let early = store.move_due_timers(100).await.unwrap();
    let of_it = |ready: &jobwire_core::hint::Ready| ready.hint.id == job_id(&timer.id);
    if !rows.jobs(TIMER, &instance).await.is_empty() {
        assert!(!early.ready.iter().any(of_it));
        assert!(early.next_due.is_some());
    }
    let moved = eventually("the timer to be due", DONE, || async {
        let moved = store.move_due_timers(100).await.unwrap();
        moved.ready.into_iter().find(of_it)
    })
    .await;
    assert_eq!(moved.hint.instance.as_deref(), Some(&*instance));
    let job = rows.job(JOB, &instance).await;
    assert_eq!((&job.id, job.due), (&timer.id, timer.due));
    assert!(!job.is_locked());
    assert_eq!(counts(&rows, &instance).await, (1, 0));
    // With a wrong count the engine would leave the job behind, and the foreign key would fail.
    let answer = engine.complete_tasks(&instance).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(rows.ended(&instance).await);
}

#[tokio::test]
async fn no_timer_moves_before_it_is_due() {
    let _alone = MOVES.lock().await;
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let moved = store.move_due_timers(100).await.unwrap();
    assert_eq!(rows.jobs(TIMER, &instance).await.len(), 1);
    let next = moved.next_due.unwrap() - moved.now;
    assert!(next.num_minutes() <= 60, "{next}");
}

#[tokio::test]
async fn a_timer_of_a_locked_instance_waits_for_it() {
    let _alone = MOVES.lock().await;
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("boundary", &[("wait", "PT0S")]).await;
    let hold = "UPDATE act_ru_execution SET lock_owner_ = 'engine', lock_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";
    rows.change(hold, &instance).await;
    let due = "UPDATE act_ru_timer_job SET duedate_ = localtimestamp - interval '1 day' WHERE process_instance_id_ = $1";
    rows.change(due, &instance).await;
    let moved = store.move_due_timers(100).await.unwrap();
    assert_eq!(rows.jobs(TIMER, &instance).await.len(), 1);
    let again = moved.next_due.unwrap() - moved.now;
    assert!(
        again > chrono::Duration::zero(),
        "it is not tried in a loop"
    );
    let free = "UPDATE act_ru_execution SET lock_owner_ = NULL, lock_time_ = NULL WHERE id_ = $1";
    rows.change(free, &instance).await;
    store.move_due_timers(100).await.unwrap();
    assert_eq!(rows.jobs(JOB, &instance).await.len(), 1);
}

#[tokio::test]
async fn the_zone_of_the_engine_decides_when_a_timer_is_due() {
    let world =
        World::start(|database| EngineSettings::flowable7(database).zone("America/New_York")).await;
    let rows = world.connect().await;
    let instance = world
        .engine
        .start_instance("timer", &[("wait", "PT2S")])
        .await;
    let connect = |zone: &str| {
        EngineStore::flowable(
            &world.database,
            options(&world.engine).zone(zone.to_owned()),
        )
    };
    let right = connect("America/New_York").await.unwrap();
    right.init().await.unwrap();
    // Read as UTC, its clock is hours behind, and the timer would be due at once. The engine's own
    // ids show that the zone is wrong.
    let behind = connect("UTC").await.unwrap();
    behind.check().await.unwrap();
    let (part, said) = behind.failing_part().expect("a problem");
    assert!(part == "zone" && said.contains("`engine_zone`"), "{said}");
    let moved = behind.move_due_timers(10).await.unwrap();
    assert!(moved.ready.is_empty(), "{moved:?}");
    assert_eq!(rows.jobs(TIMER, &instance).await.len(), 1);
    right.check().await.unwrap();
    assert_eq!(right.failing_part(), None);
    let moved = right.move_due_timers(10).await.unwrap();
    assert!(moved.ready.is_empty() || rows.jobs(TIMER, &instance).await.is_empty());
    let wait = moved.next_due.map(|due| due - moved.now);
    assert!(wait.is_none_or(|wait| wait.num_seconds() <= 2), "{wait:?}");
    // A zone that puts the engine into the future is refused.
    let wrong = connect("Pacific/Honolulu").await.unwrap();
    let said = wrong.check().await.expect_err("refused").to_string();
    assert!(said.contains("engine_zone"), "{said}");
    eventually("the timer to move", Duration::from_secs(20), || async {
        right.move_due_timers(10).await.unwrap();
        rows.jobs(TIMER, &instance).await.is_empty().then_some(())
    })
    .await;
}
