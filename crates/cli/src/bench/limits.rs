//! Jobs that wait already, under no limit, under a limit of one key, and under a limit of many keys:
//! shows the cost of permits.
//!
//! The jobs do nothing, so the limit is reached only if its size is small. With the default size the
//! figures are the cost of the permits themselves. `--size 1` measures jobs that wait for each other.
//! `--per` measures a rate, and `--fair` a limit whose jobs take turns.

use std::time::Duration;

use clap::Args;
use jobwire_core::NewJob;
use jobwire_core::job::duration;

use super::clients::Hints;
use super::crew::Crew;
use super::drain::Drained;
use super::report::Report;
use super::series::Series;
use super::{Payload, TYPE, make};
use crate::error::Error;
use crate::settings::{LimitKey, Settings, TypeLimit};

/// Arguments of `limits`.
#[derive(Clone, Debug, Args)]
pub struct LimitsArgs {
    /// Jobs to run in each of the runs
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Keys of the limit, one run for each number, separated by commas; 0 for no limit
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,1,1000", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub keys: Vec<u32>,
    /// Jobs of a key that run at once, or with `--per`, that start in that time
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub size: u32,
    /// Measure a rate: the time in which `--size` jobs of a key may start. `--size 1000000 --per 1s`
    /// holds no job back
    #[arg(long, value_name = "DURATION", value_parser = period)]
    pub per: Option<Duration>,
    /// Categories of jobs that take turns within a key, while jobs wait for it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub fair: Option<u32>,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// Reads a period. A rate has one of a day at most.
fn period(text: &str) -> Result<Duration, String> {
    let period = duration::parse(text).map_err(|error| error.to_string())?;
    if period > Duration::from_secs(24 * 3600) {
        return Err("a period is a day at most".to_owned());
    }
    Ok(period)
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
            number: args.size,
            period: args.per,
            burst: None,
            key: Some(LimitKey::Tenant),
            fair: args.fair.map(|_| LimitKey::Category),
            name: None,
        }];
    }
    let fair = args.fair;
    let make = make(move |n| {
        let mut job = NewJob::of(TYPE, &Payload { n });
        if keys > 0 {
            job = job.tenant(format!("tenant-{}", n % keys));
        }
        match fair {
            Some(fair) => job.category(format!("category-{}", n / keys.max(1) % fair)),
            None => job,
        }
    });
    let drained =
        Drained::measure(&settings, args.jobs, args.crew.nodes, Hints::Sent, &make).await?;
    let per = args.per.map(|per| format!("/{}", duration::write(per)));
    let per = per.unwrap_or_default();
    let fair = fair.map(|fair| format!(", {fair} take turns"));
    let fair = fair.unwrap_or_default();
    let workload = format!(
        "drain of {} jobs, limit {}{per}{fair}",
        args.jobs, args.size
    );
    Ok(Report {
        keys: (keys > 0).then_some(keys),
        ..drained.report(workload)
    })
}
