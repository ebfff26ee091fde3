//! Jobs with due dates: measures the time from the due date to the start.

use std::time::Duration;

use chrono::DateTime;
use clap::Args;
use jobwire_core::NewJob;

use super::clients::{Commits, Hints};
use super::crew::Crew;
use super::report::{Report, seconds};
use super::run::Run;
use super::{Payload, TYPE, make, now};
use crate::error::Error;
use crate::settings::Settings;

/// Arguments of `timers`.
#[derive(Clone, Copy, Debug, Args)]
pub struct TimersArgs {
    /// Jobs with a due date
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Seconds until the first is due [default: 10, and one for every 10,000 jobs]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub ahead: Option<u32>,
    /// Seconds over which the due dates are spread evenly; 0: all are due at one moment
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    pub spread: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// Number of jobs that even a slow machine creates in a second.
const CREATED_A_SECOND: u32 = 10_000;
/// Maximum time until nodes are ready, in seconds.
const NODES_READY: u32 = 10;

pub(super) async fn run(settings: &Settings, args: &TimersArgs) -> Result<Report, Error> {
    let TimersArgs {
        jobs, spread, crew, ..
    } = *args;
    let ahead = args.ahead.unwrap_or(NODES_READY + jobs / CREATED_A_SECOND);
    let mut run = Run::open(settings, crew.nodes, jobs).await?;
    let due = Due {
        first: now() + i64::from(ahead) * 1_000_000,
        spread: i64::from(spread) * 1_000_000,
        jobs: i64::from(jobs),
    };
    let commits = Commits::kept();
    let timer = make(move |n| {
        let timer = NewJob::of(TYPE, &Payload { n });
        match DateTime::from_timestamp_micros(due.of(n)) {
            Some(at) => timer.due(at),
            None => timer,
        }
    });
    run.fill(jobs, Hints::Sent, &timer, &commits).await?;
    run.start_nodes(crew.nodes).await?;
    let late = commits.later_than(|n| due.of(n));
    if late > 0 {
        run.notes.push(format!(
            "{late} jobs were created after they were due and are measured from their creation; \
             raise --ahead above {ahead}"
        ));
    } else if now() > due.first {
        run.notes.push(format!(
            "the nodes were ready after the first job was due; raise --ahead above {ahead}"
        ));
    }
    let before = run.mark().await;
    wait_until(due.of(jobs)).await;
    run.until_done(jobs).await?;
    let cost = run.spent(&before).await.per_job(jobs, Some(0));
    let finished = run.finish(jobs).await?;
    let seen = &finished.seen;
    let last = seen.last_start(0).unwrap_or(due.first);
    let due_to_start = commits.waited(seen, 0, |n, committed| due.of(n).max(committed));
    let workload = match spread {
        0 => format!("{jobs} timers due at one moment"),
        _ => format!("{jobs} timers due within {spread} s, evenly"),
    };
    Ok(Report {
        due_to_start,
        ..finished.report(workload, jobs, seconds(due.first, last), cost)
    })
}

/// Waits until a time. No job starts before it, so the limit on the time without starts does not
/// apply.
async fn wait_until(moment: i64) {
    let micros = u64::try_from(moment - now()).unwrap_or(0);
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

/// The due dates of the jobs, in microseconds.
#[derive(Clone, Copy)]
struct Due {
    first: i64,
    spread: i64,
    jobs: i64,
}

impl Due {
    fn of(&self, n: u32) -> i64 {
        self.first + self.spread * i64::from(n) / self.jobs.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_dates_are_one_moment_or_spread_evenly() {
        let due = |spread| Due {
            first: 1_000,
            spread,
            jobs: 4,
        };
        assert_eq!([0, 3].map(|n| due(0).of(n)), [1_000, 1_000]);
        let spread = [0, 1, 2, 3].map(|n| due(4_000_000).of(n) - 1_000);
        assert_eq!(spread, [0, 1_000_000, 2_000_000, 3_000_000]);
    }
}
