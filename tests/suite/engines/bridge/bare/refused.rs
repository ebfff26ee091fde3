//! Jobs of Camunda that its endpoint does not run, although the node has locked them: they were suspended
//! meanwhile, or are not due by the engine's clock. The row decides what becomes of them.

use super::application::{Application, Execution};
use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::{Bridge, quick, until_no_lock_is_left};
use crate::engines::rows::JOB;

/// Suspends the instance of a job, as the engine does, or activates it: `$1` is the instance.
const SUSPEND: &str = "
WITH instance AS (UPDATE act_ru_execution SET suspension_state_ = 2 WHERE id_ = $1)
UPDATE act_ru_job SET suspension_state_ = 2, rev_ = rev_ + 1 WHERE process_instance_id_ = $1";
const ACTIVATE: &str = "
WITH instance AS (UPDATE act_ru_execution SET suspension_state_ = 1 WHERE id_ = $1)
UPDATE act_ru_job SET suspension_state_ = 1, rev_ = rev_ + 1 WHERE process_instance_id_ = $1";

/// Ends the execution of a job like the engine after a conflict: unlocked, and with all attempts.
const CONFLICT: &str = "
UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL, rev_ = rev_ + 1 WHERE id_ = $1";

/// The tables of Camunda, a node, and the application that stands for the engine.
struct World {
    bare: Bare,
    application: Application,
    bridge: Bridge,
}

impl World {
    async fn start() -> World {
        let bare = Bare::of(Engine::Camunda).await;
        let application = Application::start().await;
        let options = bare.options(application.url());
        let bridge = bare.bridge(options, quick()).await;
        World {
            bare,
            application,
            bridge,
        }
    }

    /// Runs the job to its end, and stops.
    async fn end(mut self, execution: Execution) {
        let row = self.bare.find(JOB, &execution.id).await.expect("the job");
        assert_eq!(row.retries, Some(3), "no attempt is spent");
        assert_eq!(row.owner, execution.owner);
        self.bare.end(&execution.id).await;
        execution.gone();
        until_no_lock_is_left(&self.bare.rows).await;
        self.bridge.stop().await;
        self.application.assert_no_other();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_suspended_after_its_lock_waits_unlocked_and_loses_no_attempt() {
    let mut world = World::start().await;
    let (instance, jobs) = world.bare.instance(1).await;
    let execution = world.application.execution().await;
    assert_eq!(world.bare.rows.change(SUSPEND, &instance).await, 1);
    execution.refused();
    until_no_lock_is_left(&world.bare.rows).await;
    assert_eq!(world.bare.rows.change(ACTIVATE, &instance).await, 1);
    let again = world.application.execution().await;
    assert_eq!(again.id, jobs[0]);
    world.end(again).await;
}

/// The answer is about the job, so the address stays in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_not_due_by_the_clock_of_the_engine_is_tried_again_under_a_new_lock() {
    let mut world = World::start().await;
    world.bare.job().await;
    let mut execution = world.application.execution().await;
    for _ in 0..4 {
        let owner = execution.owner.clone();
        execution.refused();
        execution = world.application.execution().await;
        assert_ne!(execution.owner, owner);
        assert!(world.bridge.node().health().ready);
    }
    world.end(execution).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_camunda_that_met_another_transaction_runs_again_and_loses_no_attempt() {
    let mut world = World::start().await;
    let id = world.bare.job().await;
    let execution = world.application.execution().await;
    assert_eq!(world.bare.rows.change(CONFLICT, &id).await, 1);
    execution.unrecorded();
    let again = world.application.execution().await;
    assert_eq!(again.id, id);
    world.end(again).await;
}

/// Another node has taken the job over, and runs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_camunda_whose_lock_was_lost_is_left_to_its_holder() {
    let mut world = World::start().await;
    let id = world.bare.job().await;
    let execution = world.application.execution().await;
    let other = "UPDATE act_ru_job SET lock_owner_ = 'jobwire:0198c0de-7777-7000-8000-000000000001:1' WHERE id_ = $1";
    assert_eq!(world.bare.rows.change(other, &id).await, 1);
    let held = world.bare.find(JOB, &id).await;
    execution.refused();
    let later = world.bare.job().await;
    let beside = world.application.execution().await;
    assert_eq!(beside.id, later);
    world.bare.end(&later).await;
    beside.gone();
    // The outcomes are settled when the node has stopped.
    world.bridge.stop().await;
    assert_eq!(world.bare.find(JOB, &id).await, held);
    world.application.assert_no_other();
}
