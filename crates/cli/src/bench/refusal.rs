//! Refuses workloads that can't be measured with the given settings.

use crate::connect::has_broker;
use crate::error::Error;
use crate::settings::Settings;

/// Refuses several nodes on SQLite or without a broker.
pub(super) fn refuse_lonely(settings: &Settings, nodes: u16) -> Result<(), Error> {
    if nodes > 1 && settings.database_url.scheme() == "sqlite" {
        return Err(Error::Usage(format!(
            "--nodes {nodes}: SQLite serves one node; give --database postgres://…"
        )));
    }
    if nodes > 1 && !has_broker(settings) {
        return Err(Error::Usage(format!(
            "--nodes {nodes}: several nodes need a broker that all of them use; give --broker \
             amqps://… or kafka://…, or --broker none with --database postgres://…"
        )));
    }
    Ok(())
}

/// Refuses to create jobs while nodes run without a broker, because nodes and creator are different
/// processes.
pub(super) fn refuse_embedded(settings: &Settings) -> Result<(), Error> {
    if has_broker(settings) {
        return Ok(());
    }
    Err(Error::Usage(
        "this workload creates jobs in another process than the nodes, which needs a broker; give \
         --broker amqps://… or kafka://…, or --broker none with --database postgres://…"
            .to_owned(),
    ))
}
