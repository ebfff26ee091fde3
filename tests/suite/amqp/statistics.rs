//! What the transport measures of the broker, and that measuring disturbs nothing.

use std::time::Duration;

use jobwire_amqp::AmqpOptions;
use jobwire_core::Lane;
use jobwire_core::telemetry::metrics::{
    BROKER_ROUND_TRIP, BROKER_UNCONFIRMED, LANE_CONSUMERS, LANE_UNSETTLED, LANE_WAITING,
};
use jobwire_core::transport::Transport;
use jobwire_tests::{Direction, Flow, Proxy, eventually};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use url::Url;

use super::vhost::*;

/// The metrics that the tasks of this test record; the tasks stay on its thread.
struct Recorded {
    handle: PrometheusHandle,
    _here: metrics::LocalRecorderGuard<'static>,
}

impl Recorded {
    fn here() -> Self {
        let recorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        Self {
            handle: recorder.handle(),
            _here: metrics::set_default_local_recorder(recorder),
        }
    }

    fn value(&self, name: &str, label: &str) -> Option<f64> {
        let series = if label.is_empty() {
            format!("{name} ")
        } else {
            format!("{name}{{{label}}} ")
        };
        let page = self.handle.render();
        let line = page.lines().find_map(|line| line.strip_prefix(&series))?;
        line.parse().ok()
    }

    fn of_lane(&self, name: &str, lane: &Lane) -> Option<f64> {
        self.value(name, &format!("lane=\"{lane}\""))
    }

    async fn until(&self, name: &str, lane: &Lane, right: impl Fn(f64) -> bool) {
        eventually(&format!("{name} of {lane} to be right"), SOON, || async {
            let value = self.of_lane(name, lane)?;
            right(value).then_some(())
        })
        .await;
    }
}

fn is(expected: f64) -> impl Fn(f64) -> bool {
    move |value| (value - expected).abs() < 0.5
}

fn measured(vhost: &VirtualHost) -> AmqpOptions {
    vhost
        .options()
        .statistics_interval(Some(Duration::from_millis(100)))
        .hints_per_message(1)
}

/// A proxy to the broker that can be closed, and the URL through it.
async fn behind_a_proxy(vhost: &VirtualHost) -> (Proxy, String) {
    let url = Url::parse(&vhost.space.url).unwrap();
    let proxy = Proxy::start(&format!("127.0.0.1:{}", url.port().unwrap())).await;
    let url = proxy.url(&vhost.space.url);
    (proxy, url)
}

#[tokio::test]
async fn a_lane_tells_what_waits_what_is_held_and_who_receives() {
    let recorded = Recorded::here();
    let vhost = VirtualHost::new().await;
    let transport = connect(&vhost.space.url, measured(&vhost)).await;
    for _ in 0..5 {
        publish_at_last(&transport, &vhost.lane).await;
    }
    recorded.until(LANE_WAITING, &vhost.lane, is(5.0)).await;
    recorded.until(LANE_CONSUMERS, &vhost.lane, is(0.0)).await;

    let mut receiver = subscribe(&transport, &vhost.lane, 2).await.unwrap();
    let held = take(&mut receiver, 2).await;
    recorded.until(LANE_WAITING, &vhost.lane, is(3.0)).await;
    recorded.until(LANE_CONSUMERS, &vhost.lane, is(1.0)).await;
    recorded.until(LANE_UNSETTLED, &vhost.lane, is(2.0)).await;

    receiver.settle(&tickets(&held)).await;
    recorded.until(LANE_UNSETTLED, &vhost.lane, is(0.0)).await;
    let held = take(&mut receiver, 2).await;
    recorded.until(LANE_UNSETTLED, &vhost.lane, is(2.0)).await;
    receiver.requeue(&tickets(&held)).await;
    drop(receiver);
    recorded.until(LANE_UNSETTLED, &vhost.lane, is(0.0)).await;
    recorded.until(LANE_WAITING, &vhost.lane, is(3.0)).await;
    for direction in ["publish", "receive"] {
        let name = format!("{BROKER_ROUND_TRIP}_count");
        let label = format!("direction=\"{direction}\"");
        assert!(recorded.value(&name, &label) > Some(1.0), "{direction}");
    }
    soon("closing", transport.close(SOON)).await;
}

#[tokio::test]
async fn what_is_not_known_is_not_shown() {
    let recorded = Recorded::here();
    let vhost = VirtualHost::new().await;
    let (proxy, url) = behind_a_proxy(&vhost).await;
    let transport = connect(&url, measured(&vhost)).await;
    let mut receiver = subscribe(&transport, &vhost.lane, 2).await.unwrap();
    publish_at_last(&transport, &vhost.lane).await;
    take(&mut receiver, 1).await;
    recorded.until(LANE_WAITING, &vhost.lane, is(0.0)).await;
    recorded.until(LANE_UNSETTLED, &vhost.lane, is(1.0)).await;
    proxy.refuse().await;
    proxy.cut();
    recorded.until(LANE_WAITING, &vhost.lane, f64::is_nan).await;
    recorded
        .until(LANE_CONSUMERS, &vhost.lane, f64::is_nan)
        .await;
    proxy.accept().await;
    until_healthy(&transport).await;
    recorded.until(LANE_WAITING, &vhost.lane, is(1.0)).await;
    // The transport no longer receives or publishes in this lane, so it shows no value.
    drop(receiver);
    recorded.until(LANE_WAITING, &vhost.lane, f64::is_nan).await;
}

#[tokio::test]
async fn messages_without_a_confirm_are_counted() {
    let recorded = Recorded::here();
    let vhost = VirtualHost::new().await;
    let (proxy, url) = behind_a_proxy(&vhost).await;
    let options = measured(&vhost)
        .heartbeat(Duration::from_secs(600))
        .confirm_timeout(Duration::from_millis(500));
    let transport = connect(&url, options).await;
    publish_at_last(&transport, &vhost.lane).await;
    proxy.set(Direction::ToClient, Flow::Stall);
    for _ in 0..3 {
        publish(&transport, &vhost.lane).await.unwrap_err();
    }
    eventually("three messages without a confirm", SOON, || async {
        is(3.0)(recorded.value(BROKER_UNCONFIRMED, "")?).then_some(())
    })
    .await;
    proxy.set(Direction::ToClient, Flow::Pass);
    eventually("all messages to be confirmed", SOON, || async {
        is(0.0)(recorded.value(BROKER_UNCONFIRMED, "")?).then_some(())
    })
    .await;
}

/// A statistics request for a missing queue closes its own channel and no other.
#[tokio::test]
async fn a_deleted_queue_upsets_nothing() {
    let recorded = Recorded::here();
    let vhost = VirtualHost::new().await;
    let transport = connect(&vhost.space.url, measured(&vhost)).await;
    publish_at_last(&transport, &vhost.lane).await;
    recorded.until(LANE_WAITING, &vhost.lane, is(1.0)).await;
    vhost.stranger().await.delete(&vhost.queue()).await;
    recorded.until(LANE_WAITING, &vhost.lane, f64::is_nan).await;
    assert!(health(&transport).publishing && health(&transport).receiving);
    // The first attempt declares the queue again if the loss was noticed before.
    publish_at_last(&transport, &vhost.lane).await;
    recorded.until(LANE_WAITING, &vhost.lane, is(1.0)).await;
}

#[tokio::test]
async fn statistics_can_be_left_out() {
    let recorded = Recorded::here();
    let vhost = VirtualHost::new().await;
    let silent = vhost.options().statistics_interval(None);
    let transport = connect(&vhost.space.url, silent).await;
    let mut receiver = subscribe(&transport, &vhost.lane, 2).await.unwrap();
    let id = publish_at_last(&transport, &vhost.lane).await;
    arrives(&mut receiver, id).await;
    // A second transport measures, for long enough that the first would have measured, too.
    let other = VirtualHost::new().await;
    let lane = Lane::unchecked("measured");
    let measuring = connect(&other.space.url, measured(&other)).await;
    let receiver = subscribe(&measuring, &lane, 1).await.unwrap();
    publish_at_last(&measuring, &lane).await;
    drop(receiver);
    recorded.until(LANE_WAITING, &lane, is(1.0)).await;
    assert_eq!(recorded.of_lane(LANE_WAITING, &vhost.lane), None);
}
