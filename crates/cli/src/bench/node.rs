//! A node of a bench: it runs jobs without work and reports the start of each ([`super::wire`]).

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use jobwire_core::{Handlers, Hint, JobQuery, JobState, Lane, Outcome, Running, Transport};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::wire::Told;
use super::{EXCLUSIVE, Payload, TYPE, now};
use crate::connect::{self, Database};
use crate::error::Error;
use crate::handlers::apply_and_require;
use crate::nodes::NodeHere;
use crate::output;
use crate::settings::Settings;
use crate::signals::Signals;

/// Arguments of a node of a bench.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Address that receives the report of each start
    #[arg(long, value_name = "ADDRESS")]
    pub report: SocketAddr,
    /// Start when the input ends
    #[arg(long)]
    pub held: bool,
    /// Start with the hints of all waiting jobs
    #[arg(long)]
    pub adopt: bool,
}

/// Maximum number of reports that wait to be sent.
const BUFFER: usize = 100_000;
/// The time between two messages to the bench; a message for each start would cost more than the
/// job.
const PAUSE: Duration = Duration::from_millis(5);
/// The line that the parent process waits for.
const READY: &str = "jobwire bench node is ready";

/// Returns the handlers and the channel of their reports. Errors of the channel are ignored, since
/// the bench may have ended.
fn handlers() -> (Handlers, mpsc::Receiver<Told>) {
    let (tell, told) = mpsc::channel(BUFFER);
    let mut handlers = Handlers::default();
    let starts = tell.clone();
    handlers.add(TYPE, move |job: Running<Payload>| {
        let (n, at) = (job.payload.n, now());
        let starts = starts.clone();
        async move {
            let _ = starts.send(Told::Started { n, at }).await;
            Ok(Outcome::Done)
        }
    });
    handlers.add(EXCLUSIVE, move |job: Running<Payload>| {
        let (n, at) = (job.payload.n, now());
        let tell = tell.clone();
        async move {
            let _ = tell.send(Told::Started { n, at }).await;
            // Yields, so that another job that wrongly holds the instance could begin here.
            tokio::task::yield_now().await;
            let _ = tell.send(Told::Ended { n, at: now() }).await;
            Ok(Outcome::Done)
        }
    });
    (handlers, told)
}

/// Runs until asked to stop.
pub(super) async fn run(settings: &Settings, args: &NodeArgs) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let stream = TcpStream::connect(args.report)
        .await
        .map_err(Error::io("can't reach the bench"))?;
    let (mut handlers, told) = handlers();
    // Other settings may name types of `jobwire run`.
    apply_and_require(&mut handlers, settings, &["row_lock_types", "type_limits"])?;
    let (last, swept) = oneshot::channel();
    let telling = tokio::spawn(tell(stream, told, swept));
    // Records metrics, as in production.
    let metrics = crate::http::metrics::install()?;
    let database = Database::open(settings).await?;
    let transport = connect::transport(settings).await?;
    if args.adopt {
        adopt(&database, &*transport).await?;
    }
    if args.held {
        output::line(READY)?;
        // The input never has data. The read returns when it ends.
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
        let _ = ended.await;
    }
    let node = NodeHere::on(transport, settings, &database, handlers).await?;
    if !args.held {
        output::line(READY)?;
    }
    signals.next().await;
    node.stop().await;
    let _ = last.send(total(
        &metrics.render(),
        jobwire_core::telemetry::metrics::SWEPT,
    ));
    // The handlers are dropped with the node, so the task ends.
    let _ = tokio::time::timeout(Duration::from_secs(5), telling).await;
    Ok(())
}

/// Publishes hints for all waiting jobs. In-process hints exist only in the process that created
/// the jobs, which was another one. Hints that the lanes can't hold are dropped.
async fn adopt(database: &Database, transport: &dyn Transport) -> Result<(), Error> {
    let waiting = JobQuery::default()
        .states([JobState::Executable])
        .limit(i64::MAX);
    let mut lanes: BTreeMap<Lane, Vec<Hint>> = BTreeMap::new();
    for job in database.store().find(&waiting).await? {
        let hint = Hint {
            instance: job.process_instance.filter(|_| job.exclusive),
            ..Hint::new(job.id)
        };
        lanes.entry(job.lane).or_default().push(hint);
    }
    let publisher = transport.publisher();
    for (lane, hints) in lanes {
        publisher
            .publish(&lane, hints)
            .await
            .map_err(|error| Error::Failed(format!("hints can't be queued: {error}")))?;
    }
    Ok(())
}

/// Returns the sum of a counter over its labels, from the text for Prometheus.
fn total(metrics: &str, name: &str) -> i64 {
    let samples = metrics.lines().filter(|line| line.starts_with(name));
    samples
        .filter_map(|line| line.rsplit(' ').next()?.parse::<i64>().ok())
        .sum()
}

async fn tell(
    mut stream: TcpStream,
    mut told: mpsc::Receiver<Told>,
    swept: oneshot::Receiver<i64>,
) -> std::io::Result<()> {
    let (mut some, mut wire) = (Vec::new(), Vec::new());
    while told.recv_many(&mut some, BUFFER).await > 0 {
        for told in some.drain(..) {
            told.write(&mut wire);
        }
        stream.write_all(&wire).await?;
        wire.clear();
        tokio::time::sleep(PAUSE).await;
    }
    if let Ok(jobs) = swept.await {
        Told::Swept { jobs }.write(&mut wire);
        stream.write_all(&wire).await?;
    }
    stream.shutdown().await
}
