//! Jobs of one instance that need different nodes: none waits behind an elder one that nobody serves.

use std::collections::BTreeSet;
use std::sync::Arc;

use jobwire_core::job::scope::{Group, Scope, Services};
use jobwire_core::store::{OrphanQuery, Release, Store};
use jobwire_core::{JobId, NodeId};
use jobwire_engines::EngineStore;
use sqlx::types::chrono::Utc;

use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::{hint, job_id, terms};

const NO_ENGINE: &str = "http://127.0.0.1:1/jobwire";
const CATEGORY: &str = "UPDATE act_ru_job SET category_ = $2 WHERE id_ = $1";

/// Creates an instance with a job of each of these categories, in the order of their creation.
async fn instance<const N: usize>(bare: &Bare, categories: [&str; N]) -> [JobId; N] {
    let (_, jobs) = bare.instance(N).await;
    for (job, category) in jobs.iter().zip(categories) {
        let set = sqlx::query(CATEGORY).bind(job).bind(category);
        set.execute(&bare.rows.0).await.unwrap();
    }
    std::array::from_fn(|n| job_id(&jobs[n]))
}

/// A fleet whose nodes take the jobs of these categories.
fn served<const N: usize>(categories: [&str; N]) -> Services {
    Services::of(vec![Group {
        types: vec!["async-continuation".to_owned()],
        scope: Scope::default().categories(categories),
    }])
}

async fn orphans(store: &EngineStore, services: Services) -> BTreeSet<JobId> {
    let lane = store.options().lane.clone();
    let query = OrphanQuery::new(lane, services, Utc::now(), 100);
    let found = store.orphans(&query).await.unwrap();
    found.ready.iter().map(|ready| ready.hint.id).collect()
}

#[tokio::test]
async fn a_job_behind_an_elder_one_that_nobody_serves_is_found_by_the_sweeper() {
    let bare = Bare::of(Engine::Flowable).await;
    let store = bare.store(bare.options(NO_ENGINE)).await;
    let [red, blue] = instance(&bare, ["red", "blue"]).await;
    assert_eq!(orphans(&store, served(["blue"])).await, [blue].into());
    for services in [served(["red", "blue"]), Services::default()] {
        assert_eq!(orphans(&store, services).await, [red].into());
    }
    let lanes = [store.options().lane.clone()];
    let counted = store.sweepable(&served(["blue"]), &lanes).await.unwrap();
    let classes = (counted.ready, counted.instance_held, counted.unserved);
    assert_eq!(classes, (1, 0, 1), "{counted:?}");
    let counted = store.sweepable(&Services::default(), &lanes).await.unwrap();
    let classes = (counted.ready, counted.instance_held, counted.unserved);
    assert_eq!(classes, (1, 1, 0), "{counted:?}");
    store.close().await;
}

#[tokio::test]
async fn the_end_of_a_job_hints_the_first_job_of_each_category() {
    let bare = Bare::of(Engine::Flowable).await;
    let store = bare.store(bare.options(NO_ENGINE)).await;
    let [green, red, _, blue] = instance(&bare, ["green", "red", "red", "blue"]).await;
    let mut terms = terms(NodeId::generate());
    terms.scope = Arc::new(Scope::default().categories(["green"]));
    let locked = store.lock(&terms, &[hint(&green.to_string())]).await;
    let locked = locked.unwrap().jobs;
    assert_eq!(locked.len(), 1, "{locked:?}");
    bare.end(&green.to_string()).await;
    let held = [Release::of_attempt(locked[0].held())];
    let outcome = store.release(terms.owner, &held).await.unwrap();
    let hinted: BTreeSet<JobId> = outcome.ready.iter().map(|ready| ready.hint.id).collect();
    assert_eq!(hinted, [red, blue].into());
    store.close().await;
}
