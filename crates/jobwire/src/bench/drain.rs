//! Jobs that wait already: how quickly are they worked off?

use std::time::Duration;

use jobwire_core::{CommitHook, JobFilter};

use super::report::Report;
use super::resources::Mark;
use super::starts::{Seen, Starts};
use super::{job, open};
use crate::commands::bench::DrainArgs;
use crate::connect::{Database, Outlet, has_broker};
use crate::error::Error;
use crate::nodes::Processes;
use crate::settings::Settings;

/// Jobs in one creating transaction.
const BATCH: u32 = 1_000;
/// How long the broker may take over the last hints.
const PUBLISHED: Duration = Duration::from_secs(60);
/// How long the last completions may take.
const DONE: Duration = Duration::from_secs(60);

pub(super) async fn run(settings: &Settings, args: &DrainArgs) -> Result<Option<Report>, Error> {
    if args.nodes > 1 && !has_broker(settings) {
        return Err(Error::Usage(format!(
            "--nodes {}: several nodes need a broker that all of them hear; give --broker",
            args.nodes
        )));
    }
    let database = open(settings).await?;
    fill(settings, &database, args).await?;
    let starts = Starts::listen(usize::try_from(args.jobs).unwrap_or(usize::MAX)).await?;
    let address = starts.address();
    let arguments = ["bench", "node", "--report", &address];
    let nodes = Processes::start(settings, args.nodes, &arguments);
    let before = Mark::take(&database, &[]).await?;
    let nodes = nodes.await?;
    starts
        .until(usize::try_from(args.jobs).unwrap_or(usize::MAX))
        .await?;
    until_empty(&database).await?;
    let ended = chrono::Utc::now().timestamp_micros();
    let ids = nodes.ids();
    let after = Mark::take(&database, &ids).await?;
    let cost = before.until(&after, args.jobs, &ids);
    let count = nodes.count();
    nodes.stop(settings.shutdown_timeout).await?;
    let seen = starts.seen();
    check(&seen, args.jobs)?;
    let began = seen.first.iter().copied().min().unwrap_or(ended);
    let seconds = (ended - began) as f64 / 1_000_000.0;
    Ok(Some(Report {
        workload: if args.lose_hints {
            format!("drain of {} waiting jobs whose hints were lost", args.jobs)
        } else {
            format!("drain of {} waiting jobs", args.jobs)
        },
        database: settings.database_url.to_string(),
        broker: settings.broker_url.to_string(),
        nodes: count,
        jobs: args.jobs,
        seconds,
        jobs_per_second: f64::from(args.jobs) / seconds,
        commit_to_start: None,
        arrival_to_start: None,
        swept: has_broker(settings).then_some(seen.swept),
        cost,
    }))
}

/// Create the jobs, and have their hints in the broker, unless they are to be lost.
async fn fill(settings: &Settings, database: &Database, args: &DrainArgs) -> Result<(), Error> {
    let jobs = args.jobs;
    if args.lose_hints {
        let creator = database.creator(Some(CommitHook::disconnected()));
        for n in (0..jobs).step_by(BATCH as usize) {
            let batch = (n..jobs.min(n.saturating_add(BATCH))).map(job).collect();
            creator.create_all(batch).await?;
        }
        return Ok(());
    }
    let outlet = Outlet::open(settings).await?;
    let creator = database.creator(outlet.hook());
    let mut n = 0;
    while n < jobs {
        let batch = (n..jobs.min(n + BATCH)).map(job).collect();
        creator.create_all(batch).await?;
        n = jobs.min(n + BATCH);
        // Room in the hook's buffer: nothing here is to be left to the sweeper.
        while outlet
            .hook()
            .is_some_and(|hook| hook.buffered() > settings.hint_buffer / 2)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    match outlet.close(PUBLISHED).await {
        0 => Ok(()),
        left => Err(Error::Failed(format!(
            "{left} hints were not published within {PUBLISHED:?}; is the broker well?"
        ))),
    }
}

pub(super) async fn until_empty(database: &Database) -> Result<(), Error> {
    let deadline = tokio::time::Instant::now() + DONE;
    loop {
        let left = database.store().count(&JobFilter::default()).await?;
        if left == 0 {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            return Err(Error::Failed(format!(
                "{left} jobs started and were not completed within {DONE:?}"
            )));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Every job once, and nothing else.
pub(super) fn check(seen: &Seen, jobs: u32) -> Result<(), Error> {
    if u32::try_from(seen.jobs) == Ok(jobs) && seen.again == 0 && seen.strange == 0 {
        return Ok(());
    }
    Err(Error::Failed(format!(
        "the run was not right: {} of {jobs} jobs started, {} started more than once, {} that nobody created",
        seen.jobs, seen.again, seen.strange
    )))
}
