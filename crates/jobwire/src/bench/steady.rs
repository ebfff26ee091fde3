//! Jobs that arrive at a fixed rate: how long do they wait?

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::drain::{check, until_empty};
use super::percentiles::Percentiles;
use super::report::Report;
use super::resources::Mark;
use super::starts::Starts;
use super::{job, open};
use crate::commands::bench::SteadyArgs;
use crate::connect::{Outlet, has_broker};
use crate::error::Error;
use crate::nodes::Processes;
use crate::settings::Settings;

/// Jobs that go before, so that connections and plans are there.
const WARM_UP: Duration = Duration::from_secs(2);

/// When a job should have arrived, and when its COMMIT returned; in microseconds.
#[derive(Clone, Copy, Default)]
struct Arrival {
    due: i64,
    committed: i64,
}

pub(super) async fn run(settings: &Settings, args: &SteadyArgs) -> Result<Option<Report>, Error> {
    if !has_broker(settings) {
        return Err(Error::Usage(
            "jobs that arrive come from another process than the nodes: give --broker".to_owned(),
        ));
    }
    let database = open(settings).await?;
    let warm_up = args.rate * u32::try_from(WARM_UP.as_secs()).unwrap_or(1);
    let measured = args.rate * args.seconds;
    let total = warm_up + measured;
    let size = usize::try_from(total).unwrap_or(usize::MAX);
    let starts = Starts::listen(size).await?;
    let address = starts.address();
    let arguments = ["bench", "node", "--report", &address];
    let nodes = Processes::start(settings, args.nodes, &arguments).await?;
    let ids = nodes.ids();
    let outlet = Outlet::open(settings).await?;
    let creator = database.creator(outlet.hook());
    let arrivals = Arc::new(Mutex::new(vec![Arrival::default(); size]));
    let period = Duration::from_secs(1) / args.rate;
    let (began, began_micros) = (Instant::now(), chrono::Utc::now().timestamp_micros());
    let mut creating = JoinSet::new();
    let mut before = None;
    for n in 0..total {
        let due = period * n;
        tokio::time::sleep_until(began + due).await;
        if n == warm_up {
            before = Some(Mark::take(&database, &ids).await?);
        }
        let (creator, arrivals) = (creator.clone(), arrivals.clone());
        creating.spawn(async move {
            let created = creator.create_all(vec![job(n)]).await;
            let committed = chrono::Utc::now().timestamp_micros();
            let due = began_micros + i64::try_from(due.as_micros()).unwrap_or(i64::MAX);
            let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(arrival) = usize::try_from(n).ok().and_then(|n| arrivals.get_mut(n)) {
                *arrival = Arrival { due, committed };
            }
            created
        });
        while let Some(created) = creating.try_join_next() {
            created.map_err(|error| Error::Failed(error.to_string()))??;
        }
    }
    while let Some(created) = creating.join_next().await {
        created.map_err(|error| Error::Failed(error.to_string()))??;
    }
    starts.until(size).await?;
    until_empty(&database).await?;
    let seconds = began.elapsed().saturating_sub(WARM_UP).as_secs_f64();
    let after = Mark::take(&database, &ids).await?;
    let cost = before.map(|before| before.until(&after, measured, &ids));
    let count = nodes.count();
    nodes.stop(settings.shutdown_timeout).await?;
    outlet.close(Duration::from_secs(5)).await;
    let seen = starts.seen();
    check(&seen, total)?;
    let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = |from: fn(&Arrival) -> i64| {
        let pairs = arrivals.iter().zip(&seen.first);
        let pairs = pairs.skip(usize::try_from(warm_up).unwrap_or(0));
        Percentiles::of(
            pairs
                .map(|(arrival, start)| start - from(arrival))
                .collect(),
        )
    };
    Ok(Some(Report {
        workload: format!("{} jobs a second for {} s", args.rate, args.seconds),
        database: settings.database_url.to_string(),
        broker: settings.broker_url.to_string(),
        nodes: count,
        jobs: measured,
        seconds,
        jobs_per_second: f64::from(measured) / seconds,
        commit_to_start: waited(|arrival| arrival.committed),
        arrival_to_start: waited(|arrival| arrival.due),
        swept: None,
        cost: cost.unwrap_or_default(),
    }))
}
