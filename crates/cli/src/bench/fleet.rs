//! The same load for fleets of several sizes: shows whether nodes slow each other down.

use clap::{Args, ValueEnum};

use super::clients::Hints;
use super::continuous::{self, AHEAD, BATCH, CLIENTS, ContinuousArgs};
use super::crew::Crew;
use super::drain::Drained;
use super::refusal::{refuse_embedded, refuse_lonely};
use super::series::Series;
use super::{job, make};
use crate::error::Error;
use crate::settings::Settings;

/// The load of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// Like `bench drain`
    Drain,
    /// Like `bench continuous`
    Continuous,
}

/// Arguments of `fleet`.
#[derive(Clone, Debug, Args)]
pub struct FleetArgs {
    /// Node processes, one run for each number, separated by commas; ratios are to the first
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: Vec<u16>,
    /// The load
    #[arg(long, value_enum, default_value_t = Load::Drain)]
    pub load: Load,
    /// Jobs to run, with `--load drain`
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Time for which jobs are created, in seconds, with `--load continuous`
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
}

pub(super) async fn run(
    settings: &Settings,
    args: &FleetArgs,
    series: &mut Series,
) -> Result<(), Error> {
    // Checked before the first run, not in the middle of the series.
    for nodes in &args.nodes {
        refuse_lonely(settings, *nodes)?;
    }
    if args.load == Load::Continuous {
        refuse_embedded(settings)?;
    }
    for nodes in &args.nodes {
        let report = match args.load {
            Load::Drain => {
                let make = make(job);
                Drained::measure(settings, args.jobs, *nodes, Hints::Sent, &make)
                    .await?
                    .report(format!("drain of {} waiting jobs", args.jobs))
            }
            Load::Continuous => {
                let load = ContinuousArgs {
                    seconds: args.seconds,
                    ahead: AHEAD,
                    clients: CLIENTS,
                    batch: BATCH,
                    crew: Crew { nodes: *nodes },
                };
                continuous::run(settings, &load).await?
            }
        };
        series.add(report)?;
    }
    Ok(())
}
