//! A node refuses hints by itself for the instances that its own jobs hold, and forgets no sibling.
//! No sweeps run here.

use std::sync::Arc;

use jobwire_core::{Hint, Lane, NewJob, Node, PgStore, Transport};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::sync::Semaphore;

use super::world::{
    SOON, counted, create, refused, shut, stop_at_commit, unswept, until_led, until_waiting, waits,
};
use crate::world::{Notes, World};

/// A node that runs the first job of an instance.
struct Scene {
    world: World,
    node: Node,
    notes: Notes,
    /// Each permit lets one job end.
    gate: Arc<Semaphore>,
    scraped: PrometheusHandle,
}

impl Scene {
    async fn new(scraped: PrometheusHandle) -> Self {
        let world = World::new().await;
        let notes = Notes::default();
        let gate = Arc::new(Semaphore::new(0));
        let node = world
            .node()
            .options(unswept())
            .handler("work", waits(&notes, &gate))
            .start()
            .await
            .unwrap();
        until_led(&world.store).await;
        let scene = Self {
            world,
            node,
            notes,
            gate,
            scraped,
        };
        scene.hint(&scene.create().await).await;
        scene.notes.until_within(1, SOON).await;
        scene
    }

    fn store(&self) -> &PgStore {
        &self.world.store
    }

    async fn create(&self) -> Hint {
        create(self.store(), NewJob::of("work", &()).instance("order")).await
    }

    async fn hint(&self, hint: &Hint) {
        let publisher = self.world.transport.publisher();
        let lane = Lane::default();
        publisher.publish(&lane, vec![hint.clone()]).await.unwrap();
    }

    /// Creates a sibling and waits until its hint is refused without a question to the database.
    async fn sibling_is_refused(&self) {
        let (locks, refusals) = (self.locks(), refused(&self.scraped, "instance-held"));
        self.hint(&self.create().await).await;
        eventually("the hint to be refused", SOON, async || {
            (refused(&self.scraped, "instance-held") > refusals).then_some(())
        })
        .await;
        assert_eq!(self.locks(), locks, "the database was asked");
    }

    /// Returns the number of lock statements so far.
    fn locks(&self) -> u64 {
        counted(
            &self.scraped,
            r#"jobwire_statement_seconds_count{statement="lock"}"#,
        )
    }

    /// Lets both jobs end, one after the other.
    async fn both_run(self) {
        self.gate.add_permits(2);
        self.world.until_empty().await;
        assert_eq!(self.notes.all().len(), 2);
        self.node.stop().await;
    }
}

/// On a current-thread runtime every task of the node records here.
macro_rules! recorded {
    ($scene:ident) => {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _here = metrics::set_default_local_recorder(&recorder);
        let $scene = Scene::new(recorder.handle()).await;
    };
}

/// The completion of the holder sees the sibling.
#[tokio::test]
async fn a_sibling_that_comes_while_the_holder_runs_follows_it() {
    recorded!(scene);
    scene.sibling_is_refused().await;
    scene.both_run().await;
}

/// The holder's completion is in the middle of its COMMIT, and looked for a sibling before there
/// was one.
#[tokio::test]
async fn a_sibling_that_comes_while_the_holder_ends_is_not_forgotten() {
    recorded!(scene);
    stop_at_commit(scene.store(), "DELETE ON jobwire.job_lease").await;
    let shut = shut(scene.store()).await;
    scene.gate.add_permits(1);
    until_waiting(scene.store(), 1).await;
    scene.sibling_is_refused().await;
    shut.commit().await.unwrap();
    scene.notes.until_within(2, SOON).await;
    scene.both_run().await;
}

/// The job was taken over and ended elsewhere, as after a jump of the database's clock, and its
/// holder does not know that yet.
#[tokio::test]
async fn a_sibling_that_was_refused_under_a_lost_lock_is_not_forgotten() {
    recorded!(scene);
    let elsewhere =
        "DELETE FROM jobwire.job_lease; DELETE FROM jobwire.job; DELETE FROM jobwire.instance_lock";
    sqlx::raw_sql(elsewhere)
        .execute(scene.store().pool())
        .await
        .unwrap();
    scene.sibling_is_refused().await;
    scene.both_run().await;
}

/// A completion that was sent earlier locks the next job, and its answer comes after the node has
/// begun to stop.
#[tokio::test]
async fn a_sibling_that_is_taken_over_while_the_node_stops_is_given_back() {
    recorded!(scene);
    stop_at_commit(scene.store(), "DELETE ON jobwire.job_lease").await;
    let shut = shut(scene.store()).await;
    scene.create().await;
    scene.gate.add_permits(1);
    until_waiting(scene.store(), 1).await;
    let Scene {
        world, node, notes, ..
    } = scene;
    let stopping = tokio::spawn(node.stop());
    // Lets the stop begin before the COMMIT continues.
    tokio::task::yield_now().await;
    shut.commit().await.unwrap();
    stopping.await.unwrap();
    assert_eq!(
        world.count("SELECT count(*) FROM jobwire.job_lease").await,
        0
    );
    assert_eq!(world.count("SELECT count(*) FROM jobwire.job").await, 1);
    assert_eq!(notes.all().len(), 1, "the sibling was not started");
}
