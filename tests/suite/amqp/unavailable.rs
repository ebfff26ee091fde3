//! A broker that stops, dies, or has no memory left. Each test has its own broker.

use std::time::Duration;

use jobwire_core::Lane;
use jobwire_core::transport::{Publisher, TransportError};
use jobwire_tests::{RabbitMq, eventually};

use super::vhost::*;

#[tokio::test]
async fn a_broker_that_stops_or_dies_and_comes_back_needs_no_restart_of_ours() {
    let mut broker = RabbitMq::start().await;
    let lane = Lane::default();
    let transport = connect(&broker.url(), options("jobwire")).await;
    let mut receiver = subscribe(&transport, &lane, 10).await.unwrap();
    let id = publish_at_last(&transport, &lane).await;
    arrives(&mut receiver, id).await;

    broker.stop().await;
    let failed = publish(&transport, &lane).await.unwrap_err();
    assert!(failed.is_transient(), "{failed}");
    broker.start_again().await;
    let id = publish_at_last(&transport, &lane).await;
    arrives(&mut receiver, id).await;

    broker.kill();
    let failed = publish(&transport, &lane).await.unwrap_err();
    assert!(failed.is_transient(), "{failed}");
    // A transport that starts while the broker is down waits for it, too.
    let late = begin(&broker.url(), options("jobwire")).await;
    assert!(!Publisher::health(&late).publishing);
    let mut late_receiver = subscribe(&late, &Lane::unchecked("late"), 10)
        .await
        .unwrap();
    broker.start_again().await;
    let id = publish_at_last(&late, &lane).await;
    arrives(&mut receiver, id).await;
    // Only the receiver declares its lane.
    let late_hints = tokio::spawn(async move { receive_at_last(&mut late_receiver).await });
    let id = publish_at_last(&transport, &Lane::unchecked("late")).await;
    assert_eq!(ids(&late_hints.await.unwrap()), [id]);
}

#[tokio::test]
async fn a_memory_alarm_blocks_publishing_at_once_and_nothing_else() {
    let broker = RabbitMq::start().await;
    let lane = Lane::default();
    let patient = options("jobwire").confirm_timeout(Duration::from_secs(600));
    let transport = connect(&broker.url(), patient).await;
    let mut receiver = subscribe(&transport, &lane, 10).await.unwrap();
    let before = publish_at_last(&transport, &lane).await;
    let held = take(&mut receiver, 1).await;
    assert_eq!(ids(&held), [before]);

    broker
        .ctl()
        .run(&["set_vm_memory_high_watermark", "0"])
        .await;
    // A publish that waits for its confirm would wait for ten minutes.
    let blocked = soon("the block", async {
        loop {
            if let Err(problem @ TransportError::Blocked(_)) = publish(&transport, &lane).await {
                return problem;
            }
            tokio::task::yield_now().await;
        }
    });
    let problem = blocked.await;
    assert!(problem.is_transient());
    let health = Publisher::health(&transport);
    assert!(health.blocked && !health.publishing && health.receiving);
    assert!(health.problem.is_some());
    // Acknowledgements have a connection of their own.
    receiver.settle(&tickets(&held)).await;

    let free = ["set_vm_memory_high_watermark", "absolute", "1GB"];
    broker.ctl().run(&free).await;
    eventually("the block to end", SOON, || async {
        (!Publisher::health(&transport).blocked).then_some(())
    })
    .await;
    let id = publish_at_last(&transport, &lane).await;
    arrives(&mut receiver, id).await;
}
