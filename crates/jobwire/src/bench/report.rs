//! What a run showed, for people and as JSON.

use serde::Serialize;

use super::percentiles::Percentiles;
use super::resources::Cost;
use crate::error::Error;
use crate::output;

/// What a run showed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) workload: String,
    pub(super) database: String,
    pub(super) broker: String,
    pub(super) nodes: usize,
    pub(super) jobs: u32,
    pub(super) seconds: f64,
    pub(super) jobs_per_second: f64,
    /// From COMMIT's return to the start of the handler, in milliseconds.
    pub(super) commit_to_start: Option<Percentiles>,
    /// From the moment at which the job should have arrived to the start of the handler.
    pub(super) arrival_to_start: Option<Percentiles>,
    /// Jobs that the sweeper hinted, of those that waited in a broker.
    pub(super) swept: Option<u64>,
    pub(super) cost: Cost,
}

impl Report {
    pub(super) fn print(&self) -> Result<(), Error> {
        let say = |name: &str, value: String| output::line(format_args!("{name:<17}{value}"));
        say("workload", self.workload.clone())?;
        say("database", self.database.clone())?;
        say("broker", self.broker.clone())?;
        say("nodes", self.nodes.to_string())?;
        say(
            "jobs",
            format!(
                "{} in {:.2} s: {:.0} jobs/s, each started once",
                self.jobs, self.seconds, self.jobs_per_second
            ),
        )?;
        for (name, times) in [
            ("commit to start", self.commit_to_start),
            ("arrival to start", self.arrival_to_start),
        ] {
            if let Some(times) = times {
                say(
                    name,
                    format!(
                        "p50 {:.2} ms, p95 {:.2}, p99 {:.2}, p99.9 {:.2}, max {:.2}",
                        times.p50, times.p95, times.p99, times.p999, times.max
                    ),
                )?;
            }
        }
        if let Some(swept) = self.swept {
            let share = 100.0 * swept as f64 / f64::from(self.jobs);
            say(
                "by the sweeper",
                format!("{swept} hints, {share:.3} % of the jobs"),
            )?;
        }
        for (name, value, unit) in [
            ("statements", self.cost.statements_per_job, "a job"),
            ("WAL", self.cost.wal_bytes_per_job, "bytes a job"),
            (
                "CPU, machine",
                self.cost.machine_cpu_micros_per_job,
                "µs a job",
            ),
            ("CPU, nodes", self.cost.nodes_cpu_micros_per_job, "µs a job"),
            ("memory", self.cost.node_memory_mib, "MiB, largest node"),
        ] {
            match value {
                Some(value) => say(name, format!("{value:.3} {unit}"))?,
                None => say(name, "not measured here".to_owned())?,
            }
        }
        Ok(())
    }
}
