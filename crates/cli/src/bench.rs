//! `jobwire bench`: how quick is it here, on this machine, with this database and broker?
//!
//! * `drain`: jobs that wait already, with their hints in the broker; nodes start and work them off.
//! * `steady`: jobs arrive at a fixed rate, each in a transaction of its own, whether or not the one before
//!   has been committed; so a stall counts against every job that should have arrived in it (no coordinated
//!   omission).
//! * `burst`: many jobs are committed at once while the nodes idle.
//! * `continuous`: jobs are created as fast as they can be, and run meanwhile.
//! * `timers`: jobs are due at one moment, or spread over some seconds.
//! * `exclusive`: jobs of process instances, one at a time and in order.
//! * `backlog`: the first jobs of backlogs of several sizes.
//! * `fleet`: the same load for several numbers of nodes.
//! * `idle`: nodes that have nothing to do.
//!
//! The nodes are processes of this same program and tell over a loopback socket when each job
//! started: nothing is added to the database's work. Every run is checked: each job was started exactly
//! once, and none is left. Figures of one run compare with figures of another run only on the same idle
//! machine; compare ratios.
//!
//! | file | |
//! | --- | --- |
//! | `run.rs` | one run: what all workloads have in common |
//! | `clients.rs`, `plan.rs` | who creates the jobs; which, and when |
//! | `arriving.rs` | creating while nodes run |
//! | `node.rs`, `wire.rs` | a node of the bench; what it tells |
//! | `starts.rs`, `seen.rs` | listening to the nodes; what was told |
//! | `refusal.rs`, `check.rs` | what can't be measured; whether a run was right |
//! | `resources.rs` | what a run cost, put together from the next two lines |
//! | `observer.rs`, `rows.rs` | the database's own counters; its row versions |
//! | `groups.rs`, `processors.rs` | which processes belong to whom; their processor time |
//! | `percentiles.rs`, `report.rs`, `series.rs` | what it showed |

mod arriving;
mod backlog;
mod burst;
mod check;
mod clients;
mod continuous;
mod drain;
mod exclusive;
mod fleet;
mod groups;
mod idle;
pub(crate) mod node;
mod observer;
mod percentiles;
mod plan;
mod processors;
mod refusal;
mod report;
mod resources;
mod rows;
mod run;
mod seen;
mod series;
mod starts;
mod steady;
mod timers;
mod wire;

use std::sync::Arc;

use jobwire_core::NewJob;
use serde::{Deserialize, Serialize};

use crate::commands::bench::{BenchArgs, Workload};
use crate::error::Error;
use crate::settings::Settings;
use crate::signals::Signals;
use series::{By, Series};

/// The handler type of a bench's jobs.
const TYPE: &str = "bench";
/// That of its exclusive jobs, whose end is told too.
const EXCLUSIVE: &str = "bench-exclusive";
/// The most jobs of a run: what is known of each is kept in memory.
const MOST_JOBS: u32 = 20_000_000;

/// The payload: which job of the run it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Payload {
    n: u32,
}

/// Makes a run's jobs, by their number.
type Make = Arc<dyn Fn(u32) -> NewJob + Send + Sync>;

fn make(job: impl Fn(u32) -> NewJob + Send + Sync + 'static) -> Make {
    Arc::new(job)
}

fn job(n: u32) -> NewJob {
    NewJob::of(TYPE, &Payload { n })
}

/// In microseconds, by the clock that all processes of a machine share.
fn now() -> i64 {
    chrono::Utc::now().timestamp_micros()
}

/// Run a workload and print what was measured.
///
/// # Errors
/// What kept it from running, or a run that was not right.
pub async fn run(settings: Settings, args: BenchArgs) -> Result<(), Error> {
    // A node stops by itself when it is told to.
    if let Workload::Node(args) = &args.workload {
        return node::run(&settings, args).await;
    }
    let mut signals = Signals::listen()?;
    tokio::select! {
        measured = measure(&settings, &args) => measured,
        () = signals.next() => Err(Error::Failed("the bench was stopped".to_owned())),
    }
}

async fn measure(settings: &Settings, args: &BenchArgs) -> Result<(), Error> {
    let json = args.json;
    let report = match &args.workload {
        Workload::Drain(args) => drain::run(settings, args).await?,
        Workload::Steady(args) => steady::run(settings, args).await?,
        Workload::Burst(args) => burst::run(settings, args).await?,
        Workload::Continuous(args) => continuous::run(settings, args).await?,
        Workload::Timers(args) => timers::run(settings, args).await?,
        Workload::Exclusive(args) => exclusive::run(settings, args).await?,
        Workload::Backlog(args) => {
            let mut series = Series::new(By::Waiting, json);
            backlog::run(settings, args, &mut series).await?;
            return series.close();
        }
        Workload::Fleet(args) => {
            let mut series = Series::new(By::Nodes, json);
            fleet::run(settings, args, &mut series).await?;
            return series.close();
        }
        Workload::Idle(args) => return idle::run(settings, args).await?.show(json),
        Workload::Node(args) => return node::run(settings, args).await,
    };
    report.show(json)
}
