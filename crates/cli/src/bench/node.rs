//! A node of a bench: it runs jobs that do nothing, and tells when each started ([`super::wire`]).

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use jobwire_core::{Handlers, Hint, JobFilter, JobState, Lane, Outcome, Running, Transport};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::wire::Told;
use super::{EXCLUSIVE, Payload, TYPE, now};
use crate::commands::bench::NodeArgs;
use crate::connect::{self, Database};
use crate::error::Error;
use crate::handlers::hold_by_row;
use crate::nodes::NodeHere;
use crate::output;
use crate::settings::Settings;
use crate::signals::Signals;

/// What may wait to be told.
const BUFFER: usize = 100_000;
/// Between two messages to the bench: one for each start would cost more than the job does.
const PAUSE: Duration = Duration::from_millis(5);
/// The first line that says so: whoever started this process waits for it.
const READY: &str = "jobwire bench node is ready";

/// The handlers, and where what they tell comes out. Nobody may listen any more: the bench has ended.
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
            // Whoever else thinks that it holds the instance may begin here.
            tokio::task::yield_now().await;
            let _ = tell.send(Told::Ended { n, at: now() }).await;
            Ok(Outcome::Done)
        }
    });
    (handlers, told)
}

/// Run until asked to stop.
pub(super) async fn run(settings: &Settings, args: &NodeArgs) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let stream = TcpStream::connect(args.report)
        .await
        .map_err(Error::io("can't reach the bench"))?;
    let (mut handlers, told) = handlers();
    hold_by_row(&mut handlers, &settings.row_lock_types)?;
    let (last, swept) = oneshot::channel();
    let telling = tokio::spawn(tell(stream, told, swept));
    // As in production, where somebody always looks.
    let metrics = crate::http::metrics::install()?;
    let database = Database::open(settings).await?;
    let transport = connect::transport(settings).await?;
    if args.adopt {
        adopt(&database, &*transport).await?;
    }
    if args.held {
        output::line(READY)?;
        // Nothing is ever written there.
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
    // The handlers are gone with the node, so this ends.
    let _ = tokio::time::timeout(Duration::from_secs(5), telling).await;
    Ok(())
}

/// Hints within a process go with the process that created the jobs. Here that was another one, so they are given
/// to this one, as far as its lanes hold them.
async fn adopt(database: &Database, transport: &dyn Transport) -> Result<(), Error> {
    let waiting = JobFilter {
        states: vec![JobState::Executable],
        limit: i64::MAX,
        ..JobFilter::default()
    };
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

/// The sum of a counter over its labels, in what Prometheus would be told.
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
