//! Checks the nodes: counts the living ones and the ready jobs that none of them serves.

use std::collections::BTreeSet;

use jobwire_core::store::{NodeView, services_of};
use jobwire_core::{Store, StoreError};

use super::finding::Findings;
use crate::error::Error;
use crate::output;

pub(super) async fn examine(store: &dyn Store, findings: &mut Findings) {
    if let Err(error) = look(store, findings).await {
        findings.error("nodes", Error::Store(error));
    }
}

async fn look(store: &dyn Store, findings: &mut Findings) -> Result<(), StoreError> {
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
            "finish the deployment: nodes of older programs may lack handlers and take no forwarded jobs",
        );
    } else {
        findings.fine("nodes", format!("{live} alive"));
    }
    let unserved = store.sweepable(&services_of(&nodes)).await?.unserved;
    if unserved > 0 {
        findings.remark(
            "nodes",
            format!(
                "{} ready of types, deployments, categories or tenants that no living node takes",
                output::count(unserved.unsigned_abs(), "job")
            ),
            "compare `jobwire nodes` with `jobwire jobs list`; they start when a node takes them",
        );
    }
    Ok(())
}
