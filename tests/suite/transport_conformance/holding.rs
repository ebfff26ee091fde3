//! Rule 2 of the contract: a message goes to one receiver, and to another if the first one leaves.

use super::subject::{Subject, drain, ids, soon, sorted, take, tickets};

pub(crate) async fn a_message_goes_to_one_receiver(subject: &Subject) {
    let mut one = subject.receiver(10).await;
    let mut two = subject.receiver(10).await;
    let sent = subject.publish(20).await;
    let mut received = Vec::new();
    let receiving = async {
        while received.len() < sent.len() {
            let (receiver, deliveries) = tokio::select! {
                deliveries = one.receive(5) => (&mut one, deliveries.unwrap()),
                deliveries = two.receive(5) => (&mut two, deliveries.unwrap()),
            };
            receiver.settle(&tickets(&deliveries)).await;
            received.extend(ids(&deliveries));
        }
    };
    soon("receiving", receiving).await;
    assert_eq!(sorted(received), sorted(sent));
}

pub(crate) async fn what_is_unsettled_goes_to_another_receiver(subject: &Subject) {
    let sent = subject.publish(4).await;
    let mut first = subject.receiver(10).await;
    let deliveries = take(&mut first, 4).await;
    first.settle(&tickets(&deliveries[..1])).await;
    drop(first);
    let mut second = subject.receiver(10).await;
    let deliveries = take(&mut second, 3).await;
    subject.assert_redelivered(&deliveries);
    assert_eq!(sorted(ids(&deliveries)), sorted(sent[1..].to_vec()));
}

pub(crate) async fn what_is_settled_never_comes_back(subject: &Subject) {
    subject.publish(10).await;
    let mut first = subject.receiver(10).await;
    drain(&mut first, 10).await;
    drop(first);
    let after = subject.publish(1).await;
    let mut second = subject.receiver(10).await;
    assert_eq!(drain(&mut second, 1).await, after);
}

pub(crate) async fn settling_out_of_order_forgets_only_what_was_settled(subject: &Subject) {
    let sent = subject.publish(6).await;
    let mut first = subject.receiver(10).await;
    let held = tickets(&take(&mut first, 6).await);
    first.settle(&[held[4], held[1]]).await;
    first.settle(&[held[0]]).await;
    // Settling twice is the same as settling once.
    first.settle(&[held[0], held[1]]).await;
    drop(first);
    let mut second = subject.receiver(10).await;
    let left = subject.left(&sent, &[0, 1, 4]);
    assert_eq!(sorted(ids(&take(&mut second, left.len()).await)), left);
}

pub(crate) async fn what_is_given_back_goes_to_another_receiver(subject: &Subject) {
    let sent = subject.publish(3).await;
    let mut first = subject.receiver(3).await;
    let held = take(&mut first, 3).await;
    // Without the pause the messages might come back to this receiver.
    first.pause().await;
    first.requeue(&tickets(&held[1..])).await;
    let mut second = subject.receiver(10).await;
    // On a log the first message, which is still held, comes before them.
    let left = if subject.is_log {
        &sent[..]
    } else {
        &sent[1..]
    };
    let deliveries = take(&mut second, left.len()).await;
    subject.assert_redelivered(&deliveries);
    assert_eq!(sorted(ids(&deliveries)), sorted(left.to_vec()));
}

pub(crate) async fn a_paused_receiver_leaves_everything_to_others(subject: &Subject) {
    let mut first = subject.receiver(10).await;
    let mut sent = subject.publish(3).await;
    first.pause().await;
    sent.extend(subject.publish(3).await);
    let mut second = subject.receiver(10).await;
    assert_eq!(sorted(drain(&mut second, 6).await), sorted(sent));
}

pub(crate) async fn a_paused_receiver_may_still_settle_what_it_has(subject: &Subject) {
    subject.publish(2).await;
    let mut first = subject.receiver(2).await;
    let held = tickets(&take(&mut first, 2).await);
    first.pause().await;
    first.settle(&held).await;
    drop(first);
    let after = subject.publish(1).await;
    let mut second = subject.receiver(10).await;
    assert_eq!(drain(&mut second, 1).await, after);
}

pub(crate) async fn a_resumed_receiver_receives_again(subject: &Subject) {
    let mut receiver = subject.receiver(10).await;
    let held_sent = subject.publish(2).await;
    let held = take(&mut receiver, 2).await;
    for _ in 0..3 {
        receiver.pause().await;
        let sent = subject.publish(2).await;
        receiver.resume().await;
        assert_eq!(drain(&mut receiver, 2).await, sent);
    }
    // Tickets stay valid through pauses.
    assert_eq!(ids(&held), held_sent);
    receiver.settle(&tickets(&held)).await;
    drop(receiver);
    let after = subject.publish(1).await;
    let mut second = subject.receiver(10).await;
    assert_eq!(drain(&mut second, 1).await, after);
}

pub(crate) async fn a_ticket_of_a_receiver_that_is_gone_is_harmless(subject: &Subject) {
    let sent = subject.publish(3).await;
    let mut first = subject.receiver(10).await;
    let old = tickets(&take(&mut first, 3).await);
    drop(first);
    let mut second = subject.receiver(10).await;
    take(&mut second, 3).await;
    second.settle(&old).await;
    second.requeue(&old).await;
    drop(second);
    let mut third = subject.receiver(10).await;
    assert_eq!(sorted(drain(&mut third, 3).await), sorted(sent));
}
