//! Checks the broker: connects, declares the lanes, publishes and receives, as a node does.

use std::time::{Duration, Instant};

use jobwire_core::hint::Marker;
use jobwire_core::transport::{Subscription, Transport, TransportError};
use jobwire_core::{Lane, NodeId};

use super::finding::Findings;
use crate::connect;
use crate::settings::Settings;

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn examine(settings: &Settings, findings: &mut Findings) {
    if !connect::has_broker(settings) {
        return findings.fine(
            "broker",
            "none (in-process:): one node serves the database alone",
        );
    }
    let transport = match connect::transport(settings).await {
        Ok(transport) => transport,
        Err(error) => return findings.error("broker", error),
    };
    probe(settings, &*transport, findings).await;
    transport.close(Duration::from_secs(2)).await;
}

async fn probe(settings: &Settings, transport: &dyn Transport, findings: &mut Findings) {
    let url = &settings.broker_url;
    let publisher = transport.publisher();
    let started = Instant::now();
    while !(publisher.health().publishing && publisher.health().receiving) {
        if started.elapsed() > PATIENCE {
            let health = publisher.health();
            let why = health.problem.unwrap_or_else(|| "no answer".to_owned());
            let remedy = if health.blocked {
                "free memory or disk on the broker, or raise its limits"
            } else {
                "check that it runs and that host and port are right, or set --broker \
                 (JOBWIRE_BROKER_URL); nodes start without it and are slower until it is back"
            };
            return findings.wrong("broker", format!("{url}: {why}"), remedy);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    findings.fine(
        "broker",
        format!("{url} is reachable ({})", transport.name()),
    );
    if settings.is_in_the_clear() {
        findings.remark(
            "broker",
            "password and hints leave this machine unencrypted, since `broker_plaintext` allows it",
            "use the broker's TLS listener (`amqps://…`, `kafka://…?tls=true`), unless the network \
             encrypts by itself",
        );
    }
    let marker = Marker {
        number: 0,
        node: NodeId::generate(),
    };
    let lanes = lanes(settings);
    // A receiver declares its lanes.
    let subscription = Subscription {
        lanes: lanes.clone(),
        prefetch: 1,
    };
    let receiver = transport.subscribe(subscription).await;
    for lane in &lanes {
        let started = Instant::now();
        // A new topic of Kafka takes no messages before it has a leader.
        let published = loop {
            match publisher.publish_marker(lane, marker).await {
                Err(error) if may_pass(&error) && started.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                published => break published,
            }
        };
        match published {
            Ok(()) => findings.fine(
                "publish",
                format!(
                    "lane {lane} is declared and takes messages; confirmed after {:.1} ms",
                    started.elapsed().as_secs_f64() * 1000.0
                ),
            ),
            Err(error) => refused("publish", &error, findings),
        }
    }
    match receiver {
        Ok(mut receiver) => {
            // Returns delivered hints at once.
            receiver.pause().await;
            findings.fine("receive", "the lanes can be received");
        }
        Err(error) => refused("receive", &error, findings),
    }
}

/// Returns the lanes that the nodes of these settings receive.
fn lanes(settings: &Settings) -> Vec<Lane> {
    let mut lanes = Vec::new();
    if !settings.has_engine() || settings.is_given("database_url") {
        lanes.extend(settings.lanes.iter().map(|share| share.lane.clone()));
    }
    if settings.has_engine()
        && let Ok(engine) = settings.engine_options()
    {
        lanes.push(engine.lane);
    }
    lanes
}

fn may_pass(error: &TransportError) -> bool {
    !matches!(
        error,
        TransportError::Refused { .. } | TransportError::Setting(_)
    )
}

fn refused(about: &'static str, error: &TransportError, findings: &mut Findings) {
    match error {
        // The text of the error includes the remedy.
        TransportError::Refused { .. } | TransportError::Setting(_) => findings.error(about, error),
        error => findings.wrong(
            about,
            error.to_string(),
            "try again; if the error persists, see the broker's log",
        ),
    }
}
