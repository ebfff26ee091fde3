//! Rule 8: the types and the scope of a node change while it runs, and other nodes learn of it.

use std::collections::BTreeSet;
use std::time::Duration;

use jobwire_core::job::scope::Scope;
use jobwire_core::node::Registry;
use jobwire_core::store::SUSPENSION_TYPE;
use jobwire_core::{
    BULK_TYPE, HandlerResult, NewJob, Node, NodeOptions, Outcome, Running, Store, StoreError,
};
use jobwire_tests::eventually;
use jobwire_tests::shared::{self, Space};

use super::forwarded::{PARTITIONS, World};
use super::world::{SOON, hinted_again};
use crate::world::{Notes, connect};

/// Returns a handler that notes the job's type and its tenant, category or deployment.
fn noting(
    notes: &Notes,
) -> impl Fn(Running<()>) -> std::future::Ready<HandlerResult<Outcome>> + Send + Sync + 'static {
    let notes = notes.clone();
    move |job| {
        let of = &job.job;
        let name = of.tenant.as_ref().or(of.category.as_ref());
        let name = name.or(of.deployment.as_ref()).map_or("none", |name| name);
        notes.add(format!("{} of {name}", of.job_type));
        std::future::ready(Ok(Outcome::Done))
    }
}

impl World {
    /// Starts a node of this scope that runs `mail`.
    async fn mail_node(&self, scope: Scope, notes: &Notes) -> Node {
        let mut options = NodeOptions::default();
        // No hint counts as lost within a test.
        options.suspect_after = Duration::from_secs(600);
        options.sweep_interval = Duration::from_secs(2);
        options.shutdown_timeout = Duration::from_secs(5);
        options.scope = scope;
        Node::builder(self.store.clone(), connect(&self.space, PARTITIONS).await)
            .handler("mail", noting(notes))
            .options(options)
            .start()
            .await
            .unwrap()
    }

    /// Waits until every node that started has read the rows of the others.
    async fn until_known(&self) {
        // A node reads a row a tenth of a second after the beat that names it; beats come within
        // two seconds.
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

async fn a_type_comes_and_goes(space: Space) {
    let world = World::new(space).await;
    let [one, two] = [(); 2].map(|()| Notes::default());
    let first = world.mail_node(Scope::default(), &one).await;
    let second = world.mail_node(Scope::default(), &two).await;
    let registry: Registry = second.registry();
    registry.register("fax", noting(&two)).unwrap();
    assert_eq!(registry.types(), ["fax", "mail"]);
    world.until_known().await;
    world.create((0..200).map(|_| NewJob::of("fax", &()))).await;
    world.until_left(0).await;
    assert_eq!(
        hinted_again(&world.store).await,
        0,
        "the sweeper hinted jobs again"
    );
    assert!(one.all().iter().all(|note| !note.starts_with("fax")));
    let nodes = world.store.nodes().await.unwrap();
    let row = nodes.iter().find(|row| row.membership.id == second.id());
    assert_eq!(
        row.unwrap().membership.types,
        ["fax", BULK_TYPE, SUSPENSION_TYPE, "mail"]
    );

    // The type is removed: its jobs wait, and those of the other type run on both nodes.
    assert!(registry.unregister("fax") && !registry.unregister("fax"));
    world.create(std::iter::once(NewJob::of("fax", &()))).await;
    world.create((0..50).map(|_| NewJob::of("mail", &()))).await;
    world.until_left(1).await;
    eventually("the row to show that", SOON, async || {
        let nodes = world.store.nodes().await.unwrap();
        let all = |row: &jobwire_core::store::NodeView| {
            row.membership.types == [BULK_TYPE, SUSPENSION_TYPE, "mail"]
        };
        nodes.iter().all(all).then_some(())
    })
    .await;
    first.stop().await;
    second.stop().await;
    assert!(
        world.store.nodes().await.unwrap().is_empty(),
        "their rows are gone"
    );
}

#[tokio::test]
async fn a_type_comes_and_goes_on_rabbitmq() {
    a_type_comes_and_goes(shared::rabbitmq().await.space().await).await;
}

#[tokio::test]
async fn a_type_comes_and_goes_on_kafka() {
    a_type_comes_and_goes(shared::kafka().await.space()).await;
}

/// A part of the scope of a node.
struct Part {
    scope: fn(Scope, &str) -> Scope,
    job: fn(NewJob, &str) -> NewJob,
    register: fn(&Registry, &str) -> Result<(), StoreError>,
    unregister: fn(&Registry, &str) -> bool,
    take_all: fn(&Registry),
    names: fn(&Registry) -> Option<BTreeSet<String>>,
}

/// Two nodes of one name each: the right one runs a job, even if the other receives the hint.
async fn each_has_its_node(part: Part) {
    let world = World::new(shared::rabbitmq().await.space().await).await;
    let [acme, globex] = [(); 2].map(|()| Notes::default());
    let scope = |name: &str| (part.scope)(Scope::default(), name);
    let one = world.mail_node(scope("acme"), &acme).await;
    let two = world.mail_node(scope("globex"), &globex).await;
    world.until_known().await;
    let mail = || NewJob::of("mail", &());
    let of = |n: usize| match n % 3 {
        0 => (part.job)(mail(), "acme"),
        1 => (part.job)(mail(), "globex"),
        _ => mail(),
    };
    world.create((0..300).map(of)).await;
    world.until_left(0).await;
    assert_eq!(
        hinted_again(&world.store).await,
        0,
        "the sweeper hinted jobs again"
    );
    let count = |notes: &Notes, what: &str| notes.all().iter().filter(|note| *note == what).count();
    assert_eq!(count(&acme, "mail of acme"), 100);
    assert_eq!(count(&globex, "mail of globex"), 100);
    assert_eq!(
        count(&acme, "mail of none") + count(&globex, "mail of none"),
        100
    );
    // Jobs of a name that neither node takes wait until one takes it.
    let unserved = (0..10).map(|_| (part.job)(mail(), "initech"));
    world.create(unserved).await;
    world.until_left(10).await;
    let registry = one.registry();
    (part.register)(&registry, "initech").unwrap();
    let both: BTreeSet<String> = ["acme", "initech"].map(str::to_owned).into();
    assert_eq!((part.names)(&registry), Some(both));
    assert!((part.unregister)(&registry, "acme") && !(part.unregister)(&registry, "acme"));
    (part.take_all)(&registry);
    let all = (
        registry.tenants(),
        registry.categories(),
        registry.deployments(),
    );
    assert_eq!(all, (None, None, None));
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn each_tenant_has_its_node() {
    each_has_its_node(Part {
        scope: |scope, name| scope.tenants([name]),
        job: |job, name| job.tenant(name),
        register: |registry, name| registry.register_tenant(name),
        unregister: Registry::unregister_tenant,
        take_all: Registry::take_all_tenants,
        names: Registry::tenants,
    })
    .await;
}

#[tokio::test]
async fn each_category_has_its_node() {
    each_has_its_node(Part {
        scope: |scope, name| scope.categories([name]),
        job: |job, name| job.category(name),
        register: |registry, name| registry.register_category(name),
        unregister: Registry::unregister_category,
        take_all: Registry::take_all_categories,
        names: Registry::categories,
    })
    .await;
}

#[tokio::test]
async fn each_deployment_has_its_node() {
    each_has_its_node(Part {
        scope: |scope, name| scope.deployments([name]),
        job: |job, name| job.deployment(name),
        register: |registry, name| registry.register_deployment(name),
        unregister: Registry::unregister_deployment,
        take_all: Registry::take_all_deployments,
        names: Registry::deployments,
    })
    .await;
}
