//! Messages of other producers, control messages of other nodes, and publishing without brokers.

use std::collections::BTreeSet;
use std::time::Duration;

use jobwire_core::hint::MAX_MESSAGE_BYTES;
use jobwire_core::telemetry::metrics::HINTS_UNREADABLE;
use jobwire_core::transport::{Control, Transport, TransportError};
use jobwire_core::{Hint, JobId, Lane};
use jobwire_tests::{eventually, http};
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::fleet::*;

/// Returns another producer on the same brokers, which chooses partitions as a Java client does.
fn stranger(fleet: &Fleet) -> FutureProducer {
    let servers = fleet.url.strip_prefix("kafka://").unwrap();
    ClientConfig::new()
        .set("bootstrap.servers", servers.split('/').next().unwrap())
        .set("partitioner", "murmur2_random")
        .create()
        .unwrap()
}

async fn send(stranger: &FutureProducer, topic: &str, key: Option<&str>, bytes: &[u8]) -> i32 {
    let mut record = FutureRecord::<str, [u8]>::to(topic).payload(bytes);
    if let Some(key) = key {
        record = record.key(key);
    }
    stranger.send(record, HEALED).await.unwrap().partition
}

#[tokio::test]
async fn unreadable_messages_of_a_topic_are_settled_and_counted_and_do_not_stop_the_lane() {
    let fleet = Fleet::new().await;
    let (lane, topic) = (Lane::default(), fleet.topic());
    let publish = async || {
        let id = JobId::generate();
        super::fleet::publish(&fleet.transport, &lane, vec![Hint::new(id)]).await;
        id
    };
    let first = publish().await;
    let stranger = stranger(&fleet);
    let large = vec![b' '; MAX_MESSAGE_BYTES + 1];
    let id = JobId::generate();
    let junk: [&[u8]; 6] = [
        b"",
        b"\0\xff\xfe",
        b"null",
        b"{\"order\":17}",
        b"{\"v\":1,\"hints\":[{\"id\":\"1; DROP TABLE job\"}]}",
        &large,
    ];
    for bytes in junk.repeat(10) {
        send(&stranger, &topic, None, bytes).await;
    }
    let forged = format!(r#"{{"v":1,"hints":[{{"id":"{id}"}}]}}"#);
    send(&stranger, &topic, None, forged.as_bytes()).await;
    let last = publish().await;

    let mut receiver = subscribe(&fleet.transport, 5).await;
    let mut received = BTreeSet::new();
    while received.len() < 3 {
        let deliveries = crate::transport_conformance::subject::receive(&mut receiver, 5).await;
        receiver.settle(&tickets(&deliveries)).await;
        received.extend(ids(&deliveries));
    }
    assert_eq!(received, BTreeSet::from([first, id, last]));
    eventually("all messages to be settled", HEALED, || async {
        let committed = fleet.admin().committed(&fleet.group(), &topic).await;
        let ends = fleet.admin().end_offsets(&topic).await;
        let all = committed
            .iter()
            .zip(ends)
            .all(|(at, end)| at.unwrap_or(0) == end);
        all.then_some(())
    })
    .await;
}

/// The node is a program, whose metrics page shows the count.
#[tokio::test]
async fn a_node_counts_what_it_can_not_read() {
    let fleet = Fleet::new().await;
    let topic = fleet.topic();
    fleet.admin().create_topic(&topic, 4).await;
    let stranger = stranger(&fleet);
    for _ in 0..7 {
        send(&stranger, &topic, None, b"{\"order\":17}").await;
    }
    let node = fleet.program().start();
    let line = node.wait_for_line("is ready", HEALED).await;
    let address = http::address_in(&line);
    let counter = format!("{HINTS_UNREADABLE}{{lane=\"default\"}} ");
    eventually("the count", HEALED, || async {
        let metrics = http::get(&address, "/metrics").await.ok()?.body;
        let count = metrics.lines().find_map(|l| l.strip_prefix(&*counter))?;
        // A rebalance may deliver some of them again, which raises the count.
        (count.parse::<u32>().ok()? >= 7).then_some(())
    })
    .await;
    fleet.create(5, 2).await;
    fleet.all_have_run().await;
}

/// Java's default partitioner and Jobwire's agree, so the hints of an instance keep their order.
#[tokio::test]
async fn another_producer_sends_an_instance_to_the_partition_that_we_choose() {
    let fleet = Fleet::new().await;
    let (lane, topic) = (Lane::default(), fleet.topic());
    fleet.admin().create_topic(&topic, 12).await;
    let stranger = stranger(&fleet);
    for n in 0..40 {
        let instance = format!("order-{n}");
        let before = fleet.admin().end_offsets(&topic).await;
        let hint = Hint {
            instance: Some(instance.clone()),
            ..Hint::new(JobId::generate())
        };
        publish(&fleet.transport, &lane, vec![hint]).await;
        let after = fleet.admin().end_offsets(&topic).await;
        let ours = (0..12).find(|at| before[*at] < after[*at]);
        let theirs = send(&stranger, &topic, Some(&instance), b"{}").await;
        assert_eq!(ours, usize::try_from(theirs).ok(), "{instance}");
    }
}

/// The broker refuses a message of this size: the error names the remedy, and smaller messages
/// pass.
#[tokio::test]
async fn a_message_that_the_broker_finds_too_large_is_refused_with_a_remedy() {
    let fleet = Fleet::new().await;
    let (lane, topic) = (Lane::default(), fleet.topic());
    let small = [("max.message.bytes", "2000")];
    fleet.admin().create_topic_with(&topic, 1, &small).await;
    let publisher = fleet.transport.publisher();
    let large = Hint {
        instance: Some("x".repeat(10_000)),
        ..Hint::new(JobId::generate())
    };
    let refused = refusal("the large message to be refused", async || {
        publisher.publish(&lane, vec![large.clone()]).await
    })
    .await;
    super::refused::says(&refused, &["max.message.bytes", &topic]);
    let hint = vec![Hint::new(JobId::generate())];
    publish(&fleet.transport, &lane, hint).await;
}

#[tokio::test]
async fn control_messages_reach_other_processes_and_our_own_only_once() {
    let fleet = Fleet::new().await;
    let (one, two) = (&fleet.transport, connect_with(&fleet.url, patient()).await);
    let (mut at_one, mut at_two) = (one.listen(), two.listen());
    // A process listens a moment after it has connected, so the message is sent until it arrives.
    for (from, heard) in [(one, &mut at_two), (&two, &mut at_one)] {
        eventually("a control message", HEALED, || {
            from.publisher().tell(Control::Look);
            let heard = heard.try_recv().ok();
            async move { heard.filter(|heard| *heard == Control::Look) }
        })
        .await;
    }
    let other = Control::Cancel {
        job: JobId::generate(),
    };
    while at_one.try_recv().is_ok() || at_two.try_recv().is_ok() {}
    let last = Control::Cancel {
        job: JobId::generate(),
    };
    one.publisher().tell(other.clone());
    let count = async |heard: &mut tokio::sync::broadcast::Receiver<Control>| {
        let mut count = 0;
        soon("the last message", async {
            loop {
                match heard.recv().await {
                    Ok(message) if message == other => count += 1,
                    Ok(message) if message == last => return,
                    _ => {}
                }
            }
        })
        .await;
        count
    };
    // When this message of the other process arrives, everything before it has arrived too.
    two.publisher().tell(last.clone());
    assert_eq!(count(&mut at_one).await, 1);
    one.publisher().tell(last.clone());
    while count(&mut at_two).await == 0 {
        one.publisher().tell(other.clone());
        one.publisher().tell(last.clone());
    }
}

/// All transports have the same size limit, so they drop the same messages.
#[tokio::test]
async fn control_messages_that_are_too_large_are_dropped_before_they_are_decoded() {
    use jobwire_core::job::NodeId;
    use jobwire_core::transport::MAX_CONTROL_BYTES;
    let fleet = Fleet::new().await;
    let (near, far) = (&fleet.transport, connect_with(&fleet.url, patient()).await);
    let mut heard = near.listen();
    eventually("a message of the far transport", HEALED, || {
        far.publisher().tell(Control::Look);
        let heard = heard.try_recv().ok();
        async move { heard.filter(|heard| *heard == Control::Look) }
    })
    .await;
    let node = NodeId::generate();
    let alive = |types: usize| {
        let types: Vec<String> = (0..types).map(|n| format!("type-{n:0>90}")).collect();
        serde_json::json!({"say": "node-alive", "node": node, "types": types, "lanes": ["default"]})
            .to_string()
            .into_bytes()
    };
    let (large, fits) = (alive(5_000), alive(100));
    assert!(large.len() > MAX_CONTROL_BYTES && fits.len() < MAX_CONTROL_BYTES);
    let (stranger, topic) = (stranger(&fleet), format!("{}.control", fleet.prefix));
    for message in [&large, &large, &large, &fits] {
        send(&stranger, &topic, None, message).await;
    }
    let first = soon("a message that fits", async {
        loop {
            if let Control::NodeAlive { types, .. } = heard.recv().await.unwrap() {
                return types.len();
            }
        }
    })
    .await;
    assert_eq!(first, 100, "a message that is too large was decoded");
}

/// A row can name any lane, because any program that writes rows chooses it.
#[tokio::test]
async fn a_lane_that_no_node_receives_gets_no_topic() {
    let fleet = Fleet::new().await;
    let admin = fleet.admin();
    for n in 0..10 {
        let lane = Lane::unchecked(format!("garbage-{n}"));
        let refused = eventually("a refusal", HEALED, || async {
            let hints = vec![Hint::new(JobId::generate())];
            let published = fleet.transport.publisher().publish(&lane, hints).await;
            let problem = published.err();
            problem.filter(|problem| matches!(problem, TransportError::NoReceiver(_)))
        })
        .await;
        assert!(
            matches!(&refused, TransportError::NoReceiver(of) if *of == lane),
            "{refused}"
        );
        let topic = format!("{}.lane.{lane}", fleet.prefix);
        assert_eq!(admin.partitions(&topic).await, 0, "{topic}");
    }
}

/// Publishing fails soon when the brokers are away, however many callers publish at once.
#[tokio::test]
async fn a_publish_without_brokers_fails_soon() {
    let url = format!("kafka://127.0.0.1:{}/nobody", jobwire_tests::port::free());
    let transport = connect(&url).await;
    let since = std::time::Instant::now();
    let mut many = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let transport = transport.clone();
        many.spawn(async move {
            let hint = vec![Hint::new(JobId::generate())];
            transport.publisher().publish(&Lane::default(), hint).await
        });
    }
    for failed in soon("200 failures", many.join_all()).await {
        let problem = failed.unwrap_err();
        assert!(
            matches!(
                problem,
                TransportError::Unreachable(_) | TransportError::Timeout(_)
            ),
            "{problem}"
        );
    }
    // Callers that waited for one another would take minutes.
    assert!(since.elapsed() < Duration::from_secs(60));
}
