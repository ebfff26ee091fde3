//! Declaring the periodic jobs of a node at its start.

use crate::job::NodeId;
use crate::job::periodic::{Declared, PeriodicJob};
use crate::job::sealed::Encryption;
use crate::producer::periodic;
use crate::store::{Result, Store};
use crate::telemetry::plain;

/// Declares periodic jobs, and logs the changes.
pub(super) async fn declare(
    store: &dyn Store,
    node: NodeId,
    encryption: Option<&Encryption>,
    jobs: &[PeriodicJob],
) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let declared = periodic::declare(store, encryption, jobs).await?;
    for (job, declared) in jobs.iter().zip(declared) {
        let name = plain::one_line(job.name(), 256);
        match declared {
            Declared::Created => tracing::info!(%node, name, "a periodic job was created"),
            Declared::Changed => tracing::info!(%node, name, "a periodic job was changed"),
            Declared::Outdated => tracing::info!(
                %node, name, version = job.version,
                "a periodic job has a larger version in the database, which is kept"
            ),
            Declared::Same => {}
        }
    }
    Ok(())
}
