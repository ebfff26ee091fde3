//! Rule 3 of the contract: hold back messages that a receiver has not asked for; cancel safety.

use std::time::Duration;

use jobwire_core::Lane;

use super::subject::{Subject, drain, ids, receive, soon, sorted, take, tickets};

pub(crate) async fn no_more_arrive_at_once_than_were_asked_for(subject: &Subject) {
    subject.publish(10).await;
    let mut receiver = subject.receiver(10).await;
    let mut left = 10;
    while left > 0 {
        let deliveries = receive(&mut receiver, 3).await;
        assert!((1..=3).contains(&deliveries.len()));
        left -= deliveries.len();
    }
}

pub(crate) async fn a_receive_that_is_given_up_loses_nothing(subject: &Subject) {
    let mut receiver = subject.receiver(100).await;
    let publishing = subject.publish(200);
    let receiving = async {
        let mut received = Vec::new();
        while received.len() < 200 {
            // Much too short for a broker to answer, so most calls are cancelled half-way.
            let receive = receiver.receive(7);
            if let Ok(got) = tokio::time::timeout(Duration::from_micros(100), receive).await {
                let deliveries = got.unwrap();
                receiver.settle(&tickets(&deliveries)).await;
                received.extend(ids(&deliveries));
            }
        }
        received
    };
    let (sent, received) = tokio::join!(publishing, soon("receiving", receiving));
    assert_eq!(received, sent);
}

pub(crate) async fn all_lanes_of_a_subscription_are_received(subject: &Subject) {
    let lanes = ["one", "two", "three"].map(Lane::unchecked);
    let mut receiver = subject.receiver_of(&lanes, 8).await;
    let mut sent = Vec::new();
    for _ in 0..5 {
        for lane in &lanes {
            sent.extend(subject.publish_to(lane, 1).await);
        }
    }
    assert_eq!(sorted(drain(&mut receiver, 15).await), sorted(sent));
}

pub(crate) async fn no_more_are_unsettled_than_the_prefetch(subject: &Subject) {
    let sent = subject.publish(5).await;
    let mut first = subject.receiver(3).await;
    let held = take(&mut first, 3).await;
    if subject.is_log {
        // One place is free now, so one message comes.
        first.settle(&tickets(&held[..1])).await;
        let next = receive(&mut first, 10).await;
        assert_eq!(ids(&next), sent[3..4]);
        return;
    }
    // Shows that the other two messages were left to other receivers.
    let mut second = subject.receiver(10).await;
    assert_eq!(ids(&take(&mut second, 2).await), sent[3..]);
    assert_eq!(ids(&held), sent[..3]);
}

pub(crate) async fn settling_makes_room(subject: &Subject) {
    let sent = subject.publish(6).await;
    let mut receiver = subject.receiver(2).await;
    let mut received = Vec::new();
    for _ in 0..3 {
        let deliveries = take(&mut receiver, 2).await;
        receiver.settle(&tickets(&deliveries)).await;
        received.extend(ids(&deliveries));
    }
    assert_eq!(received, sent);
}

pub(crate) async fn a_prefetch_that_changes_holds_for_the_next_messages(subject: &Subject) {
    let sent = subject.publish(8).await;
    let mut receiver = subject.receiver(2).await;
    let mut held = take(&mut receiver, 2).await;
    receiver.set_prefetch(8);
    let more = async {
        while held.len() < sent.len() {
            // A transport may need several calls for the change.
            let received = receiver.receive(8);
            if let Ok(received) = tokio::time::timeout(Duration::from_millis(100), received).await {
                held.extend(received.unwrap_or_default());
            }
        }
    };
    soon("more messages", more).await;
    assert_eq!(ids(&held), sent);
}

pub(crate) async fn a_busy_lane_keeps_no_other_from_arriving(subject: &Subject) {
    let [busy, other] = ["busy", "other"].map(Lane::unchecked);
    let mut receiver = subject.receiver_of(&[busy.clone(), other.clone()], 8).await;
    // Both lanes deliver before the measurement.
    let mut first = subject.publish_to(&busy, 1).await;
    first.extend(subject.publish_to(&other, 1).await);
    assert_eq!(sorted(drain(&mut receiver, 2).await), sorted(first));
    subject.publish_to(&busy, 300).await;
    let sent = subject.publish_to(&other, 3).await;
    let (mut from_busy, mut from_other) = (0, Vec::new());
    while from_other.len() < sent.len() {
        // Each call receives no more than the busy lane alone could fill.
        let deliveries = receive(&mut receiver, 4).await;
        receiver.settle(&tickets(&deliveries)).await;
        for delivery in &deliveries {
            if delivery.lane == busy {
                from_busy += 1;
            } else {
                from_other.extend(ids(std::slice::from_ref(delivery)));
            }
        }
    }
    assert_eq!(from_other, sent);
    assert!(from_busy < 300, "the other lane came last");
}

pub(crate) async fn a_lane_that_is_not_settled_leaves_room_for_another(subject: &Subject) {
    let [held, other] = ["held", "other"].map(Lane::unchecked);
    let lanes = [held.clone(), other.clone()];
    // The receivers declare the lanes.
    drop(subject.receiver_of(&lanes, 4).await);
    subject.publish_to(&held, 30).await;
    let mut receiver = subject.receiver_of(&lanes, 4).await;
    let first = take(&mut receiver, 2).await;
    let sent = subject.publish_to(&other, 2).await;
    let second = take(&mut receiver, 2).await;
    assert!(first.iter().all(|delivery| delivery.lane == held));
    assert_eq!(ids(&second), sent);
}
