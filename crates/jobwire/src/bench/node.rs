//! A node of a bench: it runs jobs that do nothing, and tells when each started.
//!
//! 12 bytes a job over a loopback connection: its number and the microsecond, both big-endian. At the end,
//! how many jobs the sweeper hinted.

use std::time::Duration;

use jobwire_core::{Handlers, Outcome, Running};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::starts::SWEPT;
use super::{Payload, TYPE};
use crate::commands::bench::NodeArgs;
use crate::connect::Database;
use crate::error::Error;
use crate::nodes::NodeHere;
use crate::output;
use crate::settings::Settings;
use crate::signals::Signals;

/// Starts that may wait to be told.
const BUFFER: usize = 100_000;
/// The first line that says so: whoever started this process waits for it.
const READY: &str = "jobwire bench node is ready";

/// The handlers, and where their starts come out.
pub(super) fn handlers() -> (Handlers, mpsc::Receiver<(u32, i64)>) {
    let (starts, started) = mpsc::channel(BUFFER);
    let mut handlers = Handlers::default();
    handlers.add(TYPE, move |job: Running<Payload>| {
        let at = chrono::Utc::now().timestamp_micros();
        let starts = starts.clone();
        async move {
            // Nobody listens any more: the bench has ended.
            let _ = starts.send((job.payload.n, at)).await;
            Ok(Outcome::Done)
        }
    });
    (handlers, started)
}

/// Run until asked to stop.
pub(super) async fn run(settings: &Settings, args: &NodeArgs) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let stream = TcpStream::connect(args.report)
        .await
        .map_err(Error::io("can't reach the bench"))?;
    let (handlers, started) = handlers();
    let (told, swept) = tokio::sync::oneshot::channel();
    let telling = tokio::spawn(tell(stream, started, swept));
    // As in production, where somebody always looks.
    let metrics = crate::http::metrics::install()?;
    let database = Database::open(settings).await?;
    let node = NodeHere::start(settings, &database, handlers).await?;
    output::line(READY)?;
    signals.next().await;
    node.stop().await;
    let _ = told.send(total(&metrics.render(), jobwire_core::metrics::SWEPT));
    // The handlers are gone with the node, so this ends.
    let _ = tokio::time::timeout(Duration::from_secs(5), telling).await;
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
    stream: TcpStream,
    mut started: mpsc::Receiver<(u32, i64)>,
    swept: tokio::sync::oneshot::Receiver<i64>,
) -> std::io::Result<()> {
    let mut stream = BufWriter::new(stream);
    let mut some = Vec::new();
    while started.recv_many(&mut some, 1_024).await > 0 {
        for (n, at) in some.drain(..) {
            stream.write_all(&n.to_be_bytes()).await?;
            stream.write_all(&at.to_be_bytes()).await?;
        }
        stream.flush().await?;
    }
    if let Ok(swept) = swept.await {
        stream.write_all(&SWEPT.to_be_bytes()).await?;
        stream.write_all(&swept.to_be_bytes()).await?;
    }
    stream.shutdown().await
}
