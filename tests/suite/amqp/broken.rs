//! Connections that break, hang and come back. No process restarts.

use std::time::{Duration, Instant};

use jobwire_amqp::AmqpTransport;
use jobwire_core::transport::{Control, Publisher, Transport, TransportError};
use jobwire_tests::{Flow, eventually};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use super::vhost::*;

#[tokio::test]
async fn an_unsettled_message_comes_back_when_the_connection_dies() {
    let vhost = VirtualHost::new().await;
    let (proxy, transport) = vhost.behind_a_proxy().await;
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    let id = publish_at_last(&transport, &vhost.lane).await;
    let held = take(&mut receiver, 1).await;
    proxy.cut();
    let broken = soon("the error", receiver.receive(10)).await.unwrap_err();
    assert!(matches!(broken, TransportError::Unreachable(_)), "{broken}");
    // A ticket of the old connection has no effect on the new one.
    receiver.settle(&tickets(&held)).await;
    let again = receive_at_last(&mut receiver).await;
    receiver.settle(&tickets(&held)).await;
    assert_eq!(ids(&again), [id]);
    assert!(again[0].redelivered);
    assert_ne!(again[0].ticket, held[0].ticket);
    receiver.settle(&tickets(&again)).await;
    drop(receiver);
    let stranger = vhost.stranger().await;
    eventually("an empty queue", SOON, || async {
        (stranger.waiting(&vhost.queue()).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn both_directions_go_on_after_the_connections_break() {
    let vhost = VirtualHost::new().await;
    let (proxy, transport) = vhost.behind_a_proxy().await;
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    for _ in 0..3 {
        let id = publish_at_last(&transport, &vhost.lane).await;
        arrives(&mut receiver, id).await;
        proxy.cut();
    }
    until_healthy(&transport).await;
}

#[tokio::test]
async fn a_publish_fails_at_once_while_the_broker_is_away() {
    let vhost = VirtualHost::new().await;
    let (proxy, transport) = vhost.behind_a_proxy().await;
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    proxy.refuse().await;
    proxy.cut();
    eventually("the loss to be noticed", SOON, || async {
        let health = health(&transport);
        (!health.publishing && !health.receiving && health.problem.is_some()).then_some(())
    })
    .await;
    // Otherwise each call waits for its confirm or for the broker.
    soon("100 refusals", async {
        for _ in 0..100 {
            let refused = publish(&transport, &vhost.lane).await.unwrap_err();
            assert!(
                matches!(refused, TransportError::Unreachable(_)),
                "{refused}"
            );
        }
    })
    .await;
    // The receiver waits before it returns the next error, so that its caller does not spin.
    let _ = soon("the first error", receiver.receive(1)).await;
    let since = Instant::now();
    assert!(soon("the next error", receiver.receive(1)).await.is_err());
    assert!(since.elapsed() > Duration::from_millis(500));
    proxy.accept().await;
    let id = publish_at_last(&transport, &vhost.lane).await;
    arrives(&mut receiver, id).await;
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_given_up_after_the_confirm_timeout() {
    let vhost = VirtualHost::new().await;
    let impatient = vhost.options().confirm_timeout(Duration::from_millis(500));
    let (proxy, transport) = vhost.behind_a_proxy_with(impatient).await;
    // A second transport, for the heartbeats: the connections of the first outlive the silence.
    let watchful = vhost.options().heartbeat(Duration::from_secs(1));
    let watchful = connect(&proxy.url(&vhost.space.url), watchful).await;
    let mut receiver = subscribe(&watchful, &vhost.lane, 10).await.unwrap();
    publish_at_last(&transport, &vhost.lane).await;
    proxy.set_both(Flow::Stall);
    // More than the window holds; none of them hangs.
    let mut many = JoinSet::new();
    for _ in 0..200 {
        let (transport, lane) = (transport.clone(), vhost.lane.clone());
        many.spawn(async move { publish(&transport, &lane).await });
    }
    for failed in soon("200 failures", many.join_all()).await {
        let failed = failed.unwrap_err();
        assert!(matches!(failed, TransportError::Timeout(_)), "{failed}");
    }
    // No heartbeat arrives: both connections are closed and opened anew.
    eventually("the connections to be given up", SOON, || async {
        (!health(&watchful).publishing && !health(&watchful).receiving).then_some(())
    })
    .await;
    proxy.set_both(Flow::Pass);
    let id = publish_at_last(&watchful, &vhost.lane).await;
    arrives(&mut receiver, id).await;
}

#[tokio::test]
async fn connecting_comes_back_soon_whatever_the_broker_does() {
    let vhost = VirtualHost::new().await;
    let (proxy, first) = vhost.behind_a_proxy().await;
    drop(first);
    proxy.set_both(Flow::Stall);
    let patient = vhost.options().connect_timeout(Duration::from_secs(600));
    let transport = begin(&proxy.url(&vhost.space.url), patient).await;
    assert!(!health(&transport).publishing);
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    proxy.set_both(Flow::Pass);
    let id = publish_at_last(&transport, &vhost.lane).await;
    arrives(&mut receiver, id).await;
}

#[tokio::test]
async fn closing_keeps_its_time_limit_when_the_broker_says_nothing() {
    let vhost = VirtualHost::new().await;
    // Only the time limit ends the waits for the broker.
    let patient = vhost
        .options()
        .confirm_timeout(Duration::from_secs(600))
        .heartbeat(Duration::from_secs(600));
    let (proxy, transport) = vhost.behind_a_proxy_with(patient).await;
    let receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    publish_at_last(&transport, &vhost.lane).await;
    proxy.set_both(Flow::Stall);
    soon("closing", transport.close(Duration::from_secs(1))).await;
    drop(receiver);
    // The proxy also holds back the end of a stream.
    proxy.set_both(Flow::Pass);
    eventually("the sockets to be closed", SOON, || async {
        (proxy.connections() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_closed_transport_leaves_no_connection_behind() {
    let vhost = VirtualHost::new().await;
    let (proxy, transport) = vhost.behind_a_proxy().await;
    assert_eq!(proxy.connections(), 2);
    let other = connect(&proxy.url(&vhost.space.url), vhost.options()).await;
    let _receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    soon("closing", transport.close(SOON)).await;
    // A transport that is only dropped closes its connections, too.
    drop(other);
    eventually("the connections to end", SOON, || async {
        (proxy.connections() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn receivers_come_and_go_on_one_connection() {
    let vhost = VirtualHost::new().await;
    let (proxy, transport) = vhost.behind_a_proxy().await;
    // From here on a connection that breaks stays away.
    proxy.refuse().await;
    let mut receiver = subscribe(&transport, &vhost.lane, 4).await.unwrap();
    for round in 0..50 {
        let id = publish_at_last(&transport, &vhost.lane).await;
        match round % 5 {
            0 => drop(take(&mut receiver, 1).await),
            1 => receiver.pause().await,
            2 => {
                receiver.pause().await;
                receiver.resume().await;
                let _ = tokio::time::timeout(Duration::from_micros(500), receiver.receive(4)).await;
            }
            3 => drop(subscribe(&transport, &vhost.lane, 1).await.unwrap()),
            _ => {}
        }
        drop(receiver);
        receiver = subscribe(&transport, &vhost.lane, 4).await.unwrap();
        arrives(&mut receiver, id).await;
    }
    let health = health(&transport);
    assert!(health.publishing && health.receiving, "{health:?}");
}

#[tokio::test]
async fn control_messages_reach_every_process_also_after_a_break() {
    let vhost = VirtualHost::new().await;
    let (proxy, one) = vhost.behind_a_proxy().await;
    let two = vhost.transport().await;
    let (mut at_one, mut at_two) = (one.listen(), two.listen());
    // A process listens a moment after it connected: repeat the message until it arrives.
    let heard = async |from: &AmqpTransport, at: &mut broadcast::Receiver<Control>| {
        eventually("a control message", SOON, || {
            from.tell(Control::Look);
            let heard = at.try_recv().ok();
            async move { heard.filter(|heard| *heard == Control::Look) }
        })
        .await;
    };
    heard(&one, &mut at_two).await;
    heard(&two, &mut at_one).await;
    proxy.cut();
    while at_one.try_recv().is_ok() || at_two.try_recv().is_ok() {}
    heard(&two, &mut at_one).await;
    heard(&one, &mut at_two).await;
}
