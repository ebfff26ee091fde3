//! Measures the bridge beside the engines' own executors, in one run.
//!
//! ```text
//!                  starts instances at a fixed rate             the delegate's first statement
//!   bench ──────────────────────────────────────► engine node ─────────────► PostgreSQL
//!                                                   │ COMMIT                     ▲
//!                                                   ▼                            │
//!            Jobwire, or another engine node that polls, or the bench: executes the job
//! ```
//!
//! * **Contenders** ([`Contender`]) run the jobs in turns, on the same database and the same engine
//!   node that starts the instances. Its own executor is off.
//! * **Commit to start.** Both moments come from the clock of the database: the commit timestamp of
//!   the transaction that inserted the job, and the time at which the delegate writes its row of
//!   `jobwire_effect`. The commit timestamp is taken before the server flushes the commit to disk.
//! * **Request to start**, for the bare REST execute: from the request, by the clock of this
//!   machine, which is that of the database.
//! * **Drain.** Prepared jobs wait, then the contender begins: jobs a second from the first start to
//!   the last.
//! * **Cost.** What a job of a drain takes: processor time of the engine, of the node of Jobwire, and
//!   of the database for each of them; transactions; and WAL.
//! * **Checks.** Each job ran exactly once, or the run fails.
//!
//! Engine nodes that poll are frozen while others are measured. So every node is warm in its turn.
//!
//! | file | |
//! | --- | --- |
//! | `options.rs`, `contender.rs` | the arguments; what runs the jobs |
//! | `stage.rs` | the servers, the engine nodes, and Jobwire |
//! | `load.rs`, `kept_connections.rs` | the instances that are started; connections to the engine |
//! | `moments.rs` | commits and starts, as the database recorded them |
//! | `cost.rs` | what a drain takes of processor, transactions and WAL |
//! | `percentiles.rs`, `report.rs` | the results |

mod contender;
mod cost;
mod kept_connections;
mod load;
mod moments;
mod options;
mod percentiles;
mod report;
mod stage;

use crate::{Postgres, RabbitMq};
pub use contender::Contender;
pub use options::{BenchedEngine, EngineBenchOptions, USAGE, parse};
pub use report::{Drain, EngineReport, Latency, Report};
use stage::Stage;

/// Jobs of each contender that run before the measurements.
const WARM_UP: usize = 300;

/// Runs the bench.
///
/// # Panics
/// If a server does not start, an engine refuses, or a job did not run exactly once.
pub async fn run(options: &EngineBenchOptions) -> Report {
    let postgres = Postgres::start().await;
    let rabbitmq = if options.contenders.contains(&Contender::JobwireRabbitMq) {
        Some(RabbitMq::start().await)
    } else {
        None
    };
    let mut report = Report::new(options, moments::server_version(&postgres).await);
    for engine in &options.engines {
        let mut stage = Stage::open(options, *engine, &postgres, rabbitmq.as_ref()).await;
        report.engines.push(measure(options, &mut stage).await);
    }
    report
}

async fn measure(options: &EngineBenchOptions, stage: &mut Stage<'_>) -> EngineReport {
    let mut report = EngineReport::new(stage.version().await);
    // The same number of jobs as a drain has, up to a bound: the engines' code becomes warm.
    let first = options.jobs.min(WARM_UP);
    for contender in stage.contenders() {
        stage.drain(contender, first).await;
    }
    for rate in &options.rates {
        for contender in stage.contenders() {
            let latency = stage.latency(contender, *rate).await;
            options.say(&format!("{} {latency}", report.version));
            report.latency.push(latency);
        }
    }
    for round in 1..=options.drains {
        for contender in stage.contenders() {
            let drain = stage.drain(contender, options.jobs).await;
            let drain = Drain { round, ..drain };
            options.say(&format!("{} {drain}", report.version));
            report.drains.push(drain);
        }
    }
    report
}
