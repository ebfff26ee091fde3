//! `jobwire run`: a node with the built-in handlers.
//!
//! The broker may be away at the start: the node waits for it, and `/readyz` says so. The database must
//! be there and fit. SIGTERM or Ctrl-C stops in two phases (see [`jobwire_core::node`]); a second one
//! ends the process at once, and other nodes take its jobs over when their leases end.

use std::time::Duration;

use clap::Args;
use jobwire_core::Node;

use crate::connect::{self, Database};
use crate::error::Error;
use crate::handlers::{self, AllowList, BuiltIn};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::{http, output};

/// Arguments: all of them are settings.
#[derive(Debug, Args)]
pub struct RunArgs {}

/// What has to be stopped at the end.
struct Started {
    node: Node,
    database: Database,
    transport: std::sync::Arc<dyn jobwire_core::Transport>,
}

pub(crate) async fn run(settings: Settings, _: RunArgs) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let started = tokio::select! {
        started = start(&settings) => started?,
        () = signals.next() => return Ok(()),
    };
    signals.next().await;
    tokio::select! {
        () = stop(started) => Ok(()),
        () = signals.next() => Err(Error::Failed(
            "stopped at once by a second signal; other nodes take the running jobs over when their leases end".to_owned(),
        )),
    }
}

/// The built-in handlers, as the settings want them.
///
/// # Errors
/// A host that can't be allowed.
pub fn built_in(settings: &Settings) -> Result<jobwire_core::Handlers, Error> {
    let http_allow_hosts = AllowList::parse(&settings.http_allow_hosts)
        .map_err(|bad| Error::Usage(bad.to_string()))?;
    Ok(handlers::built_in(&BuiltIn { http_allow_hosts }))
}

async fn start(settings: &Settings) -> Result<Started, Error> {
    let listener = http::listen(settings).await?;
    let metrics = http::metrics::install()?;
    let database = Database::open(settings).await?;
    let transport = connect::transport(settings).await?;
    let node = Node::on(database.store(), transport.clone())
        .handlers(built_in(settings)?)
        .options(settings.node_options())
        .start()
        .await?;
    let address = listener.as_ref().and_then(|l| l.local_addr().ok());
    if let Some(listener) = listener {
        let endpoints = http::Node {
            health: node.watch(),
            metrics,
            database: database.clone(),
        };
        tokio::spawn(http::serve(listener, endpoints));
    }
    output::line(format_args!(
        "jobwire node {} is ready: database {}, broker {}, http {}",
        node.id(),
        settings.database_url,
        settings.broker_url,
        address.map_or("off".to_owned(), |a| format!("http://{a}")),
    ))?;
    Ok(Started {
        node,
        database,
        transport,
    })
}

async fn stop(started: Started) {
    started.node.stop().await;
    started.transport.close(Duration::from_secs(5)).await;
    started.database.store().close().await;
}
