//! The same load for fleets of several sizes: shows whether nodes slow each other down.

use super::clients::Hints;
use super::continuous;
use super::drain::Drained;
use super::refusal::{refuse_embedded, refuse_lonely};
use super::series::Series;
use super::{job, make};
use crate::commands::bench::{AHEAD, BATCH, CLIENTS, ContinuousArgs, Crew, FleetArgs, Load};
use crate::error::Error;
use crate::settings::Settings;

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
