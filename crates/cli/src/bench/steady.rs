//! Jobs that arrive at a fixed rate: measures their waiting time.

use std::ops::Range;
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::arriving::Arriving;
use super::clients::Hints;
use super::crew::Crew;
use super::report::Report;
use super::{MOST_JOBS, job, now};
use crate::error::Error;
use crate::settings::Settings;

/// Arguments of `steady`.
#[derive(Clone, Debug, Args)]
pub struct SteadyArgs {
    /// Jobs a second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Time to measure, in seconds, after two seconds to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Create the jobs without hints, like plain SQL: the commit tap of the nodes hints them
    #[arg(long)]
    pub sql: bool,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// The warm-up at the same rate, in seconds.
const WARM_UP: u32 = 2;
/// The number of clients of the first transactions.
const CLIENTS: u16 = 4;

pub(super) async fn run(settings: &Settings, args: &SteadyArgs) -> Result<Report, Error> {
    let SteadyArgs {
        rate,
        seconds,
        sql,
        crew,
    } = args;
    let jobs = rate.checked_mul(seconds + WARM_UP);
    let Some(jobs) = jobs.filter(|jobs| *jobs <= MOST_JOBS / 2) else {
        return Err(Error::Usage(format!(
            "--rate {rate} for --seconds {seconds}: more than {} jobs; lower one of them",
            MOST_JOBS / 2
        )));
    };
    let hints = if *sql { Hints::Tapped } else { Hints::Sent };
    let mut arriving = Arriving::open(settings, crew.nodes, CLIENTS, 1, hints).await?;
    let first = arriving.first;
    let (from, all) = (first + rate * WARM_UP, first + jobs);
    let period = Duration::from_secs(1) / *rate;
    arrive(&arriving, first..from, period).await?;
    // The counters are read between warm-up and measurement, so that no job waits for the read and
    // the warm-up is not counted.
    arriving.run.until_done(from).await?;
    let before = arriving.run.mark().await;
    let began = arrive(&arriving, from..all, period).await?;
    let arrived = arriving.finish(&before, from, all).await?;
    let arrival_to_start = arrived.since(|n| {
        let due = period * n.saturating_sub(from);
        began.saturating_add(i64::try_from(due.as_micros()).unwrap_or(i64::MAX))
    });
    let of = if *sql { " of plain SQL" } else { "" };
    let workload = format!("{rate} jobs{of} a second for {seconds} s");
    Ok(Report {
        arrival_to_start,
        ..arrived.report(workload, began)
    })
}

/// Creates each job at its planned time, regardless of earlier jobs. Returns the planned time of
/// the first job, in microseconds.
async fn arrive(arriving: &Arriving<'_>, jobs: Range<u32>, period: Duration) -> Result<i64, Error> {
    let (began, began_micros) = (Instant::now(), now());
    let mut creating = JoinSet::new();
    for (nth, n) in (0..).zip(jobs) {
        tokio::time::sleep_until(began + period * nth).await;
        let (creator, commits) = (arriving.clients.creator(), arriving.commits.clone());
        creating.spawn(async move {
            let created = creator.create_all(vec![job(n)]).await.map(drop);
            commits.note(&(n..n + 1), now());
            created
        });
        while let Some(created) = creating.try_join_next() {
            created.map_err(|error| Error::Failed(error.to_string()))??;
        }
    }
    while let Some(created) = creating.join_next().await {
        created.map_err(|error| Error::Failed(error.to_string()))??;
    }
    Ok(began_micros)
}
