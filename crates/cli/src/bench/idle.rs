//! Measures the cost of an idle fleet.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::report::{measured, say};
use super::resources::mebibytes;
use super::run::Run;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Arguments of `idle`.
#[derive(Clone, Debug, Args)]
pub struct IdleArgs {
    /// Node processes that idle
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// Time to measure, in seconds, after ten seconds to settle
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
}

/// The wait before the measurement, in which new nodes discover each other.
const SETTLING: Duration = Duration::from_secs(10);

/// The cost of an idle fleet.
#[derive(Clone, Debug, Serialize)]
pub(super) struct IdleReport {
    workload: String,
    database: String,
    broker: String,
    nodes: u16,
    seconds: f64,
    /// Calls of all statements, including BEGIN and COMMIT, without the bench's own queries.
    statements: Option<u64>,
    statements_per_minute: Option<f64>,
    wal_bytes_per_minute: Option<f64>,
    database_cpu_millis_per_minute: Option<f64>,
    broker_cpu_millis_per_minute: Option<f64>,
    /// The sum over all nodes.
    nodes_cpu_millis_per_minute: Option<f64>,
    /// The largest node's resident memory.
    node_memory_mib: Option<f64>,
    notes: Vec<String>,
}

pub(super) async fn run(settings: &Settings, args: &IdleArgs) -> Result<IdleReport, Error> {
    let mut run = Run::open(settings, args.nodes, 0).await?;
    run.start_nodes(args.nodes).await?;
    tokio::time::sleep(SETTLING).await;
    let before = run.mark().await;
    let began = std::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(u64::from(args.seconds))).await;
    let spent = run.spent(&before).await;
    let seconds = began.elapsed().as_secs_f64();
    let finished = run.finish(0).await?;
    let per_minute = |amount: Option<u64>| amount.map(|amount| minutely(amount, seconds));
    let millis = |micros: Option<u64>| per_minute(micros).map(|micros| micros / 1_000.0);
    Ok(IdleReport {
        workload: format!("{} idle nodes for {} s", args.nodes, args.seconds),
        database: settings.database_url.to_string(),
        broker: settings.broker_url.to_string(),
        nodes: args.nodes,
        seconds,
        statements: spent.statements,
        statements_per_minute: per_minute(spent.statements),
        wal_bytes_per_minute: per_minute(spent.wal_bytes),
        database_cpu_millis_per_minute: millis(spent.database),
        broker_cpu_millis_per_minute: millis(spent.broker),
        nodes_cpu_millis_per_minute: millis(spent.nodes),
        node_memory_mib: spent.memory.map(mebibytes),
        notes: finished.notes,
    })
}

fn minutely(amount: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        amount as f64 * 60.0 / seconds
    } else {
        0.0
    }
}

impl IdleReport {
    /// Prints the report as JSON or as text.
    pub(super) fn show(&self, json: bool) -> Result<(), Error> {
        if json {
            return output::json(self);
        }
        say("workload", &self.workload)?;
        say("database", &self.database)?;
        say("broker", &self.broker)?;
        let statements = self.statements.map(|n| n as f64);
        for (name, value, unit) in [
            ("statements", statements, "in all"),
            ("", self.statements_per_minute, "a minute"),
            ("WAL", self.wal_bytes_per_minute, "bytes a minute"),
            (
                "CPU, database",
                self.database_cpu_millis_per_minute,
                "ms a minute",
            ),
            (
                "CPU, broker",
                self.broker_cpu_millis_per_minute,
                "ms a minute",
            ),
            (
                "CPU, nodes",
                self.nodes_cpu_millis_per_minute,
                "ms a minute, all of them",
            ),
            ("memory", self.node_memory_mib, "MiB, largest node"),
        ] {
            measured(name, value, unit)?;
        }
        for note in &self.notes {
            say("note", note)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_half_a_minute_costs_counts_twice() {
        assert_eq!(super::minutely(4, 30.0), 8.0);
        assert_eq!(super::minutely(4, 0.0), 0.0);
    }
}
