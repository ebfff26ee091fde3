//! The categories and deployments whose jobs a running node takes.

use std::collections::BTreeSet;
use std::time::Duration;

use jobwire_core::job::scope::Scope;
use jobwire_core::{JobId, JobState, NewJob, NodeOptions};
use jobwire_harness::world::quick;

use super::bed::{Bed, noting};
use super::world::{SqlBench, World};

/// Options of a node of this scope, which soon finds a job that it did not take before.
fn of_scope(scope: Scope) -> NodeOptions {
    let soon = Duration::from_millis(300);
    let mut options = quick().scope(scope);
    options.sweep_interval = soon;
    options.suspect_after = soon;
    options.hook.max_age = soon;
    options
}

fn of_category(name: &str) -> NewJob {
    NewJob::of("note", &format!("category {name}")).category(name)
}

fn of_deployment(name: &str) -> NewJob {
    NewJob::of("note", &format!("deployment {name}")).deployment(name)
}

/// A job of the category of this name, and one of the deployment.
fn both(name: &str) -> Vec<NewJob> {
    vec![of_category(name), of_deployment(name)]
}

/// Asserts that these jobs wait: no node holds them, and no attempt is spent.
async fn are_waiting<S: SqlBench>(w: &World<S>, ids: &[JobId]) {
    for id in ids {
        let view = w.view(*id).await.unwrap();
        assert_eq!(
            (view.state, view.retries, view.lock_owner),
            (JobState::Executable, 3, None)
        );
    }
}

/// Returns the notes, sorted, and forgets them.
fn noted<S: SqlBench>(bed: &Bed<S>) -> Vec<String> {
    let mut all = bed.notes.all();
    bed.notes.clear();
    all.sort_unstable();
    all
}

pub(super) async fn a_node_takes_the_categories_and_deployments_that_are_registered<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let blue = Scope::default().categories(["blue"]).deployments(["blue"]);
    let node = bed.node(of_scope(blue)).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    let registry = node.registry();
    let foreign = bed.create(both("green")).await;
    bed.create(both("blue")).await;
    // By the end of the last one, the hints before it were tried.
    bed.create(vec![NewJob::of("note", "none")]).await;
    bed.until_left(2).await;
    assert_eq!(noted(&bed), ["category blue", "deployment blue", "none"]);
    are_waiting(w, &foreign).await;

    registry.register_category("green").unwrap();
    registry.register_deployment("green").unwrap();
    let names: BTreeSet<String> = ["blue", "green"].map(str::to_owned).into();
    assert_eq!(registry.categories(), Some(names.clone()));
    assert_eq!(registry.deployments(), Some(names));
    bed.until_left(0).await;
    assert_eq!(noted(&bed), ["category green", "deployment green"]);

    // Without the last name, only jobs that name nothing are taken.
    for name in ["green", "blue"] {
        assert!(registry.unregister_category(name) && !registry.unregister_category(name));
        assert!(registry.unregister_deployment(name) && !registry.unregister_deployment(name));
    }
    let mut foreign = bed.create(both("green")).await;
    foreign.extend(bed.create(both("blue")).await);
    bed.create(vec![NewJob::of("note", "none")]).await;
    bed.until_left(4).await;
    assert_eq!(noted(&bed), ["none"]);
    are_waiting(w, &foreign).await;

    registry.take_all_categories();
    registry.take_all_deployments();
    assert_eq!(
        (registry.categories(), registry.deployments()),
        (None, None)
    );
    bed.until_left(0).await;
    assert_eq!(noted(&bed).len(), 4);
    node.stop().await;
}
