//! `jobwire run`: runs a node with the built-in handlers.
//!
//! The broker may be away at the start: the node waits for it, and `/readyz` reports it. The
//! database must be reachable and have the right schema. SIGTERM or Ctrl-C stops the node in two
//! phases (see [`jobwire_core::node`]). A second signal ends the process at once; other nodes take
//! over its jobs when their leases end.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use jobwire_core::{Handlers, Node, Store, Transport};

use crate::commands::periodic;
use crate::connect::{self, Database};
use crate::error::Error;
use crate::handlers;
use crate::settings::{Settings, remarks};
use crate::signals::Signals;
use crate::{http, output};

/// Arguments: all of them are settings.
#[derive(Debug, Args)]
pub struct RunArgs {}

/// Wraps a node's store.
pub type StoreWrapper = Box<dyn FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send>;
/// Wraps a node's transport.
pub type TransportWrapper = Box<dyn FnOnce(Arc<dyn Transport>) -> Arc<dyn Transport> + Send>;

/// The additions of a custom program to the node that `jobwire run` starts. Settings, signals and
/// endpoints stay the same.
#[derive(Default)]
pub struct Additions {
    /// Additional handlers. A handler of the same type replaces a built-in one.
    pub handlers: Handlers,
    /// A wrapper of the node's store. Default: none.
    pub store: Option<StoreWrapper>,
    /// A wrapper of the node's transport. Default: none.
    pub transport: Option<TransportWrapper>,
}

/// The parts that are stopped at the end.
struct Started {
    node: Node,
    database: Database,
    transport: Arc<dyn Transport>,
}

pub(crate) async fn run(settings: Settings, _: RunArgs) -> Result<(), Error> {
    run_with(settings, Additions::default()).await
}

/// Runs a node with additions to the built-in handlers until a signal ends it.
///
/// # Errors
/// Fails like `jobwire run`: if the settings are invalid, the database can't be used, or a second
/// signal came.
pub async fn run_with(settings: Settings, additions: Additions) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let started = tokio::select! {
        started = start(&settings, additions) => started?,
        () = signals.next() => return Ok(()),
    };
    signals.next().await;
    tokio::select! {
        () = stop(started) => Ok(()),
        () = signals.next() => Err(Error::Failed(
            "stopped at once by a second signal; other nodes take over the running jobs when their \
             leases end".to_owned(),
        )),
    }
}

async fn start(settings: &Settings, additions: Additions) -> Result<Started, Error> {
    remarks::tell(&settings.remarks());
    let periodic = match &settings.periodic_jobs {
        Some(file) => {
            periodic::read(file).map_err(|error| error.of_setting(settings, "periodic_jobs"))?
        }
        None => Vec::new(),
    };
    let listener = http::listen(settings).await?;
    let metrics = http::metrics::install()?;
    let database = Database::open(settings).await?;
    let mut transport = connect::transport(settings).await?;
    if let Some(wrap) = additions.transport {
        transport = wrap(transport);
    }
    let mut store = database.store();
    if let Some(wrap) = additions.store {
        store = wrap(store);
    }
    let mut handlers = handlers::configured(settings)?;
    handlers.extend(&additions.handlers);
    handlers::apply(&mut handlers, settings)?;
    let mut builder = Node::on(store, transport.clone())
        .handlers(handlers)
        .options(settings.node_options());
    for job in periodic {
        builder = builder.periodic(job);
    }
    let node = builder.start().await?;
    let address = listener.as_ref().and_then(|l| l.local_addr().ok());
    if let Some(listener) = listener {
        let endpoints = http::Node {
            health: node.watch(),
            metrics,
            database: Some(database.clone()),
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
