//! `jobwire bench`: measures throughput and latency on this machine, database and broker.
//!
//! * `drain`: jobs wait with their hints in the broker; nodes start and run them.
//! * `steady`: jobs arrive at a fixed rate, each in its own transaction, even if the previous one
//!   has not been committed. So a stall counts for every job that should have arrived during it (no
//!   coordinated omission).
//! * `burst`: many jobs are committed at once while the nodes idle.
//! * `continuous`: jobs are created as fast as possible and run meanwhile.
//! * `timers`: jobs are due at one moment, or spread over some seconds.
//! * `exclusive`: jobs of process instances, one at a time and in order.
//! * `backlog`: the first jobs of backlogs of several sizes.
//! * `fleet`: the same load for several numbers of nodes.
//! * `limits`: waiting jobs without a limit, with one key, and with many keys.
//! * `idle`: nodes without work.
//!
//! The nodes are processes of this program. They report each start of a job over a loopback socket,
//! which adds no work to the database. Every run is checked: each job started exactly once, and
//! none is left. Figures of two runs are comparable only on the same idle machine; compare ratios.
//!
//! | file | |
//! | --- | --- |
//! | `args.rs`, `crew.rs` | the workloads as arguments; the nodes of a run |
//! | `run.rs` | one run: the part that all workloads share |
//! | `clients.rs`, `plan.rs` | the clients that create jobs; the order and times of the jobs |
//! | `arriving.rs` | creating while nodes run |
//! | `node.rs`, `wire.rs` | a node of the bench; its reports |
//! | `starts.rs`, `seen.rs` | receiving the reports; their content |
//! | `refusal.rs`, `check.rs` | workloads that can't be measured; the checks of a run |
//! | `resources.rs` | the cost of a run, from the files of the next two lines |
//! | `observer.rs`, `rows.rs` | the database's own counters; its row versions |
//! | `groups.rs` | the processes of each part |
//! | `processes.rs`, `processors.rs` | the processes of this machine; their processor time |
//! | `percentiles.rs`, `report.rs`, `series.rs` | the results |

mod args;
mod arriving;
mod backlog;
mod burst;
mod check;
mod clients;
mod continuous;
mod crew;
mod drain;
mod exclusive;
mod fleet;
mod groups;
mod idle;
mod limits;
pub(crate) mod node;
mod observer;
mod percentiles;
mod plan;
mod processes;
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

use crate::error::Error;
use crate::settings::Settings;
use crate::signals::Signals;
pub use args::BenchArgs;
use args::Workload;
use series::{By, Series};

/// The handler type of a bench's jobs.
const TYPE: &str = "bench";
/// The handler type of its exclusive jobs, whose end is reported too.
const EXCLUSIVE: &str = "bench-exclusive";
/// The maximum number of jobs in a run: data about each is kept in memory.
const MOST_JOBS: u32 = 20_000_000;

/// The payload: the number of the job in the run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Payload {
    n: u32,
}

/// Makes a job of a run from its number.
type Make = Arc<dyn Fn(u32) -> NewJob + Send + Sync>;

fn make(job: impl Fn(u32) -> NewJob + Send + Sync + 'static) -> Make {
    Arc::new(job)
}

fn job(n: u32) -> NewJob {
    NewJob::of(TYPE, &Payload { n })
}

/// Returns the time in microseconds, by the clock that all processes of a machine share.
fn now() -> i64 {
    chrono::Utc::now().timestamp_micros()
}

/// Runs a workload and prints the measurements.
///
/// # Errors
/// Fails if the workload can't run, or if the checks of the run fail.
pub async fn run(settings: Settings, args: BenchArgs) -> Result<(), Error> {
    let settings = settings.with_names_of("bench");
    // A node handles its stop signal itself.
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
        Workload::Limits(args) => {
            let mut series = Series::new(By::Keys, json);
            limits::run(settings, args, &mut series).await?;
            return series.close();
        }
        Workload::Idle(args) => return idle::run(settings, args).await?.show(json),
        Workload::Node(args) => return node::run(settings, args).await,
    };
    report.show(json)
}
