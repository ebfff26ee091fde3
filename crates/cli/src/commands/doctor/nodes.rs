//! Checks the nodes: counts the living ones, and names the types of ready jobs, the tenants,
//! categories and deployments, and the priorities that none of them takes.

use std::collections::BTreeSet;

use jobwire_core::store::{NodeView, services_of};
use jobwire_core::telemetry::plain;
use jobwire_core::{Store, StoreError};

use super::finding::Findings;
use crate::connect::{has_broker, has_wakes};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// The names of transports without a broker in the rows of nodes: one node, and woken nodes.
const IN_PROCESS: &str = "in-process";
const WAKES: &str = "postgres";

/// Maximum number of types that are named.
const NAMED: i64 = 20;
/// Maximum number of gaps between the priorities of the nodes that are named.
const NAMED_GAPS: usize = 10;

pub(super) async fn examine(settings: &Settings, store: &dyn Store, findings: &mut Findings) {
    if let Err(error) = look(settings, store, findings).await {
        findings.error("nodes", Error::Store(error));
    }
}

async fn look(
    settings: &Settings,
    store: &dyn Store,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let nodes = store.nodes().await?;
    let living: Vec<&NodeView> = nodes.iter().filter(|node| node.lives()).collect();
    if living.is_empty() {
        findings.fine("nodes", "no living node");
        return Ok(());
    }
    let live = output::count(living.len() as u64, "node");
    let versions: BTreeSet<&str> = living
        .iter()
        .map(|node| &*node.membership.version)
        .collect();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        findings.remark(
            "nodes",
            format!("{live} alive, of the versions {}", versions.join(", ")),
            "finish the deployment: nodes of older programs may lack handlers and take no \
             forwarded jobs",
        );
    } else {
        findings.fine("nodes", format!("{live} alive"));
    }
    let with = |transport: &str| {
        let nodes = living
            .iter()
            .filter(|node| node.membership.transport == transport);
        nodes.count() as u64
    };
    let woken = with(WAKES);
    let with_broker = living.len() as u64 - with(IN_PROCESS) - woken;
    if with_broker > 0 && (woken > 0 || has_wakes(settings)) {
        findings.remark(
            "nodes",
            format!(
                "{} alive with a broker, and {woken} without",
                output::count(with_broker, "node")
            ),
            "finish the change of `broker_url`: what one kind creates starts late on the other \
             (docs/operating/no-broker.md)",
        );
    }
    if with_broker > 0 && !has_broker(settings) {
        findings.wrong(
            "nodes",
            format!(
                "{} alive with a broker, and these settings name none",
                output::count(with_broker, "node")
            ),
            "set --broker (JOBWIRE_BROKER_URL) to the broker of the other nodes",
        );
    } else if woken > 0 && !has_broker(settings) {
        findings.wrong(
            "nodes",
            format!(
                "{} alive that PostgreSQL wakes, and these settings are for a node that is alone",
                output::count(woken, "node")
            ),
            "set --broker none (JOBWIRE_BROKER_URL), as on the other nodes",
        );
    }
    let services = services_of(&nodes);
    for gap in services.priority_gaps().into_iter().take(NAMED_GAPS) {
        findings.remark(
            "nodes",
            format!(
                "no living node takes {gap} of the types {}",
                plain::one_line(&gap.types.join(", "), 255)
            ),
            "widen `min_priority` or `max_priority` of a node, or start one for these priorities; \
             `jobwire nodes` shows what each node takes",
        );
    }
    for unserved in store.unserved_types(&services, NAMED).await? {
        let jobs = output::count(unserved.jobs.unsigned_abs(), "job");
        let job_type = plain::one_line(&unserved.job_type, 255);
        if !services.types.contains(&unserved.job_type) {
            findings.remark(
                "nodes",
                format!("{jobs} of type {job_type} ready, and no living node takes that type"),
                "start a node with a handler of this type, or correct the type; `jobwire nodes` shows \
                 what each node takes",
            );
            continue;
        }
        let why = match &*unserved.scopes {
            [] => "their priority".to_owned(),
            scopes => output::scopes(scopes),
        };
        findings.remark(
            "nodes",
            format!(
                "{jobs} of type {job_type} ready, and no living node of that type takes {why}"
            ),
            "start a node of the type with this scope, or add the names to `tenants`, `categories` or \
             `deployments` of one; `jobwire nodes` shows what each node takes",
        );
    }
    Ok(())
}
