//! Jobs that wait already, under no limit, under a limit of one key, and under a limit of many keys:
//! shows the cost of permits.
//!
//! The jobs do nothing, so the limit is reached only if its size is small. With the default size the
//! figures are the cost of the permits themselves. `--size 1` measures jobs that wait for each other.

use clap::Args;
use jobwire_core::NewJob;

use super::clients::Hints;
use super::crew::Crew;
use super::drain::Drained;
use super::report::Report;
use super::series::Series;
use super::{Payload, TYPE, make};
use crate::error::Error;
use crate::settings::{Settings, TypeLimit};

/// Arguments of `limits`.
#[derive(Clone, Debug, Args)]
pub struct LimitsArgs {
    /// Jobs to run in each of the runs
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Keys of the limit, one run for each number, separated by commas; 0 for no limit
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [0, 1, 1_000], value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub keys: Vec<u32>,
    /// Jobs of a key that run at once
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub size: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

pub(super) async fn run(
    settings: &Settings,
    args: &LimitsArgs,
    series: &mut Series,
) -> Result<(), Error> {
    for keys in &args.keys {
        series.add(one(settings, args, *keys).await?)?;
    }
    Ok(())
}

async fn one(settings: &Settings, args: &LimitsArgs, keys: u32) -> Result<Report, Error> {
    let mut settings = settings.clone();
    if keys > 0 {
        settings.type_limits = vec![TypeLimit {
            job_type: TYPE.to_owned(),
            running: args.size,
            per_tenant: true,
        }];
    }
    let make = make(move |n| {
        let job = NewJob::of(TYPE, &Payload { n });
        if keys > 0 {
            job.tenant(format!("tenant-{}", n % keys))
        } else {
            job
        }
    });
    let drained =
        Drained::measure(&settings, args.jobs, args.crew.nodes, Hints::Sent, &make).await?;
    let workload = format!("drain of {} jobs, limit {}", args.jobs, args.size);
    Ok(Report {
        keys: (keys > 0).then_some(keys),
        ..drained.report(workload)
    })
}
