//! The store that knows an engine by its endpoint alone, one operation at a time, on the engine
//! that the tests of the other store share. Each test has instances of its own.

use std::sync::Arc;

use jobwire_core::job::scope::{Group, Scope, Services};
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{BatchOutcome, Completion, Handoff, LockTerms, Release, Store};
use jobwire_core::{Hint, NodeId};
use jobwire_engines::{EndpointStore, EngineStore};
use jobwire_tests::EngineServer;

use super::endpoint::an_operator_retries_a_dead_letter_and_a_timer;
use super::flowable::{hint, job_id, over_endpoint, terms};
use super::store::{shared, shared_world};
use crate::engines::rows::{JOB, state};

/// The terms of a node that takes the jobs of one category.
fn of_category(category: &str) -> LockTerms {
    let mut scope = Scope::default();
    scope.categories = Some([category.to_owned()].into());
    LockTerms {
        scope: Arc::new(scope),
        ..terms(NodeId::generate())
    }
}

pub(super) async fn lock_one(
    store: &EndpointStore,
    terms: &LockTerms,
    hints: &[Hint],
) -> LockedJob {
    let locked = store.lock(terms, hints).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    locked.jobs.into_iter().next().unwrap()
}

async fn run(engine: &EngineServer, job: &LockedJob) {
    let id = jobwire_engines::id::engine_id(job.job.id).unwrap();
    assert_eq!(state(&engine.execute_in_held_instance(&id).await), "gone");
}

pub(super) async fn settle(
    store: &EndpointStore,
    terms: &LockTerms,
    held: LockToken,
) -> BatchOutcome {
    let done = Completion {
        held,
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    };
    let then = Handoff::Take(terms.clone());
    store.complete(terms.owner, &[done], &then).await.unwrap()
}

/// The hint of a sibling comes while another job of the instance is locked, and is refused. So the
/// end of that job hints the sibling again, if this node does not take it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sibling_that_another_node_takes_is_hinted_when_the_instance_is_free() {
    let (engine, _, rows) = shared().await;
    let store = EndpointStore::flowable(over_endpoint(engine)).unwrap();
    engine.deploy("category-siblings").await;
    let instance = engine.start_instance("category-siblings", &[]).await;
    let hints: Vec<Hint> = rows
        .ids(JOB, &instance)
        .await
        .iter()
        .map(|id| hint(id))
        .collect();
    assert_eq!(hints.len(), 2);
    let (red, blue) = (of_category("red"), of_category("blue"));
    let first = lock_one(&store, &red, &hints).await;
    let early = store.lock(&blue, &hints).await.unwrap();
    assert_eq!(early.jobs.len(), 0, "its hint is used up: {early:?}");
    run(engine, &first).await;
    let outcome = settle(&store, &red, first.held()).await;
    assert_eq!((outcome.applied.len(), outcome.next.len()), (1, 0));
    let [ready] = &*outcome.ready else {
        panic!("the sibling is ready: {outcome:?}");
    };
    // The other node takes it by this hint.
    let second = lock_one(&store, &blue, std::slice::from_ref(&ready.hint)).await;
    run(engine, &second).await;
    let outcome = settle(&store, &blue, second.held()).await;
    assert!(outcome.ready.is_empty() && outcome.next.is_empty());
    assert!(rows.ended(&instance).await);
}

/// A transaction of the engine has locked the row of the instance: the outcome is kept, and is
/// settled when the row is free, so the next job is handed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_whose_row_is_locked_is_handed_on_later() {
    let (engine, _, rows) = shared().await;
    let store = EndpointStore::flowable(over_endpoint(engine)).unwrap();
    let instance = engine.start_instance("chain", &[]).await;
    let job = rows.job(JOB, &instance).await;
    let node = terms(NodeId::generate());
    let locked = lock_one(&store, &node, &[hint(&job.id)]).await;
    run(engine, &locked).await;
    let mut user = rows.0.begin().await.unwrap();
    sqlx::query("SELECT id_ FROM act_ru_execution WHERE id_ = $1 FOR UPDATE")
        .bind(&instance)
        .execute(&mut *user)
        .await
        .unwrap();
    let outcome = settle(&store, &node, locked.held()).await;
    assert_eq!(outcome.left, [job_id(&job.id)], "{outcome:?}");
    user.rollback().await.unwrap();
    let outcome = settle(&store, &node, locked.held()).await;
    assert_eq!(outcome.next.len(), 1, "{outcome:?}");
    let ended = [Release::of_attempt(outcome.next[0].held())];
    store.release(node.owner, &ended).await.unwrap();
}

/// As by the operation for one job: each runs under its own lock, which the engine extends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_extends_the_locks_of_its_jobs_and_runs_none_under_another_lock() {
    let (engine, _, rows) = shared().await;
    let store = EndpointStore::flowable(over_endpoint(engine)).unwrap();
    let held = engine.start_instance("held", &[("failures", "0")]).await;
    let other = engine.start_instance("one", &[]).await;
    let node = terms(NodeId::generate());
    let mut locks = Vec::new();
    for instance in [&held, &other] {
        let job = rows.job(JOB, instance).await;
        let lock = lock_one(&store, &node, &[hint(&job.id)]).await;
        locks.push((job.id, lock));
    }
    let before = rows.job(JOB, &held).await.expiry;
    let [(held_id, held_lock), (other_id, other_lock)] = &*locks else {
        panic!("two jobs are locked");
    };
    // This node does not have the second lock.
    let jobs = [
        (&**held_id, held_lock.fence.number()),
        (&**other_id, other_lock.fence.number() + 1_000_000),
    ];
    let name = node.owner.to_string();
    let (answer, ()) = tokio::join!(engine.run_list(&name, &jobs), async {
        rows.until_started(&held, 1).await;
        assert!(rows.job(JOB, &held).await.expiry > before);
        engine.release(&held).await;
    });
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (id, state) in [(held_id, "gone"), (other_id, "not held")] {
        let line = format!("{{\"job\":\"{id}\",\"status\":200,\"state\":\"{state}\"");
        assert!(answer.body.contains(&line), "{}", answer.body);
    }
    assert!(rows.effects(&other).await.is_empty());
    let outcome = settle(&store, &node, held_lock.held()).await;
    assert_eq!(outcome.applied, [held_lock.job.id]);
    let ended = [Release::of_attempt(other_lock.held())];
    store.release(node.owner, &ended).await.unwrap();
}

/// A node beside the database requests the same operation of the same endpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_of_flowable_is_retried_over_the_endpoint_with_its_database() {
    let (engine, _, rows) = shared().await;
    let database = &shared_world().await.database;
    let store = EngineStore::flowable(database, over_endpoint(engine)).await;
    an_operator_retries_a_dead_letter_and_a_timer((engine, store.unwrap(), rows)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_no_node_takes_are_counted_by_type() {
    let (engine, _, rows) = shared().await;
    let store = EndpointStore::flowable(over_endpoint(engine)).unwrap();
    engine.deploy("category-siblings").await;
    let instance = engine.start_instance("category-siblings", &[]).await;
    assert_eq!(rows.ids(JOB, &instance).await.len(), 2);
    let types: Vec<String> = store
        .types()
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    let served = |category: &str| {
        let mut scope = Scope::default();
        scope.categories = Some([category.to_owned()].into());
        Services::of(vec![Group {
            types: types.clone(),
            scope,
        }])
    };
    let unserved = store.unserved_types(&served("green"), 10).await.unwrap();
    // Other tests have such jobs, too.
    assert!(
        unserved
            .iter()
            .any(|found| found.job_type == "async-continuation" && found.jobs >= 2),
        "{unserved:?}"
    );
    let all = Services::from(types.clone());
    assert!(store.unserved_types(&all, 10).await.unwrap().is_empty());
}
