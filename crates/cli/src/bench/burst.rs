//! Many jobs at once for idle nodes: measures the time until the last one has started.

use super::arriving::Arriving;
use super::clients::Hints;
use super::now;
use super::plan::Plan;
use super::report::Report;
use crate::commands::bench::BurstArgs;
use crate::error::Error;
use crate::settings::Settings;

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
