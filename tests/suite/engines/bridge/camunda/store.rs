//! The store over Camunda's table. All tests share one engine, and each has instances of its own.

use std::time::Duration;

use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{BatchOutcome, Completion, Handoff, Refusal, Store};
use jobwire_core::{Hint, JobState, NodeId};
use jobwire_engines::EngineStore;
use jobwire_tests::EngineServer;

use super::{JOB, incidents, of, shared};
use crate::engines::bridge::flowable::{hint, job_id, terms};
use crate::engines::rows::{JobRow, Rows};

fn completion(held: LockToken) -> Completion {
    Completion {
        held,
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    }
}

pub(super) async fn lock_one(store: &EngineStore, owner: NodeId, job: &JobRow) -> LockedJob {
    let locked = store.lock(&terms(owner), &[hint(&job.id)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    locked.jobs.into_iter().next().unwrap()
}

pub(super) async fn settle(store: &EngineStore, owner: NodeId, held: LockToken) -> BatchOutcome {
    let done = completion(held);
    let settled = store.complete(owner, &[done], &Handoff::Hint).await;
    settled.unwrap()
}

async fn refusal(store: &EngineStore, job: &JobRow) -> Refusal {
    let refused = store
        .lock(&terms(NodeId::generate()), &[hint(&job.id)])
        .await
        .unwrap();
    assert!(refused.jobs.is_empty(), "{refused:?}");
    assert_eq!(refused.refused.len(), 1, "{refused:?}");
    assert_eq!(refused.refused[0].0, job_id(&job.id));
    refused.refused[0].1
}

/// Runs a job that fails. A failing expression is a 404, and a failing class a 500.
async fn fail(engine: &EngineServer, job: &JobRow) {
    let answer = engine.execute(&job.id).await;
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("as wished"), "{}", answer.body);
    assert!(
        answer.body.contains("InvalidRequestException"),
        "{}",
        answer.body
    );
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_hinted_job_of_camunda_is_locked_once_and_a_renewal_leaves_its_row_alone() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("one", &[]).await;
    let before = rows.job(JOB, &instance).await;
    let owner = NodeId::generate();
    let locked = lock_one(&store, owner, &before).await;
    assert_eq!(locked.job.process_instance.as_deref(), Some(&*instance));
    assert_eq!(locked.job.job_type, "async-continuation");
    assert_eq!(locked.job.retries, 3);
    assert!(locked.job.deployment.is_some());
    let after = rows.job(JOB, &instance).await;
    assert_eq!(after.revision, before.revision + 1);
    let text = format!("jobwire:{owner}:{}", locked.fence);
    assert_eq!(after.owner.as_deref(), Some(&*text));
    assert_eq!(refusal(&store, &before).await, Refusal::Locked);
    let renewed = store
        .renew(owner, Duration::from_secs(3), &[locked.held()])
        .await
        .unwrap();
    assert_eq!(renewed.renewed, [locked.job.id]);
    assert_eq!(rows.job(JOB, &instance).await, after);
    let strange = LockToken {
        fence: jobwire_core::Fence::new(i64::MAX),
        ..locked.held()
    };
    let lost = store
        .renew(owner, Duration::from_secs(3), &[strange])
        .await
        .unwrap();
    assert!(lost.renewed.is_empty() && lost.busy.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn of_the_jobs_of_an_instance_one_is_locked_however_many_nodes_try_at_once() {
    let (engine, store, rows) = shared().await;
    for _ in 0..20 {
        let instance = engine.start_instance("fork", &[]).await;
        let jobs = rows.jobs(JOB, &instance).await;
        assert_eq!(jobs.len(), 4, "two of them are not exclusive");
        let mut tries = tokio::task::JoinSet::new();
        for job in &jobs {
            let (store, hint) = (store.clone(), hint(&job.id));
            tries.spawn(async move {
                let owner = NodeId::generate();
                store.lock(&terms(owner), &[hint]).await.unwrap().jobs.len()
            });
        }
        let locked: usize = tries.join_all().await.into_iter().sum();
        // Each may have been busy for the others.
        assert!(locked <= 1, "{locked} jobs of an instance were locked");
        let in_rows = rows.jobs(JOB, &instance).await;
        let in_rows = in_rows.iter().filter(|job| job.is_locked()).count();
        assert_eq!(in_rows, locked);
    }
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn the_end_of_a_job_of_camunda_hands_its_instance_over() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("fork", &[]).await;
    let jobs = rows.jobs(JOB, &instance).await;
    let hints: Vec<Hint> = jobs.iter().map(|job| hint(&job.id)).collect();
    let owner = NodeId::generate();
    let locked = store.lock(&terms(owner), &hints).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    assert!(
        locked
            .refused
            .iter()
            .all(|(_, why)| *why == Refusal::InstanceHeld),
        "{locked:?}"
    );
    let mut held = locked.jobs[0].held();
    for left in [3, 2, 1, 1] {
        let id = jobwire_engines::id::engine_id(held.id).unwrap();
        assert_eq!(engine.execute(&id).await.status, 204);
        let outcome = store
            .complete(owner, &[completion(held)], &Handoff::Take(terms(owner)))
            .await
            .unwrap();
        assert_eq!(outcome.next.len(), 1, "{outcome:?}");
        held = outcome.next[0].held();
        let jobs = rows.jobs(JOB, &instance).await;
        assert_eq!(jobs.len(), left);
        assert_eq!(jobs.iter().filter(|job| job.is_locked()).count(), 1);
    }
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn what_the_rest_interface_ignores_the_lock_statement_refuses() {
    let (engine, store, rows) = shared().await;
    // Not due.
    let instance = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let timer = rows.job(JOB, &instance).await;
    assert_eq!(refusal(&store, &timer).await, Refusal::Gone);
    // Suspended.
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    engine.suspend(&instance).await;
    assert_eq!(refusal(&store, &job).await, Refusal::Suspended);
    engine.activate(&instance).await;
    // Locked by an engine node.
    let locks = "UPDATE act_ru_job SET lock_owner_ = 'engine', lock_exp_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";
    rows.change(locks, &job.id).await;
    assert_eq!(refusal(&store, &job).await, Refusal::Locked);
    // Without attempts.
    let instance = engine
        .start_instance("failing", &[("failures", "100")])
        .await;
    let job = rows.job(JOB, &instance).await;
    for _ in 0..3 {
        fail(engine, &job).await;
    }
    assert_eq!(refusal(&store, &job).await, Refusal::Gone);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn the_row_decides_what_became_of_an_executed_job_of_camunda() {
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
    // Failed three times: after the third there is an incident, and no hint.
    let instance = engine
        .start_instance("failing", &[("failures", "100")])
        .await;
    let job = rows.job(JOB, &instance).await;
    for left in [2, 1, 0] {
        let locked = lock_one(&store, owner, &job).await;
        fail(engine, &job).await;
        let outcome = settle(&store, owner, locked.held()).await;
        assert_eq!(outcome.applied, [locked.job.id]);
        assert_eq!(outcome.ready.len(), usize::from(left > 0), "{outcome:?}");
        let row = rows.job(JOB, &instance).await;
        assert!(!row.is_locked() && row.retries == Some(left), "{row:?}");
    }
    assert_eq!(incidents(&rows, &instance).await, 1);
    let (view, _, stack) = store.get(job_id(&job.id)).await.unwrap().unwrap();
    assert_eq!((view.state, view.retries), (JobState::DeadLetter, 0));
    assert!(stack.is_some_and(|stack| stack.contains("Exception")));
    // Not executed, as after a conflict: ready again.
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let locked = lock_one(&store, owner, &job).await;
    let outcome = settle(&store, owner, locked.held()).await;
    assert_eq!(outcome.ready.len(), 1);
    let after = rows.job(JOB, &instance).await;
    assert!(!after.is_locked() && after.retries == Some(3), "{after:?}");
    // Suspended meanwhile: no hint.
    let locked = lock_one(&store, owner, &job).await;
    engine.suspend(&instance).await;
    let outcome = settle(&store, owner, locked.held()).await;
    assert_eq!(outcome.applied, [locked.job.id]);
    assert!(outcome.ready.is_empty(), "{outcome:?}");
    assert!(!rows.job(JOB, &instance).await.is_locked());
    engine.activate(&instance).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn an_answer_404_is_the_engines_word_or_shows_a_wrong_path() {
    let (engine, _, rows) = shared().await;
    // The bridge tells them apart by this name, and looks at the row in the first case.
    let gone = engine.execute("0198c0de-7777-7000-8000-000000000001").await;
    assert_eq!(gone.status, 404);
    assert!(
        gone.body.contains("InvalidRequestException"),
        "{}",
        gone.body
    );
    let instance = engine.start_instance("one", &[]).await;
    let job = rows.job(JOB, &instance).await;
    engine.suspend(&instance).await;
    let suspended = engine.execute(&job.id).await;
    assert_eq!(suspended.status, 404);
    assert!(
        suspended.body.contains("InvalidRequestException"),
        "{}",
        suspended.body
    );
    assert_eq!(rows.job(JOB, &instance).await.retries, Some(2));
    let wrong = engine.rest("POST", "/jobs/1/execute", "{}").await;
    assert_eq!(wrong.status, 404);
    assert!(
        !wrong.body.contains("InvalidRequestException"),
        "{}",
        wrong.body
    );
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn an_operator_finds_and_retries_a_dead_letter_and_a_timer_of_camunda() {
    let (engine, store, rows) = shared().await;
    dead_letters_and_timers_are_retried(engine, &store, &rows).await;
}

/// The engine makes the changes, over its REST interface or by its endpoint.
pub(super) async fn dead_letters_and_timers_are_retried(
    engine: &EngineServer,
    store: &EngineStore,
    rows: &Rows,
) {
    let instance = engine
        .start_instance("failing", &[("failures", "100")])
        .await;
    let job = rows.job(JOB, &instance).await;
    for _ in 0..3 {
        fail(engine, &job).await;
    }
    let found = store.find(&of(&instance)).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].state, JobState::DeadLetter);
    store.retry(found[0].id, 2).await.unwrap();
    let found = store.find(&of(&instance)).await.unwrap();
    assert_eq!(
        (found[0].state, found[0].retries),
        (JobState::Executable, 2)
    );
    assert_eq!(incidents(rows, &instance).await, 0);
    let instance = engine.start_instance("timer", &[("wait", "PT1H")]).await;
    let found = store.find(&of(&instance)).await.unwrap();
    assert_eq!(found[0].state, JobState::Timer);
    store.retry(found[0].id, 1).await.unwrap();
    let found = store.find(&of(&instance)).await.unwrap();
    assert_eq!(found[0].state, JobState::Executable);
    let instance = engine.start_instance("one", &[]).await;
    let found = store.find(&of(&instance)).await.unwrap();
    store.delete(found[0].id).await.unwrap();
    assert_eq!(store.count(&of(&instance)).await.unwrap(), 0);
}
