//! The sweeper's question, answered by offsets: no waiting hint is published again, every lost hint
//! is, and none is while no node consumes.

use std::collections::HashSet;
use std::time::Duration;

use jobwire_core::hint::{Marker, Message};
use jobwire_core::transport::{Control, Receiver, Transport};
use jobwire_core::{Hint, JobId, Lane, NewJob, NodeId};
use jobwire_tests::{eventually, wait::patience};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tokio::sync::broadcast;

use super::fleet::*;

const BACKLOG: i64 = 1_000;

/// Returns whether this marker is back within a time.
async fn back(heard: &mut broadcast::Receiver<Control>, marker: Marker, within: Duration) -> bool {
    let waited = tokio::time::timeout(within, async {
        loop {
            if let Ok(Control::MarkerBack { marker: back, .. }) = heard.recv().await
                && back == marker
            {
                return;
            }
        }
    });
    waited.await.is_ok()
}

/// Receives and settles all deliveries forever.
async fn settle_all(receiver: &mut Box<dyn Receiver>) {
    loop {
        match receiver.receive(1).await {
            Ok(more) => receiver.settle(&tickets(&more)).await,
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

fn marker(number: u64) -> Marker {
    Marker {
        number,
        node: NodeId::generate(),
    }
}

/// Twenty leader cycles pass behind a backlog that does not shrink.
#[tokio::test]
async fn a_healthy_backlog_is_not_hinted_again_and_a_lost_one_is() {
    let fleet = Fleet::new().await;
    let mut options = quick();
    options.concurrency = 2;
    // A hint may take this long to reach a slow broker.
    options.suspect_after = Duration::from_secs(20);
    let node = fleet.node_of(options, connect(&fleet.url).await).await;
    // Both slots stay taken until the gate opens.
    for _ in 0..2 {
        fleet.jobs.create(NewJob::of("hold", &())).await.unwrap();
    }
    eventually("the slots to be taken", HEALED, || async {
        let leased = fleet.number("SELECT count(*) FROM jobwire.job_lease WHERE owner IS NOT NULL");
        (leased.await == 2).then_some(())
    })
    .await;
    fleet.create(BACKLOG, 1).await;
    eventually("the hints to be in the log", HEALED, || async {
        let ends = fleet.admin().end_offsets(&fleet.topic()).await;
        (ends.iter().sum::<i64>() >= BACKLOG / 16).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(fleet.hinted_again().await, 0, "all hints still wait");
    let admin = fleet.admin();
    for (partition, end) in (0..).zip(admin.end_offsets(&fleet.topic()).await) {
        admin.delete_records(&fleet.topic(), partition, end).await;
    }
    fleet.gate.add_permits(2);
    fleet.all_have_run().await;
    node.stop().await;
}

/// While all consumers are away nothing is settled; when one is back, everything is.
#[tokio::test]
async fn a_marker_comes_back_when_the_group_has_passed_what_lay_before_it() {
    let _logged = logged();
    let fleet = Fleet::new().await;
    let lane = Lane::default();
    let mut heard = fleet.transport.listen();
    let hints = (0..200).map(|_| Hint::new(JobId::generate())).collect();
    publish(&fleet.transport, &lane, hints).await;
    let first = marker(1);
    publish_marker(&fleet.transport, &lane, first).await;
    assert!(!back(&mut heard, first, Duration::from_secs(4)).await);

    // A receiver that holds its first message keeps the marker back, even if it settles later
    // messages.
    let other = connect_with(&fleet.url, patient()).await;
    let mut receiver = subscribe(&other, 100).await;
    let mut held = take(&mut receiver, 1).await;
    let mut above = HashSet::new();
    while above.len() + ids(&held).len() < 200 {
        let more = take(&mut receiver, 1).await;
        // A member that the machine kept from its heartbeats gets its partitions again, with
        // everything that is not committed. Its earlier ticket is then invalid.
        if ids(&more) == ids(&held) {
            held = more;
            continue;
        }
        receiver.settle(&tickets(&more)).await;
        above.extend(ids(&more));
    }
    assert!(!back(&mut heard, first, Duration::from_secs(3)).await);
    receiver.settle(&tickets(&held)).await;
    tokio::select! {
        back = back(&mut heard, first, patience(HEALED)) => assert!(back),
        () = settle_all(&mut receiver) => {}
    }

    // Partitions that were added since the last publish are checked too.
    fleet.admin().add_partitions(&fleet.topic(), 12).await;
    drop(receiver);
    other.close(Duration::from_secs(5)).await;
    let late = connect_with(&fleet.url, patient()).await;
    let hints = (0..200).map(|_| Hint::new(JobId::generate())).collect();
    publish(&late, &lane, hints).await;
    let second = marker(2);
    publish_marker(&fleet.transport, &lane, second).await;
    assert!(!back(&mut heard, second, Duration::from_secs(3)).await);

    // Deleted messages will not come: the topic is created again, with fewer partitions.
    let admin = fleet.admin();
    admin.delete_topic(&fleet.topic()).await;
    admin.create_topic(&fleet.topic(), 2).await;
    assert!(back(&mut heard, second, patience(HEALED)).await);
}

/// The time within which a transactional producer gets its answers.
const WITHIN: Duration = Duration::from_secs(60);

/// Begins a Kafka transaction of another producer, and sends one hint to each partition.
async fn in_transaction(
    fleet: &Fleet,
    then: impl FnOnce(&BaseProducer) + Send + 'static,
) -> BaseProducer {
    let servers = fleet.url.strip_prefix("kafka://").unwrap();
    let (servers, topic) = (servers.split('/').next().unwrap().to_owned(), fleet.topic());
    let begin = move || {
        let mut config = rdkafka::ClientConfig::new();
        config
            .set("bootstrap.servers", &servers)
            .set("transactional.id", &topic)
            .set("transaction.timeout.ms", "600000");
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(WITHIN).unwrap();
        producer.begin_transaction().unwrap();
        for partition in 0..4 {
            let hint = Message::hints(vec![Hint::new(JobId::generate())]).encode();
            let record = BaseRecord::<(), _>::to(&topic).partition(partition);
            assert!(producer.send(record.payload(&hint)).is_ok());
        }
        then(&producer);
        producer
    };
    tokio::task::spawn_blocking(begin).await.unwrap()
}

/// Another producer publishes in a Kafka transaction. The mark of its end is an offset without a message.
#[tokio::test]
async fn a_marker_comes_back_behind_the_marks_of_transactions() {
    let _logged = logged();
    let fleet = Fleet::new().await;
    let lane = Lane::default();
    let mut heard = fleet.transport.listen();
    // Creates the topic.
    publish(&fleet.transport, &lane, vec![Hint::new(JobId::generate())]).await;
    in_transaction(&fleet, |producer| {
        producer.commit_transaction(WITHIN).unwrap();
    })
    .await;
    let marker = marker(1);
    publish_marker(&fleet.transport, &lane, marker).await;
    let node = connect_with(&fleet.url, patient()).await;
    let mut receiver = subscribe(&node, 100).await;
    tokio::select! {
        back = back(&mut heard, marker, patience(HEALED)) => assert!(back),
        () = settle_all(&mut receiver) => {}
    }
}

/// A transaction of another producer stays open. The hints that come after it are received, and the
/// marker returns only when they are settled.
#[tokio::test]
async fn an_open_transaction_holds_up_no_hints() {
    let _logged = logged();
    let fleet = Fleet::new().await;
    let lane = Lane::default();
    let mut heard = fleet.transport.listen();
    // Creates the topic.
    publish(&fleet.transport, &lane, vec![Hint::new(JobId::generate())]).await;
    let producer = in_transaction(&fleet, |producer| producer.flush(WITHIN).unwrap()).await;
    let after: Vec<Hint> = (0..20).map(|_| Hint::new(JobId::generate())).collect();
    let mut missing: HashSet<JobId> = after.iter().map(|hint| hint.id).collect();
    publish(&fleet.transport, &lane, after).await;
    let marker = marker(1);
    publish_marker(&fleet.transport, &lane, marker).await;
    assert!(!back(&mut heard, marker, Duration::from_secs(3)).await);
    let node = connect_with(&fleet.url, patient()).await;
    let mut receiver = subscribe(&node, 100).await;
    let all = async {
        while !missing.is_empty() {
            let batch = take(&mut receiver, 1).await;
            receiver.settle(&tickets(&batch)).await;
            for id in ids(&batch) {
                missing.remove(&id);
            }
        }
    };
    tokio::time::timeout(patience(HEALED), all).await.unwrap();
    tokio::select! {
        back = back(&mut heard, marker, patience(HEALED)) => assert!(back),
        () = settle_all(&mut receiver) => {}
    }
    tokio::task::spawn_blocking(move || drop(producer))
        .await
        .unwrap();
}
