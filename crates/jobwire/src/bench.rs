//! `jobwire bench`: how quick is it here, on this machine, with this database and broker?
//!
//! * `drain`: jobs that wait already, with their hints in the broker; nodes start and work them off.
//! * `steady`: jobs arrive at a fixed rate, each in a transaction of its own, whether or not the one before
//!   has been committed; so a stall counts against every job that should have arrived in it (no coordinated
//!   omission).
//!
//! The nodes are processes of this same program and tell over a loopback socket when each job
//! started: nothing is added to the database's work. Every run is checked: each job was started exactly
//! once, and none is left. Figures of one run compare with figures of another run only on the same idle
//! machine; compare ratios.

mod drain;
pub(crate) mod node;
mod percentiles;
mod report;
mod resources;
mod starts;
mod steady;

use jobwire_core::{JobFilter, NewJob};
use serde::{Deserialize, Serialize};

use crate::commands::bench::{BenchArgs, Workload};
use crate::connect::Database;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;
use crate::signals::Signals;

/// The handler type of a bench's jobs.
const TYPE: &str = "bench";

/// The payload: which job of the run it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Payload {
    n: u32,
}

fn job(n: u32) -> NewJob {
    NewJob::of(TYPE, &Payload { n })
}

/// Run a workload and print what was measured.
///
/// # Errors
/// What kept it from running, or a run that was not right.
pub async fn run(settings: Settings, args: BenchArgs) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let measuring = async {
        match &args.workload {
            Workload::Drain(drain) => drain::run(&settings, drain).await,
            Workload::Steady(steady) => steady::run(&settings, steady).await,
            Workload::Node(args) => {
                node::run(&settings, args).await?;
                Ok(None)
            }
        }
    };
    // A node stops by itself when it is told to.
    if let Workload::Node(_) = args.workload {
        return measuring.await.map(drop);
    }
    let report = tokio::select! {
        report = measuring => report?,
        () = signals.next() => return Err(Error::Failed("the bench was stopped".to_owned())),
    };
    match report {
        Some(report) if args.json => output::json(&report),
        Some(report) => report.print(),
        None => Ok(()),
    }
}

/// A database that is ready for a bench: one that holds nobody's jobs.
async fn open(settings: &Settings) -> Result<Database, Error> {
    let database = Database::connect(settings).await?;
    database.migrate().await?;
    let waiting = database.store().count(&JobFilter::default()).await?;
    if waiting > 0 {
        return Err(Error::Usage(format!(
            "the database holds {waiting} jobs; name an empty one with --database, its jobs would be run"
        )));
    }
    Ok(database)
}
