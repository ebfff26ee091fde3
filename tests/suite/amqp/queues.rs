//! Queues that vanish, and channels that the broker closes.

use jobwire_core::Lane;
use jobwire_core::transport::TransportError;

use super::vhost::*;

#[tokio::test]
async fn a_queue_deleted_under_a_consumer_is_declared_again() {
    let vhost = VirtualHost::new().await;
    let transport = vhost.transport().await;
    let stranger = vhost.stranger().await;
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    for _ in 0..3 {
        let id = publish_at_last(&transport, &vhost.lane).await;
        arrives(&mut receiver, id).await;
        stranger.delete(&vhost.queue()).await;
        let id = publish_at_last(&transport, &vhost.lane).await;
        arrives(&mut receiver, id).await;
    }
}

#[tokio::test]
async fn a_publisher_is_told_that_its_queue_is_gone_and_the_next_hint_arrives() {
    let vhost = VirtualHost::new().await;
    // The statistics task would notice the missing queue before the publisher does.
    let silent = vhost.options().statistics_interval(None);
    let transport = connect(&vhost.space.url, silent).await;
    let stranger = vhost.stranger().await;
    publish_at_last(&transport, &vhost.lane).await;
    stranger.delete(&vhost.queue()).await;
    let told = publish(&transport, &vhost.lane).await.unwrap_err();
    assert!(matches!(told, TransportError::Unreachable(_)), "{told}");
    assert!(told.to_string().contains(&vhost.queue()), "{told}");
    let id = publish(&transport, &vhost.lane).await.unwrap();
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    assert_eq!(ids(&take(&mut receiver, 1).await), [id]);
}

#[tokio::test]
async fn one_lane_that_is_refused_does_not_harm_the_others() {
    let vhost = VirtualHost::new().await;
    let transport = vhost.transport().await;
    let stranger = vhost.stranger().await;
    let bad = Lane::unchecked("bad");
    let queue = format!("{}.lane.bad", vhost.space.prefix);
    stranger.declare(&queue, &[kind("quorum")]).await;
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    for _ in 0..3 {
        // The broker closes a channel each time.
        refused_to_subscribe(&transport, &bad).await;
        refused_to_publish(&transport, &bad).await;
        let id = publish_at_last(&transport, &vhost.lane).await;
        arrives(&mut receiver, id).await;
    }
    stranger.delete(&queue).await;
    let mut receiver = subscribe(&transport, &bad, 10).await.unwrap();
    let id = publish_at_last(&transport, &bad).await;
    arrives(&mut receiver, id).await;
}

/// A row may name any lane, and the writer of the row chooses it.
#[tokio::test]
async fn a_lane_that_no_node_receives_gets_no_queue() {
    let vhost = VirtualHost::new().await;
    let (producer, worker) = (vhost.transport().await, vhost.transport().await);
    for n in 0..50 {
        let lane = Lane::unchecked(format!("garbage-{n}"));
        let refused = refused_to_publish(&producer, &lane).await;
        assert!(
            matches!(&refused, TransportError::NoReceiver(of) if *of == lane),
            "{refused}"
        );
        let queue = format!("{}.lane.{lane}", vhost.space.prefix);
        assert!(!vhost.stranger().await.is_there(&queue).await, "{queue}");
    }
    // The default lane exists before its first receiver and keeps what was published.
    let early = publish_at_last(&producer, &Lane::default()).await;
    let mut receiver = subscribe(&worker, &Lane::default(), 10).await.unwrap();
    arrives(&mut receiver, early).await;
    // A lane can be published to once a node receives it.
    let lane = Lane::unchecked("garbage-7");
    let mut receiver = subscribe(&worker, &lane, 10).await.unwrap();
    let id = publish_at_last(&producer, &lane).await;
    arrives(&mut receiver, id).await;
}

const VERSION: &str = "x-queue-version";

#[tokio::test]
async fn a_lane_is_a_classic_queue_of_version_2() {
    let vhost = VirtualHost::new().await;
    let transport = vhost.transport().await;
    publish_at_last(&transport, &vhost.lane).await;
    // A declaration with the same arguments succeeds; any other is refused.
    let (queue, stranger) = (vhost.queue(), vhost.stranger().await);
    let ours = [kind("classic"), number(VERSION, 2)];
    stranger.declare(&queue, &ours).await;
    let theirs = [kind("classic"), number(VERSION, 1)];
    let refused = stranger.try_declare(&queue, &theirs).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(VERSION), "{refused}");
}

#[tokio::test]
async fn a_queue_of_another_version_is_used_as_it_is() {
    for theirs in [
        vec![kind("classic")],
        vec![kind("classic"), number(VERSION, 1)],
    ] {
        let vhost = VirtualHost::new().await;
        let stranger = vhost.stranger().await;
        stranger.declare(&vhost.queue(), &theirs).await;
        let transport = vhost.transport().await;
        let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
        let id = publish_at_last(&transport, &vhost.lane).await;
        arrives(&mut receiver, id).await;
        // It is still the same queue.
        stranger.declare(&vhost.queue(), &theirs).await;
    }
}

#[tokio::test]
async fn what_else_differs_is_refused_whatever_the_version() {
    for version in [None, Some(1), Some(2)] {
        let vhost = VirtualHost::new().await;
        let stranger = vhost.stranger().await;
        let mut theirs = vec![kind("classic"), number("x-max-length", 10)];
        theirs.extend(version.map(|version| number(VERSION, version)));
        stranger.declare(&vhost.queue(), &theirs).await;
        let transport = vhost.transport().await;
        let refused = refused_to_publish(&transport, &vhost.lane)
            .await
            .to_string();
        assert!(refused.contains("'x-max-length'"), "{refused}");
    }
}
