//! The report of a run, as text and as JSON.

use serde::Serialize;

use super::percentiles::Percentiles;
use super::resources::Cost;
use super::rows::RowVersions;
use crate::error::Error;
use crate::output;

/// The results of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) workload: String,
    pub(super) database: String,
    pub(super) broker: String,
    pub(super) nodes: usize,
    /// Jobs that waited when the nodes started, if only some of them are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waiting: Option<u32>,
    /// The number of keys of the limit, if the jobs have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keys: Option<u32>,
    pub(super) jobs: u32,
    pub(super) seconds: f64,
    pub(super) jobs_per_second: f64,
    /// In a series: jobs a second divided by those of the first run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    /// Times from the return of COMMIT to the start of the handler, in milliseconds.
    pub(super) commit_to_start: Option<Percentiles>,
    /// Times from the planned arrival of the job to the start of the handler.
    pub(super) arrival_to_start: Option<Percentiles>,
    /// Times from the due date to the start of the handler.
    pub(super) due_to_start: Option<Percentiles>,
    /// Jobs that the sweeper hinted, with a broker.
    pub(super) swept: Option<u64>,
    pub(super) cost: Cost,
    /// Row versions over the whole run, including the warm-up.
    pub(super) rows: Option<RowVersions>,
    /// Values that were not measured, with the reasons, and other remarks.
    pub(super) notes: Vec<String>,
}

/// Prints a line with a name and a value.
pub(super) fn say(name: &str, value: &str) -> Result<(), Error> {
    output::line(format_args!("{name:<17}{value}"))
}

/// Prints a line with a figure that may not have been measured.
pub(super) fn measured(name: &str, value: Option<f64>, unit: &str) -> Result<(), Error> {
    match value {
        Some(value) => say(name, &format!("{value:.3} {unit}")),
        None => say(name, "not measured here"),
    }
}

impl Report {
    /// Prints the report as JSON or as text.
    pub(super) fn show(&self, json: bool) -> Result<(), Error> {
        if json {
            output::json(self)
        } else {
            self.print()
        }
    }

    fn print(&self) -> Result<(), Error> {
        say("workload", &self.workload)?;
        say("database", &self.database)?;
        say("broker", &self.broker)?;
        say("nodes", &self.nodes.to_string())?;
        let speed = format!(
            "{} in {:.2} s: {:.0} jobs/s, each started once",
            self.jobs, self.seconds, self.jobs_per_second
        );
        say("jobs", &speed)?;
        for (name, times) in [
            ("commit to start", self.commit_to_start),
            ("arrival to start", self.arrival_to_start),
            ("due to start", self.due_to_start),
        ] {
            if let Some(times) = times {
                say(name, &times.to_string())?;
            }
        }
        if let Some(swept) = self.swept {
            let share = 100.0 * swept as f64 / f64::from(self.jobs.max(1));
            let hints = format!("{swept} hints, {share:.3} % of the jobs");
            say("by the sweeper", &hints)?;
        }
        self.print_cost()?;
        for note in &self.notes {
            say("note", note)?;
        }
        Ok(())
    }

    fn print_cost(&self) -> Result<(), Error> {
        let cost = &self.cost;
        for (name, value, unit) in [
            ("statements", cost.statements_per_job, "a job"),
            (
                "after creation",
                cost.statements_per_job_after_creation,
                "statements a job",
            ),
            (
                "housekeeping",
                cost.housekeeping_statements_per_job,
                "statements a job",
            ),
            ("WAL", cost.wal_bytes_per_job, "bytes a job"),
            (
                "CPU, database",
                cost.database_cpu_micros_per_job,
                "µs a job",
            ),
            ("CPU, broker", cost.broker_cpu_micros_per_job, "µs a job"),
            ("CPU, nodes", cost.nodes_cpu_micros_per_job, "µs a job"),
            ("CPU, this bench", cost.bench_cpu_micros_per_job, "µs a job"),
            ("CPU, machine", cost.machine_cpu_micros_per_job, "µs a job"),
            ("memory", cost.node_memory_mib, "MiB, largest node"),
            (
                "memory, most",
                cost.node_peak_memory_mib,
                "MiB, largest node",
            ),
        ] {
            measured(name, value, unit)?;
        }
        match &self.rows {
            Some(rows) => say(
                "row versions",
                &format!(
                    "a job: {:.2} inserted, {:.2} updated ({:.2} heap-only), {:.2} deleted; {} \
                     dead at the end",
                    rows.inserted_per_job,
                    rows.updated_per_job,
                    rows.hot_updated_per_job,
                    rows.deleted_per_job,
                    rows.dead_at_the_end
                ),
            ),
            None => say("row versions", "not measured here"),
        }
    }
}

/// Returns jobs per second; 0 if no time has passed.
pub(super) fn rate(jobs: u32, seconds: f64) -> f64 {
    if seconds > 0.0 {
        f64::from(jobs) / seconds
    } else {
        0.0
    }
}

/// Returns the seconds between two times in microseconds; 0 if the clock was set back.
pub(super) fn seconds(from: i64, to: i64) -> f64 {
    (to - from).max(0) as f64 / 1_000_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_time_to_have_passed() {
        assert_eq!(seconds(1_000_000, 3_500_000), 2.5);
        assert_eq!(seconds(3_500_000, 1_000_000), 0.0);
        assert_eq!((rate(10, 2.5), rate(10, 0.0)), (4.0, 0.0));
    }
}
