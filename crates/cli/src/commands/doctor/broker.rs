//! Checks the broker: connects, declares the lanes, publishes and receives, as a node does.

use std::time::{Duration, Instant};

use jobwire_core::hint::Marker;
use jobwire_core::job::duration;
use jobwire_core::transport::{Subscription, Transport, TransportError};
use jobwire_core::{Lane, NodeId, Store, TapMode};

use super::finding::Findings;
use crate::connect::{self, Database};
use crate::settings::Settings;

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn examine(settings: &Settings, findings: &mut Findings) {
    if !connect::has_broker(settings) {
        return findings.fine(
            "broker",
            "none (in-process:): one node serves the database alone",
        );
    }
    if connect::has_wakes(settings) {
        return wakes(settings, findings).await;
    }
    let transport = match connect::transport(settings).await {
        Ok(transport) => transport,
        Err(error) => return findings.error("broker", error),
    };
    probe(settings, &*transport, findings).await;
    transport.close(Duration::from_secs(2)).await;
}

/// Checks that a notification of PostgreSQL comes back, and names what jobs of plain SQL wait for.
async fn wakes(settings: &Settings, findings: &mut Findings) {
    let transport = match connect::wakes(settings) {
        Ok(transport) => transport,
        Err(error) => return findings.error("broker", error),
    };
    match transport.comes_back(PATIENCE).await {
        Ok(took) => findings.fine(
            "broker",
            format!(
                "none: PostgreSQL wakes the nodes; connected, and a notification came back, after \
                 {:.1} ms",
                took.as_secs_f64() * 1000.0
            ),
        ),
        Err(error) => findings.wrong(
            "broker",
            format!("none: the nodes can't be woken: {error}"),
            "let the nodes connect to the server itself or to a pooler of sessions; until then \
             they claim at their `claim_interval`",
        ),
    }
    transport.close(Duration::from_secs(2)).await;
    if let Ok(Database::Postgres(store)) = Database::connect(settings, false).await {
        let stands = settings.tap != TapMode::Off && store.has_tap().await.is_ok_and(|has| has);
        if !stands {
            findings.remark(
                "broker",
                format!(
                    "none: jobs of plain SQL wait for the leader, up to {}",
                    duration::write(settings.claim_interval)
                ),
                "if other programs create jobs by SQL, set wal_level = logical, restart the \
                 server unless it is so already, and run `jobwire tap create`; or set a shorter \
                 `claim_interval`",
            );
        }
        store.close().await;
    }
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
