//! Flowable 7 with its executor off, over its REST. All tests share one engine.

mod counts;
mod endpoint;
mod execute;
mod moves;
mod revisions;

use jobwire_tests::{EngineServer, EngineSettings};
use sqlx::Row;
use sqlx::types::chrono::NaiveDateTime;
use tokio::sync::OnceCell;

use crate::engines::rows::{Rows, World};

const JOB: &str = "act_ru_job";
const TIMER: &str = "act_ru_timer_job";
const SUSPENDED: &str = "act_ru_suspended_job";
const DEAD: &str = "act_ru_deadletter_job";

/// Locks a job as a node of Flowable does.
const LOCK: &str = "UPDATE act_ru_job SET lock_owner_ = 'somebody',
    lock_exp_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";

/// Locks an instance as a node of Flowable does.
const LOCK_INSTANCE: &str = "UPDATE act_ru_execution SET lock_owner_ = 'somebody',
    lock_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";

/// The shared engine, and the database.
async fn flowable() -> (&'static EngineServer, Rows) {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    let world = SHARED
        .get_or_init(|| World::start(EngineSettings::flowable7))
        .await;
    (&world.engine, world.connect().await)
}

#[tokio::test]
async fn a_committed_job_of_flowable_is_unlocked() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!((job.revision, job.retries), (1, Some(3)));
    assert!(!job.is_locked(), "{job:?}");
    assert_eq!(job.due, None);
    let more = rows
        .all(
            "SELECT type_, correlation_id_, tenant_id_, exclusive_, create_time_
             FROM act_ru_job WHERE id_ = $1",
            &job.id,
        )
        .await;
    assert_eq!(more[0].get::<&str, _>("type_"), "message");
    assert_ne!(more[0].get::<&str, _>("correlation_id_"), "");
    assert_eq!(more[0].get::<&str, _>("tenant_id_"), "");
    assert!(more[0].get::<bool, _>("exclusive_"));
    assert!(
        more[0]
            .get::<Option<NaiveDateTime>, _>("create_time_")
            .is_some()
    );
}

#[tokio::test]
async fn a_committed_timer_of_flowable_has_its_due_date_and_its_cycle() {
    let (engine, rows) = flowable().await;
    let instance = engine.start_instance("cycle", &[]).await;
    let timer = rows.job(TIMER, &instance).await;
    assert!(timer.due.is_some() && !timer.is_locked(), "{timer:?}");
    let more = rows
        .all(
            "SELECT type_, handler_type_, repeat_ FROM act_ru_timer_job WHERE id_ = $1",
            &timer.id,
        )
        .await;
    assert_eq!(more[0].get::<&str, _>("type_"), "timer");
    assert_eq!(more[0].get::<&str, _>("handler_type_"), "trigger-timer");
    let repeat: &str = more[0].get("repeat_");
    assert!(
        repeat.starts_with("R3/20") && repeat.ends_with("/PT1S"),
        "{repeat}"
    );
}
