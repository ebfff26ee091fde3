//! The chaos suite: faults on real servers and real nodes, then a check of every promise.
//!
//! A run starts its own PostgreSQL and broker, several nodes behind proxies ([`world`]), and
//! producers that commit, roll back and die ([`producer`]). It draws faults from its seed
//! ([`faults`]). Triggers of the database record every change of a job, the handlers record what
//! they do ([`handlers`], [`recorder`]), and the producers record the outcome of each transaction
//! ([`ledger`]). When all is healed and drained, the history is read ([`reader`]) and judged
//! ([`crate::history::Checker`]).
//!
//! See docs/internals/chaos.md for how to use it.

pub mod deploys;
pub mod faults;
pub mod flood;
pub mod handlers;
pub mod ledger;
pub mod limits;
pub mod mutant;
pub mod nonsense;
pub mod options;
pub mod producer;
pub mod reader;
pub mod recorder;
pub mod report;
pub mod workload;
pub mod world;

use crate::history::{Invariant, Limits, Violation};
use crate::wait::within;
use faults::Faults;
use ledger::Ledger;
use options::Options;
use producer::Producers;
use report::Outcome;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use world::World;

/// A younger job may overtake elder exclusive jobs in the moment between their commit and its
/// visibility.
const ORDER_SLACK: i64 = 500_000;

/// The number of strikes after which nodes put a job into quarantine.
const QUARANTINE: usize = 3;

/// Runs the suite.
///
/// # Panics
/// If servers can't be started, stopped or read.
pub async fn run(options: Options) -> Outcome {
    let world = Arc::new(World::start(&options).await);
    world.watch_the_machine();
    world.start_nodes().await;
    let ledger = Ledger::by(world.clock.clone());
    let backlog = Arc::new(AtomicI64::new(0));
    let producers = Producers::start(&world, &options, &ledger, &backlog).await;
    let mut faults = Faults::new(world.clone(), ledger.clone(), options.seed, options.pace);
    let gauge = tokio::spawn(watch(world.clone(), backlog.clone()));

    let began = Instant::now();
    while began.elapsed() < options.time {
        let left = options.time.saturating_sub(began.elapsed());
        if options.faults {
            let _ = tokio::time::timeout(left, faults.next()).await;
        } else {
            tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        }
        world.look_after_nodes().await;
    }
    let faults = faults.heal().await;
    producers.stop().await;
    let ran = began.elapsed();
    world.say("healed; draining");
    drain(&world, &backlog, options.patience).await;
    if options.faults {
        flood::kill_a_busy_node(&world, &ledger).await;
    }
    let draining = Instant::now();
    drain(&world, &backlog, options.patience).await;
    let drained = draining.elapsed();
    world.look_after_nodes().await;
    world.say("drained; checking");
    let (hints, unbalanced) = world.hint_accounts().await;
    world.stop_nodes().await;
    // A handler that had lost its lease may have created a job until its node stopped.
    for _ in 0..5 {
        sessions_end(&world.url).await;
        if left(&world.url).await.is_ok_and(|left| left == 0) {
            break;
        }
        world.start_nodes().await;
        drain(&world, &backlog, options.patience).await;
        world.stop_nodes().await;
    }
    gauge.abort();

    let limits = Limits {
        drained: true,
        found: true,
        handlers: true,
        // A job may lose its hint and its lease now and then; a storm of hints would be many times
        // as much.
        rehints: Some(2 * ledger.len() as u64 + 1_000),
        hinted_after: Some(1_000_000),
        order_slack: ORDER_SLACK,
        quarantine: Some(QUARANTINE),
        calendar: world.calendar(),
        takeover: i64::try_from(options.takeover.as_micros()).ok(),
    };
    let checked = reader::check(&world.url, ledger.take(), limits).await;
    let (mut verdict, kinds) =
        checked.unwrap_or_else(|error| panic!("cannot read the history: {error}"));
    if options.durable_locks {
        // Without them a crash of the database may forget permits.
        let calendar = world.calendar();
        let checked = limits::check(&world.url, &calendar, options.lease, &mut verdict).await;
        checked.unwrap_or_else(|error| panic!("cannot read the runs: {error}"));
    }
    for what in unbalanced {
        verdict.add(Violation {
            invariant: Invariant::I9,
            jobs: Vec::new(),
            what,
            history: Vec::new(),
        });
    }
    let evidence = evidence(&world, &verdict.kept).await;
    Outcome {
        verdict,
        kinds,
        hints,
        faults,
        surprises: world.surprises(),
        evidence,
        outputs: world.last_outputs(),
        ran,
        drained,
        rows: rows(&world.url).await,
        starts: world.starts.load(Ordering::Relaxed),
        longest_stall: Duration::from_millis(world.longest_stall.load(Ordering::Relaxed)),
        options,
    }
}

/// Counts every second the jobs that wait or run. After an outage the last count stays; `i64::MAX`
/// is never stored.
async fn watch(world: Arc<World>, backlog: Arc<AtomicI64>) {
    loop {
        let count = tokio::time::timeout(Duration::from_secs(5), left(&world.url)).await;
        if let Ok(Ok(count)) = count {
            backlog.store(count, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn left(url: &str) -> Result<i64, sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    let count = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM jobwire.job WHERE correlation_id <> $1)
            + (SELECT count(*) FROM jobwire.timer_job WHERE correlation_id <> $1)",
    )
    .bind(nonsense::NONSENSE)
    .fetch_one(&mut connection)
    .await?;
    connection.close().await?;
    Ok(count)
}

/// Waits for the transactions of nodes that have ended: their last statements may still be in a
/// proxy, or run in the server.
async fn sessions_end(url: &str) {
    within(Duration::from_secs(10), || async {
        let mut connection = PgConnection::connect(url).await.ok()?;
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name IN ('jobwire', 'chaos-recorder')",
        )
        .fetch_one(&mut connection)
        .await
        .ok()?;
        (open == 0).then_some(())
    })
    .await;
}

async fn rows(url: &str) -> i64 {
    let count = async {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::query_scalar("SELECT count(*) FROM chaos.history")
            .fetch_one(&mut connection)
            .await
    };
    count.await.unwrap_or(0)
}

/// Waits until no job is left, or until no job has been finished for `patience`.
async fn drain(world: &World, backlog: &AtomicI64, patience: Duration) {
    let mut fewest = i64::MAX;
    let mut since = Instant::now();
    loop {
        let count = left(&world.url).await;
        if let Ok(count) = count {
            backlog.store(count, Ordering::Relaxed);
            if count == 0 {
                return;
            }
            if count < fewest {
                (fewest, since) = (count, Instant::now());
            }
        }
        if since.elapsed() > patience {
            let mut what = format!("{fewest} jobs were left after {patience:?} without progress");
            for node in &world.nodes {
                let node = node.lock().await;
                let said = node.said();
                let tail = said[said.len().saturating_sub(20)..].join("\n");
                what.push_str(&format!("\nnode {}:\n{tail}", node.number()));
            }
            world.surprise(what);
            return;
        }
        world.look_after_nodes().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Returns the raw histories of the first jobs in violations.
async fn evidence(world: &World, violations: &[Violation]) -> Vec<String> {
    let mut lines = Vec::new();
    for job in violations
        .iter()
        .flat_map(|violation| &violation.jobs)
        .take(12)
    {
        match reader::dump(&world.url, *job).await {
            Ok(history) => lines.extend(history),
            Err(error) => lines.push(format!("{job}: {error}")),
        }
    }
    lines
}
