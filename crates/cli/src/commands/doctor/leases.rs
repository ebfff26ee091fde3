//! Names the leases that last long and whose holder is no living node: nothing takes their jobs over before.

use std::collections::HashSet;
use std::time::Duration;

use jobwire_core::store::{Holder, NodeView};
use jobwire_core::{Store, StoreError};

use super::finding::Findings;
use crate::error::Error;
use crate::output;

/// Maximum number of holders that are read.
const READ: i64 = 1_000;
/// Maximum number of holders that are named.
const NAMED: usize = 10;
/// The rest of a lease from which it is named. The lease of a node that died is shorter by default.
const LONG: Duration = Duration::from_secs(60);

pub(super) async fn examine(store: &dyn Store, findings: &mut Findings) {
    match unknown(store).await {
        Ok(holders) => holders
            .iter()
            .take(NAMED)
            .for_each(|holder| report(holder, findings)),
        Err(error) => findings.error("leases", Error::Store(error)),
    }
}

/// Returns the holders of long leases that are no living nodes.
async fn unknown(store: &dyn Store) -> Result<Vec<Holder>, StoreError> {
    let mut holders = store.holders(READ).await?;
    holders.retain(|holder| holder.remaining > LONG);
    if holders.is_empty() {
        return Ok(holders);
    }
    let nodes = store.nodes().await?;
    let living = nodes.iter().filter(|node| node.lives());
    let living: HashSet<_> = living.map(|node: &NodeView| node.membership.id).collect();
    holders.retain(|holder| !living.contains(&holder.owner));
    Ok(holders)
}

fn report(holder: &Holder, findings: &mut Findings) {
    let Holder { owner, jobs, .. } = holder;
    findings.remark(
        "leases",
        format!(
            "{} locked for up to {} s from now by {owner}, which is no living node; no node takes them over \
             before",
            output::count(*jobs, "job"),
            holder.remaining.as_secs()
        ),
        format!(
            "if that node is dead: `jobwire jobs list --lock-owner {owner}` lists them, `jobwire jobs unlock ID` \
             frees one"
        ),
    );
}
