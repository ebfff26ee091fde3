//! Rule 1 of the contract: report for each message whether the broker has it.

use std::time::Duration;

use chrono::DateTime;
use jobwire_core::hint::{Body, Marker};
use jobwire_core::job::NodeId;
use jobwire_core::transport::{Control, TransportError};
use jobwire_core::{Hint, JobId, Lane};
use jobwire_tests::eventually;

use super::subject::{SOON, Subject, drain, ids, soon, take, tickets};

pub(crate) async fn hints_arrive_whole_and_in_order(subject: &Subject) {
    let sent: Vec<Hint> = (0..20)
        .map(|n| Hint {
            instance: Some(format!("order-{n}")),
            committed_at: DateTime::from_timestamp_micros(1_763_695_885_123_456 + n),
            trace_parent: Some(format!("00-{n:032x}-b7ad6b7169203331-01")),
            ..Hint::new(JobId::generate())
        })
        .collect();
    let mut receiver = subject.receiver(32).await;
    let publisher = subject.transport.publisher();
    for hint in &sent {
        let published = publisher.publish(&subject.lane, vec![hint.clone()]);
        soon("publishing", published).await.unwrap();
    }
    let deliveries = take(&mut receiver, sent.len()).await;
    let mut received = Vec::new();
    for delivery in deliveries {
        assert_eq!(delivery.lane, subject.lane);
        assert!(!delivery.redelivered);
        assert!(
            delivery
                .published_at
                .is_some_and(|at| at <= delivery.received_at)
        );
        if let Body::Hints(hints) = delivery.body {
            received.extend(hints);
        }
    }
    assert_eq!(received, sent);
}

pub(crate) async fn ten_thousand_hints_leave_in_one_call(subject: &Subject) {
    let hints: Vec<Hint> = (0..10_000).map(|_| Hint::new(JobId::generate())).collect();
    let sent: Vec<JobId> = hints.iter().map(|hint| hint.id).collect();
    let mut receiver = subject.receiver(64).await;
    let publisher = subject.transport.publisher();
    let (published, received) = tokio::join!(
        soon("publishing", publisher.publish(&subject.lane, hints)),
        drain(&mut receiver, sent.len()),
    );
    published.unwrap();
    assert_eq!(received, sent);
}

pub(crate) async fn nothing_to_publish_is_no_error(subject: &Subject) {
    let published = subject
        .transport
        .publisher()
        .publish(&subject.lane, Vec::new())
        .await;
    published.unwrap();
}

pub(crate) async fn a_marker_comes_after_what_was_confirmed_before_it(subject: &Subject) {
    let mut receiver = subject.receiver(100).await;
    let before = subject.publish(30).await;
    let marker = Marker {
        number: 42,
        node: NodeId::generate(),
    };
    let publisher = subject.transport.publisher();
    let mut control = subject.transport.listen();
    let published = publisher.publish_marker(&subject.lane, marker);
    soon("publishing", published).await.unwrap();
    if subject.is_log {
        let deliveries = take(&mut receiver, before.len()).await;
        let (last, rest) = deliveries.split_last().unwrap();
        receiver.settle(&tickets(rest)).await;
        // Long enough for a premature answer to arrive.
        let early = tokio::time::timeout(Duration::from_secs(2), control.recv()).await;
        assert!(early.is_err(), "{early:?}");
        receiver.settle(&[last.ticket]).await;
        let lane = subject.lane.clone();
        let heard = soon("hearing", control.recv()).await.unwrap();
        assert_eq!(heard, Control::MarkerBack { lane, marker });
        return;
    }
    let deliveries = take(&mut receiver, before.len() + 1).await;
    let (last, rest) = deliveries.split_last().unwrap();
    assert_eq!(last.body, Body::Marker(marker));
    assert_eq!(ids(rest), before);
}

pub(crate) async fn lanes_do_not_mix(subject: &Subject) {
    let other = Lane::unchecked("other");
    // The receiver declares the lane.
    drop(subject.receiver_of(std::slice::from_ref(&other), 10).await);
    let (here, there) = (
        subject.publish(3).await,
        subject.publish_to(&other, 3).await,
    );
    let mut receiver = subject.receiver(10).await;
    assert_eq!(drain(&mut receiver, 3).await, here);
    let mut receiver = subject.receiver_of(&[other], 10).await;
    assert_eq!(drain(&mut receiver, 3).await, there);
}

pub(crate) async fn what_nobody_receives_waits(subject: &Subject) {
    let sent = subject.publish(5).await;
    let mut receiver = subject.receiver(10).await;
    assert_eq!(drain(&mut receiver, 5).await, sent);
}

pub(crate) async fn a_closed_transport_says_so(subject: &Subject) {
    let mut receiver = subject.receiver(10).await;
    let publisher = subject.transport.publisher();
    eventually("the transport to be healthy", SOON, || async {
        let health = publisher.health();
        (health.publishing && health.receiving).then_some(())
    })
    .await;
    soon("closing", subject.transport.close(SOON)).await;
    let published = publisher.publish(&subject.lane, vec![Hint::new(JobId::generate())]);
    let published = soon("publishing", published).await;
    assert!(matches!(published, Err(TransportError::Closed)));
    let received = soon("receiving", receiver.receive(1)).await;
    assert!(matches!(received, Err(TransportError::Closed)));
    let health = publisher.health();
    assert!(!health.publishing && !health.receiving && health.problem.is_some());
}
