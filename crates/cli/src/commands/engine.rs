//! `jobwire engine`: runs the jobs of a process engine in its own database.
//!
//! ```text
//! jobwire doctor --engine-database URL --engine URL     changes nothing
//! jobwire engine shadow                                watches the waits of jobs; changes nothing
//! jobwire engine init                                   creates the schema jobwire_engine
//! jobwire engine run                                    a node; start as many as you like
//! jobwire engine jobs list | show | retry | delete | execute
//! jobwire engine sweep                                  shows the next rescues; changes nothing
//! jobwire engine release --yes                          gives all jobs back to the engine
//! ```

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use jobwire_core::store::TapMode;
use jobwire_core::{InProcessTransport, Node, NodeOptions, Transport};
use jobwire_engines::shadow::Durations;
use jobwire_engines::{Bridge, EndpointStore, EngineStore};

use super::{jobs, sweep};
use crate::connect;
use crate::error::{self, Error};
use crate::settings::{EngineType, Settings, remarks};
use crate::signals::Signals;
use crate::{http, output};

/// Arguments.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Check the engine's tables, and create the schema `jobwire_engine` beside them
    Init,
    /// Watch how long the engine's jobs wait for their start, and estimate the same over Jobwire;
    /// changes nothing
    Shadow {
        /// The time to watch, in seconds: at most an hour
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
        seconds: u64,
    },
    /// Start a node that runs the engine's jobs
    Run,
    /// List, count, show, retry, delete and execute the engine's jobs
    #[command(
        after_help = "The engine changes its jobs by itself, and keeps their history. So of these \
                      commands `list`, `count`, `show`, `retry`, `delete` and `execute` work; the \
                      others are for the jobs of Jobwire (docs/engines/operating.md)."
    )]
    Jobs(Box<jobs::JobsArgs>),
    /// Show which of the engine's jobs would be rescued or hinted again now, by class; changes
    /// nothing
    Sweep(sweep::LookArgs),
    /// Clear all locks of Jobwire and remove the schema `jobwire_engine`
    Release {
        /// Confirm; stop every node before
        #[arg(long)]
        yes: bool,
    },
}

impl EngineArgs {
    pub(crate) fn runs_a_node(&self) -> bool {
        matches!(self.action, Action::Run)
    }
}

pub(crate) async fn run(settings: Settings, args: EngineArgs) -> Result<(), Error> {
    match args.action {
        Action::Init => init(&settings).await,
        Action::Shadow { seconds } => shadow(&settings, Duration::from_secs(seconds)).await,
        Action::Run => serve(settings).await,
        Action::Jobs(args) => operate(&settings, *args).await,
        Action::Sweep(args) => dry_run(&settings, args).await,
        Action::Release { yes } => release(&settings, yes).await,
    }
}

/// Connects to the engine that the settings name.
pub(crate) async fn connect(settings: &Settings) -> Result<Arc<dyn Bridge>, Error> {
    if !settings.has_engine() {
        return Err(Error::Usage(
            "no engine is named; give --engine-database and --engine, or `engine_database_url` and \
             `engine_url` in jobwire.toml"
                .to_owned(),
        ));
    }
    let options = settings
        .engine_options()
        .map_err(|(setting, problem)| Error::Usage(format!("`{setting}` {problem}")))?;
    if settings.engine_has_no_database() {
        return Ok(Arc::new(match settings.engine_type {
            EngineType::Flowable => EndpointStore::flowable(options)?,
            EngineType::Activiti => EndpointStore::activiti(options)?,
            EngineType::Camunda => EndpointStore::camunda(options)?,
        }));
    }
    let url = &settings.engine_database_url;
    let connected = match settings.engine_type {
        EngineType::Flowable => EngineStore::flowable(url.expose(), options).await,
        EngineType::Camunda => EngineStore::camunda(url.expose(), options).await,
        EngineType::Activiti => EngineStore::activiti(url.expose(), options).await,
    };
    let store = connected.map_err(|source| Error::Database {
        setting: error::ENGINE,
        url: url.to_string(),
        source,
    })?;
    Ok(Arc::new(store))
}

async fn init(settings: &Settings) -> Result<(), Error> {
    let store = connect(settings).await?;
    store.probe().await?;
    let remark = store.prepare(settings.engine_tap() != TapMode::Off).await?;
    let name = store.options().name.clone();
    store.close().await;
    if let Some(remark) = remark {
        output::line(format_args!(
            "remark {remark}\n       -> until then new jobs are looked for every second"
        ))?;
    }
    output::line(format_args!(
        "{} `{name}`; next: jobwire engine run",
        if settings.engine_has_no_database() {
            "the endpoint answers, and nothing has to be created for"
        } else {
            "the schema `jobwire_engine` is ready beside the tables of"
        }
    ))
}

async fn shadow(settings: &Settings, watched: Duration) -> Result<(), Error> {
    let store = connect(settings).await?;
    store.probe().await?;
    let report = store.shadow(watched).await;
    store.close().await;
    let report = report?;
    let of = |durations: &Durations| durations.median_and_p99().map(both);
    let seconds = report.watched.as_secs_f64();
    match of(&report.waits) {
        Some(waits) => output::line(format_args!(
            "watched for {seconds:.0} s: {} jobs started after {waits}",
            report.waits.count()
        ))?,
        None => output::line(format_args!("watched for {seconds:.0} s: no job started"))?,
    }
    if let Some(waits) = of(&report.waiting) {
        output::line(format_args!(
            "{} jobs still wait, for {waits} so far",
            report.waiting.count()
        ))?;
    }
    if report.is_cut {
        output::line(format_args!(
            "more jobs waited than are read at once, so some starts are not counted"
        ))?;
    }
    if let Some(problem) = &report.unreachable {
        output::line(format_args!("remark {problem}"))?;
    }
    match report.over_jobwire() {
        Some(waits) => output::line(format_args!(
            "over Jobwire about {}, while a node has a free slot: a hint (1 ms), two statements \
             ({} each) and a request to the engine ({})",
            both(waits),
            of(&report.statements).unwrap_or_default(),
            of(&report.requests).unwrap_or_default()
        )),
        None => output::line(format_args!(
            "no estimate over Jobwire: the engine did not answer"
        )),
    }
}

/// Formats a median and a 99th percentile.
fn both([median, p99]: [Duration; 2]) -> String {
    let one = |time: Duration| match time.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{seconds:.1} s"),
    };
    format!("{} (p50) and {} (p99)", one(median), one(p99))
}

async fn operate(settings: &Settings, args: jobs::JobsArgs) -> Result<(), Error> {
    jobs::check_for_engine(&args)?;
    let store = connect(settings).await?;
    store.probe().await?;
    let jobs = jobs::Jobs {
        settings,
        place: jobs::Place::Engine,
        database: None,
        handlers: store.handlers()?,
        options: options(settings, &*store),
        store: store.clone(),
    };
    let result = jobs.act(args.action).await;
    store.close().await;
    result
}

async fn dry_run(settings: &Settings, args: sweep::LookArgs) -> Result<(), Error> {
    let store = connect(settings).await?;
    store.check().await?.ready()?;
    let types: Arc<[String]> = store
        .types()
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    let served = (types, vec![store.options().lane.clone()]);
    let result = sweep::look(settings, &*store, served, &args).await;
    store.close().await;
    result
}

/// Returns the options of a node for this engine.
fn options(settings: &Settings, store: &dyn Bridge) -> NodeOptions {
    let tap = if store.has_tap() {
        settings.engine_tap()
    } else {
        TapMode::Off
    };
    settings
        .node_options()
        .lanes(vec![store.options().lane.clone().into()])
        .tap(tap)
        .concurrency(store.most_slots())
        .slot_limit(Some(store.slot_limit()))
        .elastic(None)
}

async fn release(settings: &Settings, yes: bool) -> Result<(), Error> {
    if !yes {
        return Err(Error::Usage(
            "releasing the engine clears all locks of Jobwire and removes its rows, and the schema \
             `jobwire_engine` with those of the last engine; stop every node, and pass --yes"
                .to_owned(),
        ));
    }
    let store = connect(settings).await?;
    let jobs = store.release_engine().await?;
    store.close().await;
    output::line(format_args!(
        "{} released; nothing of Jobwire is left for this engine in the database",
        output::count(jobs, "lock")
    ))
}

/// The parts that are stopped at the end.
struct Started {
    node: Node,
    store: Arc<dyn Bridge>,
    transport: Arc<dyn Transport>,
}

async fn serve(settings: Settings) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let started = tokio::select! {
        started = start(&settings) => started?,
        () = signals.next() => return Ok(()),
    };
    signals.next().await;
    tokio::select! {
        () = stop(started) => Ok(()),
        () = signals.next() => Err(Error::Failed(
            "stopped at once by a second signal; other nodes take over the running jobs when their \
             locks end".to_owned(),
        )),
    }
}

async fn start(settings: &Settings) -> Result<Started, Error> {
    remarks::tell(&settings.remarks_of_engine());
    let listener = http::listen(settings).await?;
    let metrics = http::metrics::install()?;
    let store = connect(settings).await?;
    let transport: Arc<dyn Transport> = if connect::has_wakes(settings) {
        // Wakes travel over the database of Jobwire's own jobs.
        Arc::new(InProcessTransport::new())
    } else {
        connect::transport(settings).await?
    };
    let node = Node::on(store.clone(), transport.clone())
        .handlers(store.handlers()?)
        .options(options(settings, &*store))
        .start()
        .await?;
    let address = listener.as_ref().and_then(|l| l.local_addr().ok());
    if let Some(listener) = listener {
        let endpoints = http::Node {
            health: node.watch(),
            metrics,
            database: None,
        };
        tokio::spawn(http::serve(listener, endpoints));
    }
    output::line(format_args!(
        "jobwire node {} is ready: engine {} in {}, broker {}, http {}",
        node.id(),
        settings.engine_url,
        if settings.engine_has_no_database() {
            "its own database, over the endpoint".to_owned()
        } else {
            settings.engine_database_url.to_string()
        },
        settings.broker_url,
        address.map_or("off".to_owned(), |a| format!("http://{a}")),
    ))?;
    Ok(Started {
        node,
        store,
        transport,
    })
}

async fn stop(started: Started) {
    started.node.stop().await;
    started.transport.close(Duration::from_secs(5)).await;
    started.store.close().await;
}
