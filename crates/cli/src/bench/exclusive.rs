//! Exclusive jobs of process instances, which run one at a time and in order: measures the time
//! until all have run.

use clap::Args;
use jobwire_core::NewJob;

use super::check;
use super::clients::Hints;
use super::crew::Crew;
use super::drain::Drained;
use super::report::Report;
use super::{EXCLUSIVE, MOST_JOBS, Payload, make};
use crate::error::Error;
use crate::settings::Settings;

/// Arguments of `exclusive`.
#[derive(Clone, Debug, Args)]
pub struct ExclusiveArgs {
    /// Process instances
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub instances: u32,
    /// Jobs of each
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

pub(super) async fn run(settings: &Settings, args: &ExclusiveArgs) -> Result<Report, Error> {
    let instances = args.instances;
    let jobs = instances.checked_mul(args.jobs);
    let Some(jobs) = jobs.filter(|jobs| *jobs <= MOST_JOBS) else {
        return Err(Error::Usage(format!(
            "--instances {instances} with --jobs {} each: more than {MOST_JOBS} jobs; give fewer",
            args.jobs
        )));
    };
    // Created round-robin, so that the next job of each instance waits behind those of all others.
    let make = make(move |n| {
        NewJob::of(EXCLUSIVE, &Payload { n }).instance(format!("instance-{}", n % instances))
    });
    let drained = Drained::measure(settings, jobs, args.crew.nodes, Hints::Sent, &make).await?;
    check::in_turn(&drained.finished.seen, instances)?;
    Ok(drained.report(format!(
        "drain of {instances} instances with {} exclusive jobs each, one at a time and in order",
        args.jobs
    )))
}
