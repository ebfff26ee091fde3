//! Rule 6: a node asks the database for the leases of a lost answer. No sweeps run here, and no
//! lease ends.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::{Operated, Store};
use jobwire_core::{NewJob, Node};
use jobwire_tests::{Direction, Flow, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::Semaphore;

use super::world::{
    SOON, counted, create, shut, stop_at_commit, unswept, until_led, until_waiting, waits,
};
use crate::world::{Notes, World, patient, proxy_before};

/// The completion of the first job has locked the next sibling for its node, and the answer to its
/// COMMIT is lost. The sibling still starts, under the same lock, and no strike is counted.
#[tokio::test]
async fn a_sibling_that_a_lost_answer_has_locked_is_adopted() {
    answer_is_lost(false).await;
}

/// An operator cancels the sibling before the node finds its lease. It does not start.
#[tokio::test]
async fn a_cancelled_sibling_that_a_lost_answer_has_locked_is_released() {
    answer_is_lost(true).await;
}

async fn answer_is_lost(cancelled: bool) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let (notes, gate) = (Notes::default(), Arc::new(Semaphore::new(0)));
    let mut options = unswept();
    // The node looks for lost leases every twelfth of this.
    options.lease = Duration::from_secs(60);
    let node = Node::builder(patient(&proxy.url(&world.url)).await, world.transport())
        .options(options)
        .handler("work", waits(&notes, &gate))
        .start()
        .await
        .unwrap();
    until_led(&world.store).await;
    let sibling = || NewJob::of("work", &()).instance("order");
    let first = create(&world.store, sibling()).await;
    let second = create(&world.store, sibling()).await;
    let publisher = jobwire_core::Transport::publisher(&world.transport);
    publisher
        .publish(&jobwire_core::Lane::default(), vec![first])
        .await
        .unwrap();
    notes.until(1).await;

    stop_at_commit(&world.store, "jobwire.job_lease").await;
    let shut = shut(&world.store).await;
    gate.add_permits(1);
    until_waiting(&world.store, 1).await;
    proxy.set(Direction::ToClient, Flow::Stall);
    tokio::task::yield_now().await;
    shut.commit().await.unwrap();
    eventually("the completion to be committed", SOON, async || {
        (world.count("SELECT count(*) FROM jobwire.job").await == 1).then_some(())
    })
    .await;
    let held = "SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL AND strikes = 0";
    assert_eq!(world.count(held).await, 1, "the sibling is locked");
    assert_eq!(notes.all().len(), 1, "the node does not know it");
    if cancelled {
        let (told, _) = world.store.cancel(second.id).await.unwrap();
        assert_eq!(told, Operated::Running);
    }
    proxy.cut();
    // The connections must be reset before the answer can pass: all tasks run on this thread.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    proxy.set_both(Flow::Pass);

    if cancelled {
        world.until_empty().await;
        let released = r#"jobwire_leases_reconciled_total{how="released"}"#;
        assert_eq!(counted(&recorder.handle(), released), 1);
        assert_eq!(notes.all().len(), 1, "the cancelled job did not start");
        return node.stop().await;
    }
    notes.until_within(2, SOON).await;
    assert_eq!(world.count(held).await, 1, "no strike");
    let adopted = r#"jobwire_leases_reconciled_total{how="adopted"}"#;
    assert_eq!(counted(&recorder.handle(), adopted), 1);
    let fenced = r#"jobwire_fenced_total{operation="complete"}"#;
    assert_eq!(counted(&recorder.handle(), fenced), 0, "no lock was lost");
    gate.add_permits(1);
    world.until_empty().await;
    assert_eq!(notes.all().len(), 2);
    node.stop().await;
}
