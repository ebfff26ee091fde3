//! Topics that are deleted, created again or extended, or that lose hints before a node receives
//! them.

use jobwire_core::{Hint, JobId, Lane};
use jobwire_tests::eventually;

use super::fleet::*;

#[tokio::test]
async fn a_topic_that_is_deleted_while_nodes_consume_is_made_again() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.node().await, fleet.node().await);
    fleet.create(10, 2).await;
    fleet.have_run(1).await;
    let admin = fleet.admin();
    // Jobs run without the topic too.
    let is_there = || {
        eventually("the topic to be there", HEALED, || async {
            let partitions = admin.partitions(&fleet.topic()).await;
            (partitions > 0).then_some(partitions)
        })
    };
    is_there().await;
    admin.delete_topic(&fleet.topic()).await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    // Again, and now another program adds partitions.
    is_there().await;
    admin.delete_topic(&fleet.topic()).await;
    fleet.create(10, 2).await;
    let more = is_there().await + 4;
    admin.add_partitions(&fleet.topic(), more).await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    one.stop().await;
    two.stop().await;
}

/// The node gets no notice, and the new log begins below its position in the old one.
#[tokio::test]
async fn a_topic_that_is_made_again_behind_the_back_of_a_node_is_read_from_its_beginning() {
    let fleet = Fleet::new().await;
    let (admin, topic) = (fleet.admin(), fleet.topic());
    let node = fleet.program().start();
    node.wait_for_line("is ready", HEALED).await;
    fleet.create(40, 1).await;
    fleet.all_have_run().await;
    eventually("the settled hints to be committed", HEALED, || async {
        let committed = admin.committed(&fleet.group(), &topic).await;
        let ends = admin.end_offsets(&topic).await;
        let all = committed.iter().zip(ends);
        let all = all.into_iter().all(|(at, end)| at.unwrap_or(0) == end);
        all.then_some(())
    })
    .await;
    node.signal(jobwire_tests::Signal::SIGSTOP);
    admin.delete_topic(&topic).await;
    admin.create_topic(&topic, 4).await;
    fleet.create(40, 1).await;
    node.signal(jobwire_tests::Signal::SIGCONT);
    fleet.all_have_run().await;
    // The node also settles the hints of the new log.
    eventually("the new log to be settled", HEALED, || async {
        let committed = admin.committed(&fleet.group(), &topic).await;
        let ends = admin.end_offsets(&topic).await;
        let all = committed.iter().zip(ends);
        let all = all.into_iter().all(|(at, end)| at.unwrap_or(0) == end);
        all.then_some(())
    })
    .await;
}

/// Hints in the new partitions are received and do not count as lost.
#[tokio::test]
async fn partitions_that_are_added_to_a_live_topic_are_used() {
    let fleet = Fleet::new().await;
    let node = fleet.node().await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    let admin = fleet.admin();
    admin.add_partitions(&fleet.topic(), 8).await;
    // A transport that starts now knows the new partitions at once; nodes discover them while they
    // run.
    let late = connect_with(&fleet.url, patient()).await;
    for order in 0..64 {
        // Each instance has its own key.
        let hint = Hint {
            instance: Some(format!("order-{order}")),
            ..Hint::new(JobId::generate())
        };
        publish(&late, &Lane::default(), vec![hint]).await;
    }
    let ends = admin.end_offsets(&fleet.topic()).await;
    assert!(ends[4..].iter().all(|end| *end > 0), "{ends:?}");
    eventually("the new partitions to be received", HEALED, || async {
        let committed = admin.committed(&fleet.group(), &fleet.topic()).await;
        let ends = admin.end_offsets(&fleet.topic()).await;
        let all = committed.iter().zip(ends).all(|(at, end)| *at == Some(end));
        all.then_some(())
    })
    .await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    node.stop().await;
}

/// The jobs whose hints retention removed are hinted again, and the node logs the loss.
#[tokio::test]
async fn hints_that_retention_removed_are_healed_and_told() {
    let fleet = Fleet::new().await;
    let topic = fleet.topic();
    let node = fleet.program().start();
    node.wait_for_line("is ready", HEALED).await;
    fleet.create(5, 2).await;
    fleet.all_have_run().await;
    // The group must have committed its position; otherwise the loss is not detectable.
    let admin = fleet.admin();
    eventually("the settled hints to be committed", HEALED, || async {
        let committed = admin.committed(&fleet.group(), &topic).await;
        let ends = admin.end_offsets(&topic).await;
        let mut all = committed.iter().zip(ends);
        all.all(|(at, end)| at.unwrap_or(0) == end).then_some(())
    })
    .await;
    node.signal(jobwire_tests::Signal::SIGKILL);
    let before: i64 = fleet.admin().end_offsets(&topic).await.iter().sum();
    fleet.create(30, 1).await;
    eventually("the hints to be in the log", HEALED, || async {
        let ends = fleet.admin().end_offsets(&topic).await;
        (ends.iter().sum::<i64>() >= before + 4).then_some(())
    })
    .await;
    for (partition, end) in (0..).zip(admin.end_offsets(&topic).await) {
        admin.delete_records(&topic, partition, end).await;
    }
    let node = fleet.program().start();
    node.wait_for_line("retention removed hints", HEALED).await;
    fleet.all_have_run().await;
}
