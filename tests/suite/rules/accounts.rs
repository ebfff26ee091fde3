//! Message accounting: each hint that a node takes from the broker is either decided or requeued,
//! and counted as such. No sweeps run here.

use std::sync::Arc;

use jobwire_core::{Hint, JobId, Lane, NewJob, Outcome, Running, Transport};
use jobwire_tests::{HintAccount, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::Semaphore;

use super::world::{SOON, create, refused, unswept};
use crate::world::{Notes, World};

#[tokio::test]
async fn every_hint_is_decided_or_given_back() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let notes = Notes::default();
    let gate = Arc::new(Semaphore::new(0));
    let (seen, entrance) = (notes.clone(), gate.clone());
    let mut options = unswept();
    options.concurrency = 2;
    let node = world
        .node()
        .options(options)
        .handler("wait", move |_: Running<()>| {
            let (seen, entrance) = (seen.clone(), entrance.clone());
            async move {
                seen.add("in");
                let _ = entrance.acquire().await;
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    super::world::until_led(&world.store).await;
    let mut hints = Vec::new();
    for _ in 0..12 {
        hints.push(create(&world.store, NewJob::of("wait", &())).await);
    }
    // Some hints are doubled, and some name jobs that never existed.
    hints.extend_from_within(..4);
    hints.extend((0..5).map(|_| Hint::new(JobId::generate())));
    let publisher = world.transport.publisher();
    let lane = Lane::default();
    publisher.publish(&lane, hints).await.unwrap();
    notes.until_within(2, SOON).await;
    // Both slots stay taken, so the node requeues undecided hints.
    eventually("hints to be requeued", SOON, async || {
        (HintAccount::read(&scraped.render()).returned > 0).then_some(())
    })
    .await;
    gate.add_permits(Semaphore::MAX_PERMITS / 2);
    world.until_empty().await;
    // 12 hints, 4 doubled ones and 5 unknown ones; perhaps one more from the node's first leader
    // cycle.
    eventually(
        "all hints to be decided, and none missing",
        SOON,
        async || {
            let account = HintAccount::read(&scraped.render());
            (account.decided >= 21 && account.is_balanced()).then_some(())
        },
    )
    .await;
    assert_eq!(notes.all().len(), 12);
    assert!(refused(&scraped, "gone") >= 5);
    node.stop().await;
}
