//! The locks that the leader clears after the death of a holder: those of jobs and instances at the end
//! of `takeover_patience`, those of timers, and those of instances for which only a timer waits. What
//! counts as a lock.

use std::collections::BTreeSet;
use std::time::Duration;

use jobwire_core::job::scope::Services;
use jobwire_core::store::Store;
use sqlx::types::chrono::NaiveDateTime;

use super::application::Application;
use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::{quick, until_no_lock_is_left};
use crate::engines::rows::{JOB, TIMER};

/// Locks a job as a dead node of Jobwire, until half a second from now.
const LOCK: &str = "
UPDATE act_ru_job SET lock_owner_ = 'jobwire:00000000-0000-4000-8000-000000000000:1',
    lock_exp_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + interval '500 milliseconds'
WHERE id_ = $1 RETURNING lock_exp_time_";
/// Locks the instance of a job, which is left unlocked.
const HOLD: &str = "
UPDATE act_ru_execution SET lock_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + interval '500 milliseconds'
WHERE id_ = (SELECT process_instance_id_ FROM act_ru_job WHERE id_ = $1) RETURNING lock_time_";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_patience_with_an_open_transaction_of_flowable_has_an_end() {
    taken_over_after_the_patience(Engine::Flowable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_patience_with_an_open_transaction_of_activiti_has_an_end() {
    taken_over_after_the_patience(Engine::Activiti).await;
}

/// A transaction that may be an execution stays open, and outlives the patience.
async fn taken_over_after_the_patience(engine: Engine) {
    let patience = Duration::from_secs(4);
    let bare = Bare::of(engine).await;
    let mut application = Application::start().await;
    let transaction = bare.begin().await;
    let mut ends: Vec<(String, NaiveDateTime)> = Vec::new();
    for lock in [LOCK, HOLD] {
        let id = bare.job().await;
        let end = sqlx::query_scalar(lock).bind(&id);
        let end = end.fetch_one(&bare.rows.0).await.unwrap();
        ends.push((id, end));
    }
    let options = bare.options(application.url()).takeover_patience(patience);
    let bridge = bare.bridge(options, quick()).await;
    let mut ran = BTreeSet::new();
    for _ in &ends {
        let execution = application.execution().await;
        let at = bare.clock().await;
        let mut of_it = ends.iter().filter(|(id, _)| *id == execution.id);
        let (_, end) = of_it.next().expect("one of the jobs");
        assert!(at >= *end + patience, "at {at}, locked until {end}");
        ran.insert(execution.id.clone());
        bare.end(&execution.id).await;
        execution.gone();
    }
    assert_eq!(ran.len(), ends.len());
    transaction.rollback().await.unwrap();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}

/// Locks a timer as an engine node, until this number of seconds from now.
const LOCK_TIMER: &str = "
UPDATE act_ru_timer_job SET lock_owner_ = 'engine',
    lock_exp_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + $2 * interval '1 second'
WHERE id_ = $1";

async fn lock_timer(bare: &Bare, id: &str, seconds: i32) {
    let lock = sqlx::query(LOCK_TIMER).bind(id).bind(seconds);
    let locked = lock.execute(&bare.rows.0).await.unwrap();
    assert_eq!(locked.rows_affected(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_of_flowable_that_a_dead_engine_node_has_locked_fire() {
    timers_of_dead_engine_nodes_fire(Engine::Flowable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_of_activiti_that_a_dead_engine_node_has_locked_fire() {
    timers_of_dead_engine_nodes_fire(Engine::Activiti).await;
}

/// The leader leaves a minute after the expiry of a lock to the engine's own reset. With the executors
/// off there is no reset.
async fn timers_of_dead_engine_nodes_fire(engine: Engine) {
    let bare = Bare::of(engine).await;
    let mut application = Application::start().await;
    let (dead, ended, living) = (bare.timer().await, bare.timer().await, bare.timer().await);
    for (id, seconds) in [(&dead, -90), (&ended, -1), (&living, 3_600)] {
        lock_timer(&bare, id, seconds).await;
    }
    let options = bare.options(application.url());
    let bridge = bare.bridge(options, quick()).await;
    let fired = application.execution().await;
    assert_eq!(fired.id, dead);
    for id in [&ended, &living] {
        let timer = bare.find(TIMER, id).await.expect("it has not moved");
        assert!(timer.is_locked(), "{timer:?}");
    }
    bare.end(&fired.id).await;
    fired.gone();
    // A minute later.
    lock_timer(&bare, &ended, -90).await;
    let fired = application.execution().await;
    assert_eq!(fired.id, ended);
    assert!(bare.find(TIMER, &living).await.unwrap().is_locked());
    bare.end(&fired.id).await;
    fired.gone();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}

/// Leaves the lock of the instance of a timer behind.
const LEAVE: &str = "
UPDATE act_ru_execution SET lock_time_ = (clock_timestamp() AT TIME ZONE 'UTC') - interval '1 second'
WHERE id_ = (SELECT process_instance_id_ FROM act_ru_timer_job WHERE id_ = $1)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_of_flowable_fires_though_a_dead_node_left_its_instance_locked() {
    a_timer_of_a_left_instance_fires(Engine::Flowable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_of_activiti_fires_though_a_dead_node_left_its_instance_locked() {
    a_timer_of_a_left_instance_fires(Engine::Activiti).await;
}

/// A node died after the engine had committed the execution of its job, and before it could clear the
/// lock of the instance. The job is gone, and only a timer waits.
async fn a_timer_of_a_left_instance_fires(engine: Engine) {
    let bare = Bare::of(engine).await;
    let mut application = Application::start().await;
    let timer = bare.timer().await;
    assert_eq!(bare.rows.change(LEAVE, &timer).await, 1);
    let options = bare.options(application.url());
    let store = bare.store(options.clone()).await;
    let counted = store.sweepable(&Services::default(), &[]).await.unwrap();
    assert_eq!(counted.left_over_instances, 1, "{counted:?}");
    let bridge = bare.bridge(options, quick()).await;
    let fired = application.execution().await;
    assert_eq!(fired.id, timer);
    bare.end(&fired.id).await;
    fired.gone();
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}

/// Leaves an owner without an expiry on a job, as an interrupted repair by hand does.
const OWN_JOB: &str = "UPDATE act_ru_job SET lock_owner_ = 'engine' WHERE id_ = $1";
const OWN_TIMER: &str = "UPDATE act_ru_timer_job SET lock_owner_ = 'engine' WHERE id_ = $1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_and_timers_of_flowable_with_an_owner_and_no_expiry_run() {
    an_owner_without_an_expiry_is_no_lock(Engine::Flowable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_and_timers_of_activiti_with_an_owner_and_no_expiry_run() {
    an_owner_without_an_expiry_is_no_lock(Engine::Activiti).await;
}

/// The engine reads only the expiry of a job's lock.
async fn an_owner_without_an_expiry_is_no_lock(engine: Engine) {
    let bare = Bare::of(engine).await;
    let mut application = Application::start().await;
    let (job, timer) = (bare.job().await, bare.timer().await);
    assert_eq!(bare.rows.change(OWN_JOB, &job).await, 1);
    assert_eq!(bare.rows.change(OWN_TIMER, &timer).await, 1);
    let options = bare.options(application.url());
    let bridge = bare.bridge(options, quick()).await;
    let mut ran = BTreeSet::new();
    for _ in 0..2 {
        let execution = application.execution().await;
        // The lock replaces the owner, too.
        let row = bare.find(JOB, &execution.id).await.unwrap();
        let is_ours = (row.owner.as_deref()).is_some_and(|owner| owner.starts_with("jobwire:"));
        assert!(is_ours && row.expiry.is_some(), "{row:?}");
        ran.insert(execution.id.clone());
        bare.end(&execution.id).await;
        execution.gone();
    }
    assert_eq!(ran, BTreeSet::from([job, timer]));
    until_no_lock_is_left(&bare.rows).await;
    bridge.stop().await;
    application.assert_no_other();
}
