//! Creates, publishes and runs jobs at the same time, as fast as possible.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use super::arriving::Arriving;
use super::clients::Hints;
use super::crew::Crew;
use super::plan::Plan;
use super::report::Report;
use super::{MOST_JOBS, now};
use crate::error::Error;
use crate::settings::Settings;

/// The default number of clients of `continuous`.
pub(super) const CLIENTS: u16 = 4;
/// The default number of jobs in a transaction of `continuous`.
pub(super) const BATCH: u32 = 100;
/// The default number of jobs that may wait in `continuous`.
pub(super) const AHEAD: u32 = 20_000;

/// Arguments of `continuous`.
#[derive(Clone, Debug, Args)]
pub struct ContinuousArgs {
    /// Time for which jobs are created, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Jobs that may wait before the clients pause
    #[arg(long, value_name = "N", default_value_t = AHEAD, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ahead: u32,
    /// Clients that create them, each on its own connection
    #[arg(long, value_name = "N", default_value_t = CLIENTS, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Jobs in a transaction
    #[arg(long = "per-transaction", alias = "batch", value_name = "N", default_value_t = BATCH, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

pub(super) async fn run(settings: &Settings, args: &ContinuousArgs) -> Result<Report, Error> {
    let ContinuousArgs {
        seconds,
        ahead,
        clients,
        batch,
        crew,
    } = args;
    let mut arriving = Arriving::open(settings, crew.nodes, *clients, *batch, Hints::Sent).await?;
    let first = arriving.first;
    let before = arriving.run.mark().await;
    let began = now();
    let plan = Plan::of(first..MOST_JOBS, *batch)
        .until(Instant::now() + Duration::from_secs(u64::from(*seconds)))
        .ahead(*ahead, arriving.run.starts.record());
    let all = arriving.create(plan).await?;
    let arrived = arriving.finish(&before, first, all).await?;
    let workload = format!(
        "jobs created for {seconds} s by {clients} clients at once, {batch} a transaction, and run \
         meanwhile"
    );
    Ok(arrived.report(workload, began))
}
