//! Many jobs at once for idle nodes: measures the time until the last one has started.

use clap::Args;

use super::arriving::Arriving;
use super::clients::Hints;
use super::crew::Crew;
use super::now;
use super::plan::Plan;
use super::report::Report;
use crate::error::Error;
use crate::settings::Settings;

/// Arguments of `burst`.
#[derive(Clone, Debug, Args)]
pub struct BurstArgs {
    /// Jobs that are committed at once
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Clients that create them, each on its own connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Jobs in a transaction
    #[arg(long = "per-transaction", alias = "batch", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

pub(super) async fn run(settings: &Settings, args: &BurstArgs) -> Result<Report, Error> {
    let BurstArgs {
        jobs,
        clients,
        batch,
        crew,
    } = args;
    let mut arriving = Arriving::open(settings, crew.nodes, *clients, *batch, Hints::Sent).await?;
    let first = arriving.first;
    let before = arriving.run.mark().await;
    let began = now();
    let all = arriving
        .create(Plan::of(first..first + jobs, *batch))
        .await?;
    let arrived = arriving.finish(&before, first, all).await?;
    let arrival_to_start = arrived.since(|_| began);
    let workload =
        format!("burst of {jobs} jobs, {batch} a transaction, by {clients} clients at once");
    Ok(Report {
        arrival_to_start,
        ..arrived.report(workload, began)
    })
}
