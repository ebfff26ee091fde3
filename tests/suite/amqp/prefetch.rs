//! The number of messages on their way to a receiver: fewer if they are packed and wait long.

use std::collections::VecDeque;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, QueueType};
use jobwire_core::transport::{Delivery, Receiver, Transport};
use jobwire_core::{Hint, JobId};

use super::vhost::*;
use crate::world::pass;

const SHARE: u16 = 16;
const PACKED: usize = 8;
/// The time that one job of this receiver takes.
const WORK: Duration = Duration::from_millis(100);

/// A receiver that decides one message after the other, and its messages.
struct Worker {
    receiver: Box<dyn Receiver>,
    waiting: VecDeque<Delivery>,
    done: Vec<JobId>,
    redelivered: usize,
    /// The number of decided messages.
    decided: u32,
}

impl Worker {
    async fn new(transport: &dyn Transport, vhost: &VirtualHost) -> Self {
        let subscription = jobwire_core::transport::Subscription {
            lanes: vec![vhost.lane.clone()],
            prefetch: SHARE,
        };
        let subscribing = transport.subscribe(subscription);
        Self {
            receiver: soon("subscribing", subscribing).await.unwrap(),
            waiting: VecDeque::new(),
            done: Vec::new(),
            redelivered: 0,
            decided: 0,
        }
    }

    /// Receives for this time. Ignores errors.
    async fn receive(&mut self, time: Duration) {
        let receiving = async {
            loop {
                if let Ok(deliveries) = self.receiver.receive(64).await {
                    let again = deliveries.iter().filter(|delivery| delivery.redelivered);
                    self.redelivered += again.count();
                    self.waiting.extend(deliveries);
                }
            }
        };
        tokio::select! {
            biased;
            () = receiving => {}
            () = pass(time) => {}
        }
    }

    /// Decides the first message, if there is one.
    async fn decide(&mut self) {
        let Some(delivery) = self.waiting.pop_front() else {
            return;
        };
        self.receiver.settle(&[delivery.ticket]).await;
        self.done.extend(ids_of(&delivery));
        self.decided += 1;
    }

    /// Decides this number of messages.
    async fn work(&mut self, messages: u32) {
        let end = self.decided + messages;
        let working = async {
            while self.decided < end {
                self.receive(WORK).await;
                self.decide().await;
            }
        };
        soon("working", working).await;
    }
}

fn packed(vhost: &VirtualHost, queue_type: QueueType) -> AmqpOptions {
    vhost
        .options()
        .hints_per_message(PACKED)
        .queue_type(queue_type)
}

/// Publishes this number of messages, each full of hints.
async fn publish_packed(
    transport: &dyn Transport,
    vhost: &VirtualHost,
    messages: usize,
) -> Vec<JobId> {
    let ids: Vec<JobId> = (0..messages * PACKED).map(|_| JobId::generate()).collect();
    let hints = ids.iter().map(|id| Hint::new(*id)).collect();
    let publisher = transport.publisher();
    publisher.publish(&vhost.lane, hints).await.unwrap();
    ids
}

async fn the_limit_follows_what_messages_hold(queue_type: QueueType) {
    let vhost = VirtualHost::new().await;
    let transport = connect(&vhost.space.url, packed(&vhost, queue_type)).await;
    let stranger = vhost.stranger().await;
    let mut worker = Worker::new(&transport, &vhost).await;
    let sent = publish_packed(&transport, &vhost, 60).await;
    let ahead =
        async |worker: &Worker| 60 - worker.decided - stranger.waiting(&vhost.queue()).await;

    worker.work(1).await;
    assert!(ahead(&worker).await >= 15, "the whole share at first");
    worker.work(39).await;
    let held = ahead(&worker).await;
    assert!(held <= 4, "{held} messages of {PACKED} hints are held");
    worker.work(20).await;
    let place = |id: &JobId| sent.iter().position(|sent| sent == id);
    let places: Vec<_> = worker
        .done
        .chunks(PACKED)
        .map(|ids| place(&ids[0]))
        .collect();
    let in_order: Vec<_> = (0..60).map(|message| Some(message * PACKED)).collect();
    assert_eq!(
        (worker.redelivered, places),
        (0, in_order),
        "each once, and in order"
    );

    // Messages of one hint each: the share applies again.
    for _ in 0..40 {
        publish_at_last(&transport, &vhost.lane).await;
        worker.receive(Duration::from_millis(30)).await;
        worker.decide().await;
    }
    soon("the other messages", async {
        while worker.decided < 100 {
            worker.receive(Duration::from_millis(1)).await;
            worker.decide().await;
        }
    })
    .await;
    for _ in 0..SHARE {
        publish_at_last(&transport, &vhost.lane).await;
    }
    soon("as many messages as the share", async {
        while worker.waiting.len() < usize::from(SHARE) {
            worker.receive(WORK).await;
        }
    })
    .await;
    assert_eq!(worker.redelivered, 0);
}

#[tokio::test]
async fn of_packed_messages_that_wait_fewer_are_on_their_way() {
    the_limit_follows_what_messages_hold(QueueType::Classic).await;
}

#[tokio::test]
async fn of_packed_messages_in_a_quorum_queue_that_wait_fewer_are_on_their_way() {
    the_limit_follows_what_messages_hold(QueueType::Quorum).await;
}

/// The connection breaks repeatedly while the limit changes.
#[tokio::test]
async fn a_limit_that_changes_outlives_broken_connections() {
    let vhost = VirtualHost::new().await;
    let options = packed(&vhost, QueueType::Classic);
    let (proxy, transport) = vhost.behind_a_proxy_with(options).await;
    let direct = connect(&vhost.space.url, packed(&vhost, QueueType::Classic)).await;
    let mut worker = Worker::new(&transport, &vhost).await;
    let sent = publish_packed(&direct, &vhost, 60).await;
    for _ in 0..4 {
        worker.work(8).await;
        proxy.cut();
        // The broker delivers the held messages again.
        worker.waiting.clear();
        until_healthy(&transport).await;
    }
    soon("all hints", async {
        let all = |worker: &Worker| sent.iter().all(|id| worker.done.contains(id));
        while !all(&worker) {
            worker.receive(WORK / 10).await;
            worker.decide().await;
        }
    })
    .await;
}
