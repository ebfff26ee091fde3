//! Jobs that wait already: measures the time until all have run.

use clap::Args;

use super::clients::{Commits, Hints};
use super::crew::Crew;
use super::report::{Report, seconds};
use super::resources::Cost;
use super::run::{Finished, Run};
use super::{Make, job, make, now};
use crate::error::Error;
use crate::settings::Settings;

/// Arguments of `drain`.
#[derive(Clone, Debug, Args)]
pub struct DrainArgs {
    /// Jobs to run
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
    /// Delete every hint before the nodes start: the sweeper hints the jobs again
    #[arg(long)]
    pub lose_hints: bool,
}

pub(super) async fn run(settings: &Settings, args: &DrainArgs) -> Result<Report, Error> {
    let (hints, of) = if args.lose_hints {
        (Hints::Lost, "waiting jobs whose hints were lost")
    } else {
        (Hints::Sent, "waiting jobs")
    };
    let make = make(job);
    let drained = Drained::measure(settings, args.jobs, args.crew.nodes, hints, &make).await?;
    Ok(drained.report(format!("drain of {} {of}", args.jobs)))
}

/// The results of a drain.
pub(super) struct Drained<'a> {
    pub(super) finished: Finished<'a>,
    jobs: u32,
    seconds: f64,
    cost: Cost,
}

impl<'a> Drained<'a> {
    /// Measures from the first start until no job is left.
    pub(super) async fn measure(
        settings: &'a Settings,
        jobs: u32,
        nodes: u16,
        hints: Hints,
        make: &Make,
    ) -> Result<Self, Error> {
        let mut run = Run::open(settings, nodes, jobs).await?;
        run.fill(jobs, hints, make, &Commits::forgotten()).await?;
        run.hold_nodes(nodes, hints).await?;
        let before = run.mark().await;
        run.go();
        run.until_done(jobs).await?;
        let ended = now();
        let cost = run.spent(&before).await.per_job(jobs, Some(0));
        let finished = run.finish(jobs).await?;
        let began = finished.seen.first_start().unwrap_or(ended);
        Ok(Self {
            finished,
            jobs,
            seconds: seconds(began, ended),
            cost,
        })
    }

    pub(super) fn report(self, workload: String) -> Report {
        self.finished
            .report(workload, self.jobs, self.seconds, self.cost)
    }
}
