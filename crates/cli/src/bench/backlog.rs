//! The first jobs of backlogs of several sizes: shows the cost of the jobs that wait behind them.
//!
//! Before the measurement the servers finish the work of the creation, as for a backlog that has
//! waited for some time. The other jobs run too, unmeasured, so that every job is checked and none
//! is left in database and broker.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use super::clients::{Commits, Hints};
use super::crew::Crew;
use super::report::{Report, seconds};
use super::run::Run;
use super::series::Series;
use super::{job, make};
use crate::error::Error;
use crate::settings::Settings;

/// Arguments of `backlog`.
#[derive(Clone, Debug, Args)]
pub struct BacklogArgs {
    /// Jobs that wait, one run for each number, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "10000,1000000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub waiting: Vec<u32>,
    /// Number of these jobs to measure; the others run too
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// Minimum time for the servers to finish their work. If the creation took longer, they get the
/// same time as the creation.
const REST: Duration = Duration::from_secs(5);

pub(super) async fn run(
    settings: &Settings,
    args: &BacklogArgs,
    series: &mut Series,
) -> Result<(), Error> {
    for waiting in &args.waiting {
        series.add(one(settings, args, *waiting).await?)?;
    }
    Ok(())
}

async fn one(settings: &Settings, args: &BacklogArgs, waiting: u32) -> Result<Report, Error> {
    let mut run = Run::open(settings, args.crew.nodes, waiting).await?;
    let filling = Instant::now();
    run.fill(waiting, Hints::Sent, &make(job), &Commits::forgotten())
        .await?;
    run.rest(filling.elapsed().max(REST)).await?;
    let jobs = args.jobs.min(waiting);
    run.hold_nodes(args.crew.nodes, Hints::Sent).await?;
    let before = run.mark().await;
    run.go();
    run.starts.until(jobs).await?;
    let started = run.starts.record().started();
    let cost = run.spent(&before).await.per_job(started, Some(0));
    run.until_done(waiting).await?;
    let finished = run.finish(waiting).await?;
    let seen = &finished.seen;
    let (began, ended) = (seen.first_start(), seen.start_number(jobs));
    let seconds = began
        .zip(ended)
        .map_or(0.0, |(began, ended)| seconds(began, ended));
    let workload = format!("the first {} jobs of a backlog", args.jobs);
    Ok(Report {
        waiting: Some(waiting),
        ..finished.report(workload, jobs, seconds, cost)
    })
}
