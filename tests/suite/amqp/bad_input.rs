//! Malformed, oversized and forged messages in a queue.

use std::task::Poll;

use jobwire_core::hint::MAX_MESSAGE_BYTES;
use jobwire_core::telemetry::metrics::HINTS_UNREADABLE;
use jobwire_core::{Hint, JobId, Lane};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::vhost::*;

#[tokio::test]
async fn unreadable_messages_are_dropped_and_counted_and_do_not_stop_the_stream() {
    let vhost = VirtualHost::new().await;
    let transport = vhost.transport().await;
    let first = publish_at_last(&transport, &vhost.lane).await;
    let stranger = vhost.stranger().await;
    let queue = vhost.queue();
    let id = JobId::generate();
    let large = vec![b' '; MAX_MESSAGE_BYTES + 1];
    let many = format!(
        r#"{{"v":1,"hints":[{}]}}"#,
        vec![format!(r#"{{"id":"{id}"}}"#); 513].join(",")
    );
    let deep = "[".repeat(20_000);
    let junk: [&[u8]; 10] = [
        b"",
        b"\0\xff\xfe",
        b"null",
        b"{\"v\":1}",
        b"{\"v\":2,\"jobs\":[]}",
        b"{\"v\":1,\"hints\":[{\"id\":\"1; DROP TABLE job\"}]}",
        b"{\"v\":1,\"hints\":[{}],\"hints\":[{}]}",
        &large,
        many.as_bytes(),
        deep.as_bytes(),
    ];
    for _ in 0..20 {
        for bytes in junk {
            stranger.send(&queue, bytes).await;
        }
    }
    // The transport passes a forged hint on; the store refuses it.
    let forged = format!(r#"{{"v":1,"hints":[{{"id":"{id}"}}]}}"#);
    stranger.send(&queue, forged.as_bytes()).await;
    let last = publish_at_last(&transport, &vhost.lane).await;

    let mut receiver = subscribe(&transport, &vhost.lane, 5).await.unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    let received = async {
        let mut received = Vec::new();
        while received.len() < 3 {
            let deliveries = soon("a hint", receiver.receive(5)).await.unwrap();
            receiver.settle(&tickets(&deliveries)).await;
            received.extend(ids(&deliveries));
        }
        received
    };
    assert_eq!(counted(&recorder, received).await, [first, id, last]);
    let page = recorder.handle().render();
    let line = format!("{HINTS_UNREADABLE}{{lane=\"default\"}} 200");
    assert!(page.contains(&line), "'{line}' is missing in\n{page}");
    drop(receiver);
    eventually("an empty queue", SOON, || async {
        (stranger.waiting(&queue).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn hints_too_long_for_one_message_arrive_all_the_same() {
    use jobwire_core::transport::Transport;
    let vhost = VirtualHost::new().await;
    let transport = vhost.transport().await;
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    let sizes = [10, 30_000, 60_000, MAX_MESSAGE_BYTES, 10];
    let hints: Vec<Hint> = sizes
        .iter()
        .map(|size| Hint {
            instance: Some("x".repeat(*size)),
            ..Hint::new(JobId::generate())
        })
        .collect();
    let sent: Vec<JobId> = hints.iter().map(|hint| hint.id).collect();
    let publisher = transport.publisher();
    let published = publisher.publish(&vhost.lane, hints);
    soon("publishing", published).await.unwrap();
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let deliveries = receive_at_last(&mut receiver).await;
        received.extend(deliveries.iter().flat_map(ids_of));
    }
    assert_eq!(received, sent);
}

/// Every process with write access can publish to the exchange, in any size.
#[tokio::test]
async fn control_messages_that_are_too_large_are_dropped_before_they_are_decoded() {
    use jobwire_core::transport::{Control, MAX_CONTROL_BYTES, Transport};
    let vhost = VirtualHost::new().await;
    let (near, far) = (vhost.transport().await, vhost.transport().await);
    let mut heard = near.listen();
    eventually("a control message of the far transport", SOON, || {
        far.publisher().tell(Control::Look);
        let heard = heard.try_recv().ok();
        async move { heard.filter(|heard| *heard == Control::Look) }
    })
    .await;
    let node = jobwire_core::job::NodeId::generate();
    let alive = |types: usize| {
        let types: Vec<String> = (0..types).map(|n| format!("type-{n:0>90}")).collect();
        let lanes = [Lane::default()];
        serde_json::json!({"say": "node-alive", "node": node, "types": types, "lanes": lanes})
            .to_string()
            .into_bytes()
    };
    let (large, fits) = (alive(10_000), alive(100));
    assert!(large.len() > MAX_CONTROL_BYTES && fits.len() < MAX_CONTROL_BYTES);
    let stranger = vhost.stranger().await;
    let exchange = format!("{}.control", vhost.space.prefix);
    for _ in 0..50 {
        stranger.tell(&exchange, &large).await;
    }
    stranger.tell(&exchange, &fits).await;
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

/// Runs a future with its own recorder, so that other tests do not count.
async fn counted<T>(
    recorder: &metrics_exporter_prometheus::PrometheusRecorder,
    counting: impl Future<Output = T>,
) -> T {
    let mut counting = std::pin::pin!(counting);
    std::future::poll_fn(|cx| -> Poll<T> {
        metrics::with_local_recorder(recorder, || counting.as_mut().poll(cx))
    })
    .await
}
