//! Creates, publishes and runs jobs at the same time, as fast as possible.

use std::time::Duration;

use tokio::time::Instant;

use super::arriving::Arriving;
use super::clients::Hints;
use super::plan::Plan;
use super::report::Report;
use super::{MOST_JOBS, now};
use crate::commands::bench::ContinuousArgs;
use crate::error::Error;
use crate::settings::Settings;

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
        "jobs created for {seconds} s by {clients} clients at once, {batch} a transaction, and run meanwhile"
    );
    Ok(arrived.report(workload, began))
}
