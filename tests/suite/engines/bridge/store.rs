//! The store over Flowable's tables, one statement at a time. All tests share one engine, and each
//! has instances of its own.

use std::time::Duration;

use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{Completion, Handoff, Refusal, Release, Store};
use jobwire_core::{Hint, JobId, JobQuery, JobState, NodeId};
use jobwire_engines::EngineStore;
use jobwire_tests::{EngineServer, EngineSettings};
use sqlx::Row;
use tokio::sync::OnceCell;

use super::flowable::{hint, job_id, options, terms};
use crate::engines::rows::{JobRow, Rows, World};

const JOB: &str = "act_ru_job";

/// The shared engine, a store on its tables, and its rows.
pub(super) async fn shared() -> (&'static EngineServer, EngineStore, Rows) {
    let world = shared_world().await;
    let store = EngineStore::flowable(&world.database, options(&world.engine)).await;
    let store = store.unwrap();
    store.check().await.unwrap().ready().unwrap();
    (&world.engine, store, world.connect().await)
}

/// The shared engine and its database.
pub(super) async fn shared_world() -> &'static World {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let world = World::start(EngineSettings::flowable7).await;
            let store = EngineStore::flowable(&world.database, options(&world.engine)).await;
            store.unwrap().init().await.unwrap();
            world
        })
        .await
}

fn completion(held: LockToken) -> Completion {
    Completion {
        held,
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    }
}

async fn lock_one(store: &EngineStore, owner: NodeId, job: &JobRow) -> LockedJob {
    let locked = store.lock(&terms(owner), &[hint(&job.id)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    locked.jobs.into_iter().next().unwrap()
}

/// The owner and the expiry of the lock of an instance.
async fn instance_lock(rows: &Rows, instance: &str) -> (Option<String>, bool) {
    let row = rows
        .all(
            "SELECT lock_owner_, lock_time_ > (clock_timestamp() AT TIME ZONE 'UTC') AS valid
             FROM act_ru_execution WHERE id_ = $1",
            instance,
        )
        .await;
    (
        row[0].get(0),
        row[0].get::<Option<bool>, _>(1).unwrap_or(false),
    )
}

async fn settle(
    store: &EngineStore,
    owner: NodeId,
    held: LockToken,
) -> jobwire_core::store::BatchOutcome {
    store
        .complete(owner, &[completion(held)], &Handoff::Hint)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_hinted_job_of_flowable_is_locked_once_and_its_instance_with_it() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("one", &[]).await;
    let before = rows.job(JOB, &instance).await;
    let owner = NodeId::generate();
    let locked = lock_one(&store, owner, &before).await;
    assert_eq!(locked.job.process_instance.as_deref(), Some(&*instance));
    assert_eq!(locked.job.job_type, "async-continuation");
    assert_eq!(locked.job.retries, 3);
    let after = rows.job(JOB, &instance).await;
    // A polling node that has read the row before can't replace the lock.
    let polls = format!(
        "UPDATE act_ru_job SET lock_owner_ = 'engine', rev_ = {0} + 1 WHERE id_ = $1 AND rev_ = {0}",
        before.revision
    );
    assert_eq!(rows.change(&polls, &before.id).await, 0);
    let text = format!("jobwire:{owner}:{}", locked.fence);
    assert_eq!(after.owner.as_deref(), Some(&*text));
    assert_eq!(instance_lock(&rows, &instance).await, (Some(text), true));
    let again = store
        .lock(&terms(NodeId::generate()), &[hint(&before.id)])
        .await
        .unwrap();
    assert!(again.jobs.is_empty());
    assert_eq!(again.refused, [(job_id(&before.id), Refusal::Locked)]);
}

#[tokio::test]
async fn of_two_jobs_of_an_instance_one_is_locked_and_its_end_hands_over_to_the_other() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("fork", &[]).await;
    let jobs = rows.jobs(JOB, &instance).await;
    assert_eq!(jobs.len(), 4, "two of them are not exclusive");
    let owner = NodeId::generate();
    let hints: Vec<Hint> = jobs.iter().map(|job| hint(&job.id)).collect();
    let locked = store.lock(&terms(owner), &hints).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    assert_eq!(locked.refused.len(), 3);
    assert!(
        locked
            .refused
            .iter()
            .all(|(_, why)| *why == Refusal::InstanceHeld),
        "{locked:?}"
    );
    let mut held = locked.jobs[0].held();
    let other = NodeId::generate();
    for left in [3, 2, 1] {
        let outcome = store
            .complete(
                owner,
                &[completion(held.clone())],
                &Handoff::Take(terms(owner)),
            )
            .await
            .unwrap();
        assert_eq!(outcome.applied, [held.id]);
        assert_eq!(outcome.next.len(), 1, "{outcome:?}");
        held = outcome.next[0].held();
        let refused = store.lock(&terms(other), &hints).await.unwrap();
        assert!(refused.jobs.is_empty(), "{left} jobs are left: {refused:?}");
    }
}

#[tokio::test]
async fn a_released_job_is_unlocked_with_its_instance_and_is_hinted() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let owner = NodeId::generate();
    let locked = lock_one(&store, owner, &job).await;
    let ended = [Release::of_attempt(locked.held())];
    let outcome = store.release(owner, &ended).await.unwrap();
    assert_eq!(outcome.applied, [locked.job.id]);
    assert_eq!(outcome.ready.len(), 1);
    assert_eq!(outcome.ready[0].hint.instance.as_deref(), Some(&*instance));
    assert!(!rows.job(JOB, &instance).await.is_locked());
    assert_eq!(instance_lock(&rows, &instance).await, (None, false));
    // The fence has passed: the same outcome again changes nothing.
    lock_one(&store, NodeId::generate(), &job).await;
    let late = store.release(owner, &ended).await.unwrap();
    assert!(late.applied.is_empty() && late.left.is_empty(), "{late:?}");
    assert!(rows.job(JOB, &instance).await.is_locked());
}

#[tokio::test]
async fn a_lock_is_renewed_without_a_new_revision_and_a_lost_one_is_told() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let owner = NodeId::generate();
    let locked = lock_one(&store, owner, &job).await;
    let before = rows.job(JOB, &instance).await;
    let lease = Duration::from_secs(300);
    let renewed = store.renew(owner, lease, &[locked.held()]).await.unwrap();
    assert_eq!(renewed.renewed, [locked.job.id]);
    let after = rows.job(JOB, &instance).await;
    assert_eq!(after.revision, before.revision);
    assert!(after.expiry > before.expiry, "{before:?} {after:?}");
    let strange = LockToken {
        fence: jobwire_core::Fence::new(i64::MAX),
        ..locked.held()
    };
    let lost = store.renew(owner, lease, &[strange]).await.unwrap();
    assert!(lost.renewed.is_empty() && lost.busy.is_empty(), "{lost:?}");
}

#[tokio::test]
async fn a_row_that_the_engine_has_locked_is_busy_and_nobody_waits_for_it() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let mut tx = rows.0.begin().await.unwrap();
    sqlx::query("SELECT FROM act_ru_execution WHERE id_ = $1 FOR UPDATE")
        .bind(&instance)
        .execute(&mut *tx)
        .await
        .unwrap();
    let busy = store
        .lock(&terms(NodeId::generate()), &[hint(&job.id)])
        .await
        .unwrap();
    assert_eq!(busy.refused, [(job_id(&job.id), Refusal::Busy)]);
    tx.rollback().await.unwrap();
    let owner = NodeId::generate();
    let locked = lock_one(&store, owner, &job).await;
    let mut tx = rows.0.begin().await.unwrap();
    sqlx::query("SELECT FROM act_ru_execution WHERE id_ = $1 FOR UPDATE")
        .bind(&instance)
        .execute(&mut *tx)
        .await
        .unwrap();
    let left = settle(&store, owner, locked.held()).await;
    assert_eq!(left.left, [locked.job.id], "{left:?}");
    let renewed = store
        .renew(owner, Duration::from_secs(30), &[locked.held()])
        .await
        .unwrap();
    assert_eq!(
        renewed.renewed,
        [locked.job.id],
        "the job's own row is free"
    );
    tx.rollback().await.unwrap();
    let done = settle(&store, owner, locked.held()).await;
    assert_eq!(done.applied, [locked.job.id]);
}

#[tokio::test]
async fn a_lock_of_an_engine_node_is_respected() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let locks = "UPDATE act_ru_job SET lock_owner_ = 'engine', lock_exp_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";
    rows.change(locks, &job.id).await;
    let node = || terms(NodeId::generate());
    let refused = store.lock(&node(), &[hint(&job.id)]).await.unwrap();
    assert_eq!(refused.refused, [(job_id(&job.id), Refusal::Locked)]);
    let unlocks = "UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE id_ = $1";
    rows.change(unlocks, &job.id).await;
    let holds = "UPDATE act_ru_execution SET lock_owner_ = 'engine', lock_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";
    rows.change(holds, &instance).await;
    let refused = store.lock(&node(), &[hint(&job.id)]).await.unwrap();
    assert_eq!(refused.refused, [(job_id(&job.id), Refusal::InstanceHeld)]);
}

#[tokio::test]
async fn a_job_that_is_not_there_is_gone_and_a_forged_id_too() {
    let (_, store, _) = shared().await;
    let gone = JobId::generate();
    let forged = JobId::from_uuid(uuid::Uuid::nil());
    let mut fresh = Hint::new(JobId::generate());
    fresh.committed_at = Some(chrono::Utc::now());
    let hints = [Hint::new(gone), Hint::new(forged), fresh.clone()];
    let refused = store
        .lock(&terms(NodeId::generate()), &hints)
        .await
        .unwrap();
    for id in [gone, forged, fresh.id] {
        assert!(
            refused.refused.contains(&(id, Refusal::Gone)),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn the_rows_decide_what_became_of_an_executed_job() {
    let (engine, store, rows) = shared().await;
    let owner = NodeId::generate();
    // Executed: the instance has ended.
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let locked = lock_one(&store, owner, &job).await;
    assert_eq!(engine.execute(&job.id).await.status, 204);
    let outcome = settle(&store, owner, locked.held()).await;
    assert_eq!(outcome.applied, [locked.job.id]);
    assert!(outcome.ready.is_empty() && outcome.timer.is_none());
    // Failed: the engine has chosen the due date, and no lock is left.
    let instance = engine
        .start_instance("failing", &[("failures", "100")])
        .await;
    let job = rows.job(JOB, &instance).await;
    let locked = lock_one(&store, owner, &job).await;
    assert_eq!(engine.execute(&job.id).await.status, 500);
    let outcome = settle(&store, owner, locked.held()).await;
    assert_eq!(outcome.applied, [locked.job.id]);
    assert!(outcome.timer.is_some(), "{outcome:?}");
    assert_eq!(instance_lock(&rows, &instance).await, (None, false));
    let (view, _, stack) = store.get(locked.job.id).await.unwrap().unwrap();
    assert_eq!((view.state, view.retries), (JobState::Timer, 2));
    assert!(stack.is_some_and(|stack| stack.contains("Exception")));
    // Not executed, as after a conflict: ready again.
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let locked = lock_one(&store, owner, &job).await;
    let outcome = settle(&store, owner, locked.held()).await;
    assert_eq!(outcome.ready.len(), 1);
    let after = rows.job(JOB, &instance).await;
    assert!(!after.is_locked() && after.retries == Some(3), "{after:?}");
    // Suspended meanwhile.
    let locked = lock_one(&store, owner, &job).await;
    engine.suspend(&instance).await;
    let outcome = settle(&store, owner, locked.held()).await;
    assert_eq!(outcome.applied, [locked.job.id]);
    assert!(outcome.ready.is_empty());
    engine.activate(&instance).await;
}

#[tokio::test]
async fn an_operator_sees_finds_and_retries_a_job_of_the_engine() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("failing", &[("failures", "1")]).await;
    let job = rows.job(JOB, &instance).await;
    assert_eq!(engine.execute(&job.id).await.status, 500);
    let of_it = JobQuery::default().instance(&*instance);
    let found = store.find(&of_it).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].state, JobState::Timer);
    assert_eq!(store.count(&of_it).await.unwrap(), 1);
    store.retry(found[0].id, 1).await.unwrap();
    let found = store.find(&of_it).await.unwrap();
    assert_eq!(found[0].state, JobState::Executable);
    let refused = store.set_lane_rules(&[]).await.expect_err("refused");
    assert!(refused.to_string().contains("engine_lane"), "{refused}");
}
