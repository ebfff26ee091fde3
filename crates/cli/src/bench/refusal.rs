//! What can't be measured with these settings, and what to give instead.

use crate::connect::has_broker;
use crate::error::Error;
use crate::settings::Settings;

/// Several nodes need what only a fleet has.
pub(super) fn refuse_lonely(settings: &Settings, nodes: u16) -> Result<(), Error> {
    if nodes > 1 && settings.database_url.scheme() == "sqlite" {
        return Err(Error::Usage(format!(
            "--nodes {nodes}: SQLite serves one node; give --database postgres://…"
        )));
    }
    if nodes > 1 && !has_broker(settings) {
        return Err(Error::Usage(format!(
            "--nodes {nodes}: several nodes need a broker that all of them hear; give --broker amqps://… or kafka://…"
        )));
    }
    Ok(())
}

/// Jobs that are created while nodes run come from another process than these.
pub(super) fn refuse_embedded(settings: &Settings) -> Result<(), Error> {
    if has_broker(settings) {
        return Ok(());
    }
    Err(Error::Usage(
        "jobs that arrive come from another process than the nodes: give --broker amqps://… or kafka://…".to_owned(),
    ))
}
